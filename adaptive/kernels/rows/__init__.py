"""What happens to rows: `cpu` in numba, `gpu` in Triton, `torch_ops` in torch operations; `choose` for a device.

All give the same bits. Triton is imported late, so this package imports none of them.
"""
