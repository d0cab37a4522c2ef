"""Studies of data, policies and results, each behind a command."""
