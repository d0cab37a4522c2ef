"""Loops over plain arrays and tensors: numba on the CPU, Triton on a GPU.

They decide nothing and know no tier or policy; each kernel's docstring gives shapes and dtypes.
"""
