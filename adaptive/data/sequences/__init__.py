"""Samples that are sequences: a history of steps and a candidate."""
