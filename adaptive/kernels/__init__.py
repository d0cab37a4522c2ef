"""Loops over plain arrays and tensors: numba on the CPU, Triton on a GPU.

Kernels decide nothing and know no tier or policy. Each docstring gives shapes and dtypes.
"""
