"""Runs and their directories: train, resume, plan, and evaluate again.

The training step is in `adaptive.training.trainer`; the files are in `adaptive.storage`.
"""

from adaptive.training.runs.loading import evaluate_run
from adaptive.training.runs.resuming import auto_resume_run, resume_run
from adaptive.training.runs.training import plan_run, train_run

__all__ = ["auto_resume_run", "evaluate_run", "plan_run", "resume_run", "train_run"]
