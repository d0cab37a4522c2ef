"""Loops over lookups, rows and slots, for `embeddings.planning` and the simulator."""
