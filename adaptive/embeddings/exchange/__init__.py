"""Rows between ranks: what a rank asks of their owners, and what an owner makes of all that is asked of it."""
