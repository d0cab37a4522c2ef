"""Planner and policies over ids alone: what a device size would give, before anything is trained or bought.

Rows have no values here, so no movement is known, and nothing is skipped that follows from it. Gradients that wait by
counts of visits wait here, too.
"""
