"""Planner and policies over ids alone: what a device size would give, before anything is trained or bought.

Rows have no values here, so nothing is skipped and no movement is known.
"""
