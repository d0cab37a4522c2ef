"""Figures and tables of papers; `adaptive-train reproduce NAME` runs a script."""
