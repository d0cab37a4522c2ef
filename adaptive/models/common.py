"""What models have in common: settings, what they are told of the data, and the checks of their arguments."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor, nn

from adaptive.config import Config
from adaptive.models.layers.feature_norm import Kind, feature_norm


class ModelConfig(Config):
    """Settings of every model."""

    embedding_dim: int = Field(default=16, ge=1, le=4096, description="values in an embedding vector")
    widths: dict[str, int] = Field(
        default_factory=dict,
        description="table -> width of its rows, where it is not embedding_dim; a learnt matrix of the table takes its "
        "vectors to embedding_dim",
    )
    feature_norm: Kind = Field(
        default="none",
        description="normalisation of pooled vectors; batch: over the samples of a batch, running statistics in "
        "evaluation; layer: over the width of each vector",
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the values behind each hidden layer that a step sets to 0; follows from seed and step",
    )
    bf16: bool = Field(
        default=False,
        description="compute matrix products of the dense part in bfloat16; weights and logits stay float32",
    )


@dataclass(frozen=True)
class Inputs:
    """What a model is told of the samples.

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


class CheckedModel(nn.Module):
    """Dense inputs and pooled vectors to logits: shapes are checked and vectors normalised, `logits` does the rest.

    Models that derive from this take `config`, `inputs` and `seed`, from which their initial weights follow: torch's
    global generator is neither read nor advanced.
    """

    def __init__(self, config: ModelConfig, inputs: Inputs) -> None:
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
        self._check_shapes(dense, pooled)
        vectors = self.feature_norm(pooled)
        with precision(dense, self.settings):
            found = self.logits(dense, vectors)
        return found.to(pooled.dtype)

    def logits(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """As `forward`, of normalised vectors and arguments that fit."""
        raise NotImplementedError

    def _check_shapes(self, dense: Tensor, pooled: Tensor) -> None:
        samples = len(pooled)
        needed = (samples, self.inputs.num_dense), (samples, self.inputs.num_features, self.embedding_dim)
        found = tuple(dense.shape), tuple(pooled.shape)
        if found != needed:
            name = type(self).__name__
            raise ValueError(f"{name} needs dense {needed[0]} and pooled {needed[1]}, found {found[0]} and {found[1]}")


def precision(dense: Tensor, config: ModelConfig) -> AbstractContextManager[object]:
    """In which layers are computed in bfloat16, if the settings say so."""
    return torch.autocast(dense.device.type, dtype=torch.bfloat16) if config.bf16 else nullcontext()


@torch.no_grad()
def set_last_bias(mlp: nn.Sequential, values: Tensor) -> None:
    """Overwrite the bias of an MLP's last layer."""
    last = mlp[-1]
    assert isinstance(last, nn.Linear)
    last.bias.copy_(values)


def side_by_side(dense: Tensor, pooled: Tensor) -> Tensor:
    """`[dense | pooled vectors]`, (B, num_dense + F * D)."""
    return torch.cat([dense, pooled.flatten(1)], dim=1)
