"""Exchange of rows between ranks: requests to their owners, and the owners' responses."""
