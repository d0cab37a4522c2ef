"""The device tier on a torch device: slots, plans sent ahead, and two ways to move rows.

`planning` decides which rows are here; streams and events are in `tiers.mover`, the kernels in `kernels.rows`.
"""
