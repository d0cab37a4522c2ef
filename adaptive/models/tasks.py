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
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from adaptive.batch import Batch
from adaptive.errors import InputError
from adaptive.models.dense.base import Tasks as Tasks  # user-defined models import it from here

LOSSES: Final = ("log", "mse", "softmax", "in_batch_softmax")
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


def loss_of(model: nn.Module) -> str:
    """Return the name of a model's loss: its attribute `loss`, if it is one of `LOSSES`, else log."""
    loss = getattr(model, "loss", "log")
    return loss if loss in LOSSES else "log"


def log_losses(
    logits: Tensor,
    labels: Tensor,
    tasks: Tasks | None,
    *,
    samples: int,
    weights: Tensor | None = None,
    loss: str = "log",
) -> Tensor:
    """Return the loss of n samples: the sum of their log losses over the batch's `samples`.

    With several labels, it is the weighted sum of the losses of the labels.

    Args:
        logits, labels: (n,), or with `tasks` (n, T).
        samples: number of samples of the whole batch.
        weights: (n,) factor of each sample's loss; None: 1.
        loss: `mse` for squared errors of the outputs; `softmax` for the log loss of the label that is 1, where
            logits are the log odds of each.
    """
    if loss in ("mse", "softmax"):
        of_samples = (logits - labels).square() if loss == "mse" else -(labels * logsigmoid(logits)).sum(dim=1)
        return (of_samples if weights is None else of_samples * weights).sum() / samples
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


def start_at_base_rate(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Set the output bias of a new model to the log odds of the first 16,384 labels, or with loss = mse to their mean.

    A random bias, as DLRM's, must first move to the log odds. A short run ends before it is there, with predictions
    that are all too high or all too low, depending on the seed. The result depends on the batches only: not on
    look-ahead, placement or ranks.

    Does nothing if there are no batches, or the model has no method `set_output_bias(logits)`; its argument is float32
    (T,), or (1,) for one label. Log odds ignore labels between 0 and 1.

    Raises:
        InputError: for labels that do not fit the model's loss.
    """
    set_output_bias = getattr(model, "set_output_bias", None)
    if set_output_bias is None:
        return
    tasks, loss, samples = tasks_of(model), loss_of(model), 0
    positives, negatives, total = np.float64(0), np.float64(0), np.float64(0)
    for batch in batches:
        labels = batch.labels[:, None] if tasks is None else labels_of(batch, tasks)
        _check_labels(labels, loss, batch)
        positives, negatives = positives + (labels == 1).sum(axis=0), negatives + (labels == 0).sum(axis=0)
        total = total + labels.sum(axis=0, dtype=np.float64)
        samples += batch.num_samples
        if samples >= BASE_RATE_SAMPLES:
            break
    if samples and loss == "mse":
        set_output_bias(torch.from_numpy(total / samples).float())
    elif samples:
        # add half a sample of each kind: finite even if only one kind has occurred
        set_output_bias(torch.from_numpy(np.log((positives + 0.5) / (negatives + 0.5))).float())


def _check_labels(labels: NDArray[np.float32], loss: str, batch: Batch) -> None:
    """Raise InputError unless labels (B, T) fit the loss; NaN is checked elsewhere."""
    if loss == "mse":
        return
    bad, expected = (labels < 0) | (labels > 1), "0 or 1"
    if loss == "softmax":
        bad, expected = labels.sum(axis=1, keepdims=True) != 1, "labels of which one is 1"
    if bad.any():
        sample = int(bad.any(axis=1).argmax())
        where = f"sample {sample}" if batch.origin is None else batch.origin.where(sample)
        got = ", ".join(f"{value:g}" for value in labels[sample])
        fix = "Correct the data" if loss == "softmax" else "Set model.loss = mse for numbers, or correct the data"
        raise InputError(f"{where}: expected {expected} for model.loss = {loss}, got {got}. {fix}.")
