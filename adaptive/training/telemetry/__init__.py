"""What a run reports: its record, written to `metrics.jsonl`, and views of it: TensorBoard, progress line, summary.

Nothing here changes what is trained; what is counted comes from `engine.statistics`.
"""
