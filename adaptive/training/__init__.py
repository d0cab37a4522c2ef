"""Train a model on tiered tables: loop, evaluation, records, runs."""
