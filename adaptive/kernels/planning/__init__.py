"""Loops of the look-ahead thread: a batch's look-ups, slots and records, watched rows, Belady's bound."""
