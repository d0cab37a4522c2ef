"""Normalisation of pooled vectors, between the embeddings and the interaction (`model.feature_norm`).

Slipstream's summaries name feature normalisation as what wins accuracy back that skipping costs. Which of the two here
the paper uses, or whether it is another, is not known to us: its body could not be read.

Letters: B samples, F features, D width of a vector.
"""

from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, layer_norm

Kind = Literal["none", "batch", "layer"]

EPSILON: Final = 1e-5  # added to variances
MOMENTUM: Final = 0.1  # weight of a new batch in the running statistics, once ten were seen


def feature_norm(kind: Kind, *, num_features: int, width: int) -> nn.Module:
    """A module from (B, F, D) to (B, F, D); of `none` it has no weights and hands on what it is given."""
    if kind == "none":
        return nn.Identity()
    return (BatchFeatureNorm if kind == "batch" else LayerFeatureNorm)(num_features, width)


class LayerFeatureNorm(nn.Module):
    """Each vector by itself: less its mean over the width, over its deviation; then scaled and shifted.

    `scale` and `shift` are (F, D), learnt, at first 1 and 0. No sample influences another, so parts of a batch and
    evaluation need no thought.
    """

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_features, width))
        self.shift = nn.Parameter(torch.zeros(num_features, width))

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, F, D) of (B, F, D)."""
        return layer_norm(pooled, pooled.shape[-1:], eps=EPSILON) * self.scale + self.shift


class BatchFeatureNorm(nn.Module):
    """Each value of each feature over the samples: less their mean, over their deviation; then scaled and shifted.

    In training the statistics are those of the batch. Evaluation uses running ones, `mean` and `variance` (F, D): means
    over the first ten batches, from then on a tenth of each new batch. Unlike torch's they do not begin at 0 and 1:
    the variance of fresh rows is a millionth, which a 1 would hide for a hundred batches. A batch of one sample, which
    has no variance, is normalised by the running statistics in training, too, and is no part of them.
    """

    mixes_samples = True
    """What a sample gives depends on the others of its batch: the trainer hands over whole batches, never parts."""

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_features, width))
        self.shift = nn.Parameter(torch.zeros(num_features, width))
        self.register_buffer("mean", torch.zeros(num_features, width))
        self.register_buffer("variance", torch.ones(num_features, width))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))  # in the running statistics

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, F, D) of (B, F, D). In training mode the batch enters the running statistics."""
        if not self.training or len(pooled) == 1:
            return self._normalised(pooled, self.mean.flatten(), self.variance.flatten(), by_batch=False)
        mean, variance = (torch.zeros_like(known).flatten() for known in (self.mean, self.variance))
        normalised = self._normalised(pooled, mean, variance, by_batch=True)
        with torch.no_grad():
            self.batches += 1
            weight = self.batches.to(mean.dtype).reciprocal().clamp(min=MOMENTUM)  # on the device: nobody waits
            self.mean.lerp_(mean.view_as(self.mean), weight)
            self.variance.lerp_(variance.view_as(self.variance), weight)
        return normalised

    def _normalised(self, pooled: Tensor, mean: Tensor, variance: Tensor, *, by_batch: bool) -> Tensor:
        """`by_batch`: `mean` and `variance` (F * D,) are written, those of the batch; or else they are used."""
        scale, shift = self.scale.flatten(), self.shift.flatten()
        flat = batch_norm(pooled.flatten(1), mean, variance, scale, shift, by_batch, momentum=1.0, eps=EPSILON)
        return flat.view_as(pooled)
