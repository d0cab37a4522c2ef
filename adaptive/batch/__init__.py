"""Batches: what a reader yields and a model trains on (`batch`), how one is made of features by name (`named`) or of
several batches (`joining`), and what one of several ranks trains of it (`own_part`)."""

from adaptive.batch.batch import NO_SAMPLES, Batch, Origin, as_batch, in_order, one_hot_batch
from adaptive.batch.joining import concatenate
from adaptive.batch.own_part import OwnPart, cut

__all__ = ["NO_SAMPLES", "Batch", "Origin", "OwnPart", "as_batch", "concatenate", "cut", "in_order", "one_hot_batch"]
