"""Common parts of dense models: facts about samples, argument checks.

Letters: B samples, F features, D width of an embedding vector.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from adaptive.models.model_settings import ModelConfig


@dataclass(frozen=True)
class Inputs:
    """The facts about samples that a model depends on.

    Attributes:
        tables: (F,) the table of each feature.
        num_dense: dense inputs of a sample.
        dense_names: (num_dense,) their names; empty if they have none.
        steps: steps of a sample that is a sequence, else 1.
        sequences: position of a feature -> the most ids of a sample, for features whose ids are steps of a sequence.
    """

    tables: tuple[str, ...]
    num_dense: int
    dense_names: tuple[str, ...] = ()
    steps: int = 1
    sequences: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_features(self) -> int:
        return len(self.tables)

    def width(self, embedding_dim: int) -> int:
        """Return the values of a sample: dense inputs, and a vector for each feature."""
        return self.num_dense + self.num_features * embedding_dim


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
