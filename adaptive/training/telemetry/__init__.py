"""The record of a run (`metrics.jsonl`) and its views: TensorBoard, progress line, summary, loggers.

Nothing here changes what is trained. Counts come from `engine.statistics`.
"""
