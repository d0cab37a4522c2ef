"""Papers' figures and tables, a script for each: `adaptive-train reproduce NAME` runs it."""
