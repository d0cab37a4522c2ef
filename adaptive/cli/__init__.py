"""The command line, `adaptive-train`: one file per command, nothing heavy imported before a command runs."""
