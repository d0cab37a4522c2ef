"""Host tiers (memory or file), the device tier, and the `Mover` that orders their work.

`planning` decides where rows are; the device tier on a GPU is in `gpu`, the loops are in `kernels`.
"""
