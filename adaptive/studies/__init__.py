"""Commands that look at data, policies and results: compare, simulate, profile, placements, reproduce, report."""
