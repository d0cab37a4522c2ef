"""Batches: what a reader yields and a model trains on.

`batch` defines `Batch`, joins and refills batches; `named` builds one from features by name.
"""

from adaptive.batch.batch import NO_SAMPLES, Batch, Origin, as_batch, concatenate, in_order, one_hot_batch

__all__ = ["NO_SAMPLES", "Batch", "Origin", "as_batch", "concatenate", "in_order", "one_hot_batch"]
