"""What dense models have in common: what they learn of the samples, normalisation of vectors, checks of arguments.

Letters: B samples, F features, D width of an embedding vector, T labels.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, layer_norm

if TYPE_CHECKING:
    from adaptive.models.model_settings import ModelConfig

EPSILON: Final = 1e-5  # added to variances
MOMENTUM: Final = 0.1  # weight of a new batch in the running statistics, once ten were seen


@dataclass(frozen=True)
class Inputs:
    """What a model learns of the samples.

    Attributes:
        tables: (F,) the table of each feature.
        num_dense: dense inputs of a sample.
        dense_names: (num_dense,) their names; empty where they have none.
        steps: of a sample that is a sequence.
        labels: names of the labels, where samples have several; the first is the one that is reported.
        widths: table -> width of its rows, where the data say so.
    """

    tables: tuple[str, ...]
    num_dense: int
    dense_names: tuple[str, ...] = ()
    steps: int = 1
    labels: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_features(self) -> int:
        return len(self.tables)

    def width(self, embedding_dim: int) -> int:
        """Values of a sample: dense inputs, and a vector of each feature."""
        return self.num_dense + self.num_features * embedding_dim


@dataclass(frozen=True)
class Tasks:
    """Names of T >= 2 labels, and the weight of the loss of each."""

    names: tuple[str, ...]
    weights: tuple[float, ...]


class CheckedModel(nn.Module):
    """Dense inputs and pooled vectors to logits: shapes are checked and vectors normalised, `logits` does the rest.

    Models that derive from this take `config`, `inputs` and `seed`, from which their initial weights follow: torch's
    global generator is neither read nor advanced.
    """

    def __init__(self, config: "ModelConfig", inputs: Inputs) -> None:
        super().__init__()
        self.inputs, self.settings = inputs, config
        self.embedding_dim = config.embedding_dim
        self.feature_norm = feature_norm(
            config.feature_norm, num_features=inputs.num_features, width=config.embedding_dim
        )

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits (B,), or of a model of T labels (B, T), of `dense` (B, num_dense) and `pooled` (B, F, embedding_dim).

        A model converted with `.double()` takes and returns float64.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        check_shapes(self, dense, pooled, self.inputs.num_dense, self.inputs.num_features, self.embedding_dim)
        vectors = self.feature_norm(pooled)
        with precision(dense, self.settings):
            logits = self.logits(dense, vectors)
        return logits.to(pooled.dtype)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """As `forward`, of normalised vectors and arguments that fit."""
        raise NotImplementedError


def check_shapes(
    model: nn.Module, dense: Tensor, pooled: Tensor, num_dense: int, num_features: int, width: int
) -> None:
    """Raise ValueError unless `dense` is (B, num_dense) and `pooled` (B, num_features, width)."""
    samples = pooled.shape[0]
    expected = (samples, num_dense), (samples, num_features, width)
    shapes = tuple(dense.shape), tuple(pooled.shape)
    if shapes != expected:
        raise ValueError(
            f"{type(model).__name__}: expected dense {expected[0]} and pooled {expected[1]}, "
            f"got {shapes[0]} and {shapes[1]}"
        )


def precision(dense: Tensor, config: "ModelConfig") -> AbstractContextManager[object]:
    """In which layers are computed in bfloat16, if the settings say so."""
    return torch.autocast(dense.device.type, dtype=torch.bfloat16) if config.bf16 else nullcontext()


def side_by_side(dense: Tensor, pooled: Tensor) -> Tensor:
    """`[dense | pooled vectors]`, (B, num_dense + F * D)."""
    return torch.cat([dense, pooled.flatten(1)], dim=1)


# -- normalisation of pooled vectors, between the embeddings and the interaction (`model.feature_norm`) ---------------
# Slipstream's summaries name feature normalisation as what wins accuracy back that skipping costs. Which of the two
# here the paper uses, or whether it is another, is not known to us: its body could not be read.


def feature_norm(kind: str, *, num_features: int, width: int) -> nn.Module:
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
        if not self.training or pooled.shape[0] == 1:
            return self._normalised(pooled, self.mean.flatten(), self.variance.flatten(), by_batch=False)
        mean, variance = (torch.zeros_like(running).flatten() for running in (self.mean, self.variance))
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
