"""Planner and policies over ids alone: what a device size would give, before anything is trained or bought."""
