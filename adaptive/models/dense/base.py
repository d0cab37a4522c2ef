"""Common parts of dense models: facts about samples, argument checks, normalization.

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
MOMENTUM: Final = 0.1  # weight of a new batch in the running statistics, after the first ten


@dataclass(frozen=True)
class Inputs:
    """The facts about samples that a model depends on.

    Attributes:
        tables: (F,) the table of each feature.
        num_dense: dense inputs of a sample.
        dense_names: (num_dense,) their names; empty if they have none.
        steps: steps of a sample that is a sequence, else 1.
        labels: names of the labels if samples have several; reports are about the first.
        widths: table -> width of its rows, for tables whose width the data set.
        row_dtypes: table -> float32 or bfloat16, for tables whose rows the data set.
        rows: (F,) rows of the table of each feature; empty if the model needs none.
        sequences: position of a feature -> the most ids of a sample, for features whose ids are steps of a sequence.
    """

    tables: tuple[str, ...]
    num_dense: int
    dense_names: tuple[str, ...] = ()
    steps: int = 1
    labels: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)
    sequences: Mapping[int, int] = field(default_factory=dict)
    rows: tuple[int, ...] = ()
    row_dtypes: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_features(self) -> int:
        return len(self.tables)

    def width(self, embedding_dim: int) -> int:
        """Return the values of a sample: dense inputs, and a vector for each feature."""
        return self.num_dense + self.num_features * embedding_dim


@dataclass(frozen=True)
class Tasks:
    """Names of T >= 2 labels, and the weight of each label's loss."""

    names: tuple[str, ...]
    weights: tuple[float, ...]


class CheckedModel(nn.Module):
    """Base of models: checks shapes and normalizes vectors; `logits` computes the logits.

    Subclasses take `config`, `inputs` and `seed`. Initial weights follow from the seed: torch's global generator is
    neither read nor advanced.
    """

    def __init__(self, config: "ModelConfig", inputs: Inputs) -> None:
        super().__init__()
        self.inputs, self.settings = inputs, config
        self.embedding_dim = config.embedding_dim
        self.feature_norm = feature_norm(
            config.feature_norm, num_features=inputs.num_features, width=config.embedding_dim
        )

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return logits (B,), or (B, T) for T labels.

        `dense` is (B, num_dense), `pooled` is (B, F, embedding_dim). A model converted with `.double()` takes and
        returns float64.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        check_shapes(self, dense, pooled, self.inputs.num_dense, self.inputs.num_features, self.embedding_dim)
        vectors = self.feature_norm(pooled)
        with precision(dense, self.settings):
            logits = self.logits(dense, vectors)
        return logits.to(pooled.dtype)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return the logits of checked arguments with normalized vectors; see `forward`."""
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
    """Return a context that computes layers in bfloat16, if the settings say so."""
    return torch.autocast(dense.device.type, dtype=torch.bfloat16) if config.bf16 else nullcontext()


def side_by_side(dense: Tensor, pooled: Tensor) -> Tensor:
    """Return `[dense | pooled vectors]`, (B, num_dense + F * D)."""
    return torch.cat([dense, pooled.flatten(1)], dim=1)


# -- normalization of pooled vectors, between the embeddings and the interaction (`model.feature_norm`) ---------------
# Summaries of Slipstream say that feature normalization regains the accuracy that skipping costs. They do not say which
# normalization it uses.


def feature_norm(kind: str, *, num_features: int, width: int) -> nn.Module:
    """Return a module from (B, F, D) to (B, F, D); the identity for `none`."""
    if kind == "none":
        return nn.Identity()
    return (BatchFeatureNorm if kind == "batch" else LayerFeatureNorm)(num_features, width)


class LayerFeatureNorm(nn.Module):
    """Normalization of each vector over its width, then a learned scale and shift.

    `scale` and `shift` are (F, D), initially 1 and 0. Samples do not influence each other, so it is the same for parts
    of a batch and in evaluation.
    """

    def __init__(self, num_features: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_features, width))
        self.shift = nn.Parameter(torch.zeros(num_features, width))

    def forward(self, pooled: Tensor) -> Tensor:
        """Normalize (B, F, D)."""
        return layer_norm(pooled, pooled.shape[-1:], eps=EPSILON) * self.scale + self.shift


class BatchFeatureNorm(nn.Module):
    """Normalization of each value over the samples, then a learned scale and shift.

    Training uses the statistics of the batch. Evaluation uses the running `mean` and `variance` (F, D): means over the
    first ten batches, then a weight of a tenth for each new batch. Unlike torch's they do not start at 0 and 1: the
    variance of new rows is a millionth, which a 1 would hide for a hundred batches. A batch of one sample has no
    variance: training normalizes it by the running statistics, and does not add it to them.
    """

    mixes_samples = True
    """True: the output of a sample depends on its batch, so the trainer does not split batches."""

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
        """Normalize (B, F, D); in training, also update the running statistics."""
        if not self.training or pooled.shape[0] == 1:
            return self._normalized(pooled, self.mean.flatten(), self.variance.flatten(), by_batch=False)
        mean, variance = (torch.zeros_like(running).flatten() for running in (self.mean, self.variance))
        normalized = self._normalized(pooled, mean, variance, by_batch=True)
        with torch.no_grad():
            self.batches += 1
            weight = self.batches.to(mean.dtype).reciprocal().clamp(min=MOMENTUM)  # on the device, without a wait
            self.mean.lerp_(mean.view_as(self.mean), weight)
            self.variance.lerp_(variance.view_as(self.variance), weight)
        return normalized

    def _normalized(self, pooled: Tensor, mean: Tensor, variance: Tensor, *, by_batch: bool) -> Tensor:
        """Normalize by `mean` and `variance` (F * D,), or by the batch and write its statistics."""
        scale, shift = self.scale.flatten(), self.shift.flatten()
        flat = batch_norm(pooled.flatten(1), mean, variance, scale, shift, by_batch, momentum=1.0, eps=EPSILON)
        return flat.view_as(pooled)
