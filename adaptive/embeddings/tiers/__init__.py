"""Where rows and their values lie, and how they are copied: host tiers (memory or file), the device tier, the `Mover`.

Which rows lie where is decided in `planning`; the device tier on a GPU is in `gpu`, the loops are in `kernels`.
"""
