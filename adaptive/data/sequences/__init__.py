"""Samples that are sequences, a history of steps and a candidate: built in, from logged events, or ready-made."""
