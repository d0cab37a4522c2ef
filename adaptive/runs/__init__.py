"""A run and its directory: train it, go on with it, say what it would take, evaluate it again."""

from adaptive.runs.evaluating import evaluate_run
from adaptive.runs.resuming import resume_run
from adaptive.runs.training import plan_run, train_run

__all__ = ["evaluate_run", "plan_run", "resume_run", "train_run"]
