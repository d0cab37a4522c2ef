"""The record of a run, `metrics.jsonl`, and its views.

Nothing here changes what is trained. Counts come from `engine.statistics`.
"""
