"""Rows in files: system calls, and loops over records."""
