"""The loss of click models, and the base rate that a model starts at."""

from collections.abc import Iterable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.batch import Batch
from adaptive.errors import InputError

BASE_RATE_SAMPLES: Final = 1 << 14  # samples for the base rate, whose log odds are then accurate to about 0.1


def log_loss(logits: Tensor, labels: Tensor, *, samples: int, weights: Tensor | None = None) -> Tensor:
    """Return the loss of n samples: the sum of their log losses over the batch's `samples`.

    Args:
        logits, labels: (n,).
        samples: number of samples of the whole batch.
        weights: (n,) factor of each sample's loss; None: 1.
    """
    if weights is None and len(logits) == samples:
        return binary_cross_entropy_with_logits(logits, labels)
    return binary_cross_entropy_with_logits(logits, labels, weight=weights, reduction="sum") / samples


def start_at_base_rate(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Set the output bias of a new model to the log odds of the first 16,384 labels.

    A random bias, as DLRM's, must first move to the log odds. A short run ends before it is there, with predictions
    that are all too high or all too low, depending on the seed. The result depends on the batches only: not on
    look-ahead, placement or ranks.

    Does nothing if there are no batches, or the model has no method `set_output_bias(logits)`; its argument is float32
    (1,). Samples count by their weights; labels between 0 and 1 do not.

    Raises:
        InputError: for labels below 0 or above 1.
    """
    set_output_bias = getattr(model, "set_output_bias", None)
    if set_output_bias is None:
        return
    positives = negatives = 0.0
    samples = 0
    for batch in batches:
        _check_labels(batch.labels, batch)
        weights = batch.extras.get("weight", np.ones(batch.num_samples)).astype(np.float64)
        positives += float(weights[batch.labels == 1].sum())
        negatives += float(weights[batch.labels == 0].sum())
        samples += batch.num_samples
        if samples >= BASE_RATE_SAMPLES:
            break
    if samples:
        # add half a sample of each kind: finite even if only one kind has occurred
        set_output_bias(torch.tensor([np.log((positives + 0.5) / (negatives + 0.5))], dtype=torch.float32))


def _check_labels(labels: NDArray[np.float32], batch: Batch) -> None:
    """Raise InputError unless labels (B,) are probabilities; NaN is checked elsewhere."""
    if (bad := (labels < 0) | (labels > 1)).any():
        sample = int(bad.argmax())
        where = f"sample {sample}" if batch.origin is None else batch.origin.where(sample)
        raise InputError(f"{where}: expected a label of 0 or 1, got {labels[sample]:g}. Correct the data.")
