"""Batches: what a reader yields and a model trains on.

`batch` defines `Batch`, `named` builds one from features by name, and `batch_parts` joins and cuts batches.
"""

from adaptive.batch.batch import NO_SAMPLES, Batch, Origin, as_batch, in_order, one_hot_batch
from adaptive.batch.batch_parts import concatenate

__all__ = ["NO_SAMPLES", "Batch", "Origin", "as_batch", "concatenate", "in_order", "one_hot_batch"]
