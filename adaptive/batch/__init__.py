"""Batches: what a reader yields and a model trains on (`batch`), and how one is made of features by name (`named`)."""

from adaptive.batch.batch import Batch, Origin, as_batch, concatenate, in_order, one_hot_batch

__all__ = ["Batch", "Origin", "as_batch", "concatenate", "in_order", "one_hot_batch"]
