"""Placement policies and skip rules: one policy, one paper, one file."""
