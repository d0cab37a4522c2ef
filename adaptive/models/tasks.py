"""Labels that a model predicts: which they are, the loss over them, and the base rate a model starts at.

A model of one label gives logits (B,). One of T labels has an attribute `tasks` and gives logits (B, T): the first is
that of `Batch.labels`, the others are those of `Batch.extras` under the labels' names.

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
from adaptive.models.dense.base import Tasks as Tasks  # models name it from here

BASE_RATE_SAMPLES: Final = 1 << 14  # of which the base rate is taken: its log odds are then good to 0.1 or so

Values = TypeVar("Values", NDArray[Any], Tensor)


def tasks_of(model: nn.Module) -> Tasks | None:
    """The labels of a model; None: it has one."""
    tasks = getattr(model, "tasks", None)
    return tasks if isinstance(tasks, Tasks) else None


def labels_of(batch: Batch, tasks: Tasks) -> NDArray[np.float32]:
    """(B, T) the labels of a batch.

    Raises:
        InputError: if it lacks one, or one is neither 0 nor 1.
    """
    columns = [batch.labels, *(_extra(batch.extras, name).astype(np.float32) for name in tasks.names[1:])]
    return np.stack(columns, axis=1)


def label_tensor(labels: Tensor, extras: Mapping[str, Tensor], tasks: Tasks) -> Tensor:
    """(B, T) float32 the labels of a batch of which labels (B,) and extras are on the device already.

    Raises:
        InputError: as `labels_of`.
    """
    return torch.stack([labels, *(_extra(extras, name).float() for name in tasks.names[1:])], dim=1)


def _extra(extras: Mapping[str, Values], name: str) -> Values:
    if name not in extras:
        others = ", ".join(extras) or "none"
        raise InputError(f"samples have no label {name!r}, which the model is to predict; further ones are: {others}")
    return extras[name]


def log_losses(logits: Tensor, labels: Tensor, tasks: Tasks | None, *, samples: int) -> Tensor:
    """The loss of n samples of a batch of `samples`: the sum of their log losses over the batch's number. Of several
    labels the weighted sum of each one's.

    Args:
        logits, labels: (n,), or with `tasks` (n, T).
    """
    if tasks is None:
        if len(logits) == samples:
            return binary_cross_entropy_with_logits(logits, labels)
        return binary_cross_entropy_with_logits(logits, labels, reduction="sum") / samples
    losses = binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=0) / samples
    return losses @ _weights(tasks, losses.dtype, losses.device)


@cache
def _weights(tasks: Tasks, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(T,) made once: to make a tensor on a GPU of what the host has waits for all work there."""
    with torch.inference_mode(False):  # it is used in training, wherever it is first asked for
        return torch.tensor(tasks.weights, dtype=dtype, device=device)


def first_label(values: Tensor) -> Tensor:
    """(B,) of (B,) or (B, T): what belongs to the first label."""
    return values if values.dim() == 1 else values[:, 0]


def start_at_base_rate(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Set the output bias of a new model to the log odds of the labels of the first 16,384 samples.

    A bias that is drawn, as DLRM's is, has to travel to the log odds first; a short run ends on the way there, with
    predictions that are too high or too low together, and each seed elsewhere. The result depends on the batches only:
    not on look-ahead, placement or ranks.

    Does nothing to a model without a method `set_output_bias(logits)`, whose argument is float32 (T,), or (1,) of one
    label; and nothing if there are no batches. Labels that are neither 0 nor 1 do not count.
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
        # half a sample of each kind more: finite where only one kind has come
        set_output_bias(torch.from_numpy(np.log((positives + 0.5) / (negatives + 0.5))).float())
