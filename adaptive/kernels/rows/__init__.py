"""What happens to rows: `cpu` in numba, `gpu` in Triton, `cpu_tensors` the former on tensors; `choose` for a device.

All give the same bits. Triton is imported late, so this package imports none of them.
"""
