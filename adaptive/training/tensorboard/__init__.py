"""TensorBoard's tab "Rows": which rows of each table lie where over time, come and go, and are saturated.

TensorBoard finds the plug-in by its entry point (group `tensorboard_plugins`) and imports it when it starts, so nothing
heavy is imported here. The plug-in reads `metrics.jsonl` of the runs below the log directory, which is the record;
TensorBoard's own summaries keep ten tensors of a tag.
"""

from adaptive.training.tensorboard.plugin import RowsPlugin

__all__ = ["RowsPlugin"]
