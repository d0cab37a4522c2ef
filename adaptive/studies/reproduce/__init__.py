"""Reproduce figures and tables of papers with the commands of this program."""
