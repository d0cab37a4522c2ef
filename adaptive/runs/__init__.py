"""A run and its directory: train it, resume it, say what it would take, evaluate it again.

The training step is in `adaptive.trainer`, the files are in `adaptive.storage`.
"""

from adaptive.runs.evaluating import evaluate_run
from adaptive.runs.going_on import go_on_run
from adaptive.runs.resuming import resume_run
from adaptive.runs.training import plan_run, train_run

__all__ = ["evaluate_run", "go_on_run", "plan_run", "resume_run", "train_run"]
