"""Train a model on tiered tables, and everything a run needs: loop, evaluation, records, guard, checkpoints."""
