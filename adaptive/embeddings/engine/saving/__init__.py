"""Rows and their optimizer state to and from checkpoints."""
