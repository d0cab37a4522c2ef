"""Loops that make batches: the text tokeniser, pairs of users and items, the synthetic stream."""
