"""From settings to batches with their rows in place: look-ahead, the pipeline that carries plans out, saving.

What moves is decided in `planning`; rows and their values lie in `tiers`.
"""
