"""Loops over plain arrays and tensors: numba on the CPU, Triton or torch operations on a GPU.

They decide nothing and know no tier or policy; each kernel's docstring gives shapes and dtypes.
"""
