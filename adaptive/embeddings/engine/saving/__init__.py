"""Saves rows and their optimizer state to checkpoints, and loads them."""
