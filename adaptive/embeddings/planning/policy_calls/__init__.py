"""Calling a policy and a skip rule: in time, with errors that name them, and what they report."""
