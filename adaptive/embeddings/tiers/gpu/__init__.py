"""The device tier on a torch device: slots, plans sent ahead of training, and the two ways for rows to cross.

`planning` decides which rows lie here; streams and events are in `tiers.mover`, the kernels in `kernels.rows`.
"""
