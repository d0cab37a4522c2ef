"""The labels that a model predicts: their loss, and the base rate that a model starts at.

A model of one label returns logits (B,). A model of T labels has an attribute `tasks` and returns logits (B, T): first
that of `Batch.labels`, then those of the other labels, which are in `Batch.extras` under their names.

Letters: B samples, T labels.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.batch import Batch
from adaptive.errors import InputError
from adaptive.models.dense.base import Tasks as Tasks  # user-defined models import it from here

BASE_RATE_SAMPLES: Final = 1 << 14  # samples for the base rate, whose log odds are then accurate to about 0.1

Values = TypeVar("Values", NDArray[Any], Tensor)


def tasks_of(model: nn.Module) -> Tasks | None:
    """Return the labels of a model; None if it has one."""
    tasks = getattr(model, "tasks", None)
    return tasks if isinstance(tasks, Tasks) else None


def labels_of(batch: Batch, tasks: Tasks) -> NDArray[np.float32]:
    """Return the labels (B, T) of a batch; raise InputError if one is missing."""
    columns = [batch.labels, *(_extra(batch.extras, name).astype(np.float32) for name in tasks.names[1:])]
    return np.stack(columns, axis=1)


def label_tensor(labels: Tensor, extras: Mapping[str, Tensor], tasks: Tasks) -> Tensor:
    """Return the labels (B, T), float32, of a batch whose labels and extras are on the device."""
    return torch.stack([labels, *(_extra(extras, name).float() for name in tasks.names[1:])], dim=1)


def _extra(extras: Mapping[str, Values], name: str) -> Values:
    if name not in extras:
        others = ", ".join(extras) or "none"
        raise InputError(f"labels: expected {name!r}, which the model predicts, got {others}. Use other data.")
    return extras[name]


def log_losses(
    logits: Tensor, labels: Tensor, tasks: Tasks | None, *, samples: int, weights: Tensor | None = None
) -> Tensor:
    """Return the loss of n samples: the sum of their log losses over the batch's `samples`.

    With several labels, it is the weighted sum of the losses of the labels.

    Args:
        logits, labels: (n,), or with `tasks` (n, T).
        samples: number of samples of the whole batch.
        weights: (n,) factor of each sample's loss; None: 1.
    """
    if tasks is None and weights is None and len(logits) == samples:
        return binary_cross_entropy_with_logits(logits, labels)
    if tasks is None:
        return binary_cross_entropy_with_logits(logits, labels, weight=weights, reduction="sum") / samples
    each = None if weights is None else weights[:, None]
    losses = binary_cross_entropy_with_logits(logits, labels, weight=each, reduction="none").sum(dim=0) / samples
    return losses @ _weights(tasks, losses.dtype, losses.device)


@cache
def _weights(tasks: Tasks, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (T,) weights, cached: copying a tensor to a GPU waits for all work there."""
    with torch.inference_mode(False):  # training uses it, even if evaluation makes it first
        return torch.tensor(tasks.weights, dtype=dtype, device=device)


def first_label(values: Tensor) -> Tensor:
    """Return the values (B,) of the first label, of values (B,) or (B, T)."""
    return values if values.dim() == 1 else values[:, 0]


def start_at_base_rate(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Set the output bias of a new model to the log odds of the first 16,384 labels.

    A random bias, as DLRM's, must first move to the log odds. A short run ends before it is there, with predictions
    that are all too high or all too low, depending on the seed. The result depends on the batches only: not on
    look-ahead, placement or ranks.

    Does nothing if there are no batches, or the model has no method `set_output_bias(logits)`; its argument is float32
    (T,), or (1,) for one label. Labels that are neither 0 nor 1 are ignored.
    """
    set_output_bias = getattr(model, "set_output_bias", None)
    if set_output_bias is None:
        return
    tasks, positives, negatives, samples = tasks_of(model), np.float64(0), np.float64(0), 0
    for batch in batches:
        labels = batch.labels[:, None] if tasks is None else labels_of(batch, tasks)
        positives, negatives = positives + (labels == 1).sum(axis=0), negatives + (labels == 0).sum(axis=0)
        samples += batch.num_samples
        if samples >= BASE_RATE_SAMPLES:
            break
    if samples:
        # add half a sample of each kind: finite even if only one kind has occurred
        set_output_bias(torch.from_numpy(np.log((positives + 0.5) / (negatives + 0.5))).float())
