"""The command line, `adaptive-train`: modules import little until a command runs."""
