"""The command line, `adaptive-train`: one file per command, which imports little."""
