"""Kernels for rows: `cpu` in numba, `gpu` in Triton; `choose` picks for a device.

`cpu_tensors` runs numba's kernels on tensors. All give the same bits. Triton is imported late, so this package imports
none of them.
"""
