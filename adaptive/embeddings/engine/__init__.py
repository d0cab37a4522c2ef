"""The engine: look-ahead, the pipeline that executes plans, and saving.

`planning` decides which rows move. `tiers` store rows and their values.
"""
