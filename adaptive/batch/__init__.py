"""Batches: what a reader yields and a model trains on (`batch`), how one is made of features by name (`named`) or of
several batches, and which part of it one of several ranks trains (`batch_parts`)."""

from adaptive.batch.batch import NO_SAMPLES, Batch, Origin, as_batch, in_order, one_hot_batch
from adaptive.batch.batch_parts import OwnPart, concatenate, cut

__all__ = ["NO_SAMPLES", "Batch", "Origin", "OwnPart", "as_batch", "concatenate", "cut", "in_order", "one_hot_batch"]
