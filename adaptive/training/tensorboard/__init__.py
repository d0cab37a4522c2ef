"""TensorBoard's tab "Rows": rows of each table by tier, moves, and rows that wait or rest, over time.

TensorBoard finds the plug-in by its entry point (group `tensorboard_plugins`) and imports it at its start, so nothing
heavy is imported here. The plug-in reads the `metrics.jsonl` of all runs below the log directory, since TensorBoard's
summaries keep only ten tensors per tag.
"""

from adaptive.training.tensorboard.plugin import RowsPlugin

__all__ = ["RowsPlugin"]
