"""Commands that study rather than train: what the data is like, what placements would do, how runs compare."""
