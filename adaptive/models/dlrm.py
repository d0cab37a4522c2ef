"""DLRM's dense part (Naumov et al. 2019, arXiv 1906.00091): bottom MLP, interaction, top MLP.

Letters: B samples, F features, D = `embedding_dim`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.common import ModelConfig, precision, set_last_bias
from adaptive.models.layers.dropout import DroppedReLU
from adaptive.models.layers.feature_norm import feature_norm
from adaptive.models.layers.interaction import aligned, concatenation, dot_interaction, num_dots
from adaptive.models.layers.linear import Linear


def parse_mlp(text: str, *, num_inputs: int | None = None) -> tuple[int, ...]:
    """Layer sizes of `512-256-16`, without the input size.

    With `num_inputs` the input size may stand first, as in `--arch-mlp-bot 13-512-256-16`: a first size that equals
    `num_inputs` and is not the only one is taken as the input size.

    Raises:
        ConfigError: if a size is not a positive whole number.
    """
    parts = text.strip().split("-")
    for position, part in enumerate(parts, start=1):
        if not (part.isascii() and part.isdecimal() and len(part) < 20 and int(part) > 0):
            raise ConfigError(
                f"layer sizes {text!r}: {part!r} at position {position} is not a positive whole number; "
                f"write sizes joined by dashes, such as 512-256-16"
            )
    sizes = tuple(int(part) for part in parts)
    return sizes[1:] if len(sizes) > 1 and sizes[0] == num_inputs else sizes


def _sizes(value: Any) -> Any:
    return parse_mlp(value) if isinstance(value, str) else value


MOST_LAYERS, WIDEST, MOST_WEIGHTS = 64, 2**16, 2**31  # of an MLP: what nobody trains is a mistake

LayerSizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=WIDEST)], ...],
    Field(min_length=1, max_length=MOST_LAYERS),
    BeforeValidator(_sizes),
]


class TowerConfig(ModelConfig):
    """Shape of a DLRM whose top MLP may end in any number of outputs: a model of its own, or a part of another."""

    bottom_mlp: LayerSizes = Field(
        default=(64, 16),
        description="layer sizes of the bottom MLP without its input; the last is embedding_dim; default 64-<that>",
    )
    top_mlp: LayerSizes = Field(
        default=(128, 64, 1), description="layer sizes of the top MLP without its input; the last is 1"
    )
    interaction: Literal["dot", "cat"] = Field(
        default="dot", description="dot: pairwise dot products; cat: vectors side by side"
    )
    interaction_self: bool = Field(default=False, description="dot: also each vector's product with itself")

    @model_validator(mode="before")
    @classmethod
    def _bottom_follows_width(cls, given: Any) -> Any:
        """So that a width alone is a setting that fits."""
        if isinstance(given, dict) and "bottom_mlp" not in given and isinstance(given.get("embedding_dim"), int):
            return {**given, "bottom_mlp": (*cls.model_fields["bottom_mlp"].default[:-1], given["embedding_dim"])}
        return given

    @model_validator(mode="after")
    def _check_last_sizes(self) -> "TowerConfig":
        if self.bottom_mlp[-1] != self.embedding_dim:
            raise ValueError(
                f"bottom_mlp must end with embedding_dim = {self.embedding_dim}, found {_text(self.bottom_mlp)}"
            )
        for name, sizes in (("bottom_mlp", self.bottom_mlp), ("top_mlp", self.top_mlp)):
            if sum(one * other for one, other in pairwise(sizes)) > MOST_WEIGHTS:
                raise ValueError(f"{name} must have at most {MOST_WEIGHTS:,} weights, found {_text(sizes)}")
        if self.interaction == "cat" and self.interaction_self:
            raise ValueError("interaction_self needs interaction = dot, found cat")
        return self


class DLRMConfig(TowerConfig):
    """Shape of a DLRM."""

    @model_validator(mode="after")
    def _check_logit(self) -> "DLRMConfig":
        if self.top_mlp[-1] != 1:
            raise ValueError(f"top_mlp must end with 1 (the logit), found {_text(self.top_mlp)}")
        return self


class DLRM(nn.Module):
    """Dense inputs and pooled embedding vectors to logits, or to the vectors that another model goes on with.

    The top MLP's input is padded with zero columns to a multiple of 16. Their weights start at zero and get zero
    gradients, and all other weights are those of the model without padding.

    Args:
        num_dense: dense inputs of a sample; 0: no bottom MLP, the features interact among themselves.
        num_features: F >= 1.
        seed: of the initial weights; torch's global generator is neither read nor advanced.

    Raises:
        ConfigError: if nothing would reach the top MLP (one feature, no dense inputs, dots without `interaction_self`).
    """

    def __init__(self, config: TowerConfig, *, num_dense: int, num_features: int, seed: int = 0) -> None:
        super().__init__()
        assert num_dense >= 0
        assert num_features >= 1
        self.config = config
        self.num_dense, self.num_features = num_dense, num_features
        generator = torch.Generator().manual_seed(seed)
        self.bottom: nn.Sequential | None = None
        if num_dense:
            sizes = (num_dense, *config.bottom_mlp)
            self.bottom = nn.Sequential(*layers(sizes, generator, dropout=config.dropout), nn.ReLU(inplace=True))
        self.feature_norm = feature_norm(config.feature_norm, num_features=num_features, width=config.embedding_dim)
        width = self._top_inputs()
        sizes = (width, *config.top_mlp)
        self.top = nn.Sequential(*layers(sizes, generator, columns=aligned(width), dropout=config.dropout))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits (B,) float32 of `dense` (B, num_dense) and `pooled` (B, F, D), both float32.

        A model converted with `.double()` takes and returns float64.

        Raises:
            ValueError: if a shape does not fit the model.
        """
        return self.outputs(dense, pooled).squeeze(1)

    def set_output_bias(self, logits: Tensor) -> None:
        """Start at log odds (1,); see `adaptive.models.tasks.start_at_base_rate`."""
        set_last_bias(self.top, logits)

    def outputs(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """What the top MLP gives, (B, its last size), of the same arguments."""
        self._check_shapes(dense, pooled)
        pooled = self.feature_norm(pooled)
        with self.mlp_precision(dense):
            bottom = pooled.new_empty((len(pooled), 0)) if self.bottom is None else self.bottom(dense)
        joined = self._interact(bottom.to(pooled.dtype), pooled)
        with self.mlp_precision(dense):
            outputs: Tensor = self.top(joined)
        return outputs.to(pooled.dtype)

    def _interact(self, bottom: Tensor, pooled: Tensor) -> Tensor:
        if self.config.interaction == "cat":
            return concatenation(bottom, pooled)
        return dot_interaction(bottom, pooled, include_self=self.config.interaction_self)

    def mlp_precision(self, dense: Tensor) -> AbstractContextManager[object]:
        """In which MLPs are computed in bfloat16, if the settings say so."""
        return precision(dense, self.config)

    def _top_inputs(self) -> int:
        """Columns of the interaction's output before padding."""
        bottom_width = self.config.embedding_dim if self.num_dense else 0
        if self.config.interaction == "cat":
            return bottom_width + self.num_features * self.config.embedding_dim
        num_vectors = self.num_features + (bottom_width > 0)
        width = bottom_width + num_dots(num_vectors, include_self=self.config.interaction_self)
        if width == 0:
            raise ConfigError(
                "interaction = dot needs two vectors, found one feature and no dense inputs; "
                "set interaction = cat or interaction_self = true"
            )
        return width

    def _check_shapes(self, dense: Tensor, pooled: Tensor) -> None:
        num_samples = len(pooled)
        needed = (num_samples, self.num_dense), (num_samples, self.num_features, self.config.embedding_dim)
        found = tuple(dense.shape), tuple(pooled.shape)
        if found != needed:
            raise ValueError(f"DLRM needs dense {needed[0]} and pooled {needed[1]}, found {found[0]} and {found[1]}")


def layers(
    sizes: Sequence[int], generator: torch.Generator, *, columns: int | None = None, dropout: float = 0.0
) -> list[nn.Module]:
    """Linear layers with ReLU between them.

    Args:
        columns: input columns of the first layer, with padding.
        dropout: share of the values between two layers that a step sets to 0.
    """
    found: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes):
        if found:
            found.append(activation(dropout))
        found.append(linear(num_inputs, num_outputs, generator, columns=None if found else columns))
    return found


def activation(dropout: float) -> nn.Module:
    """What stands behind a hidden layer. One module with or without dropout, so that weights keep their names."""
    return DroppedReLU(dropout) if dropout else nn.ReLU(inplace=True)


def linear(
    num_inputs: int, num_outputs: int, generator: torch.Generator, *, columns: int | None = None, bias: bool = True
) -> nn.Linear:
    """A layer with DLRM's initial values: weights of deviation sqrt(2 / (in + out)), biases of sqrt(1 / out)."""
    layer = Linear(columns or num_inputs, num_outputs, bias=bias, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.zero_()
        weight = layer.weight.new_empty((num_outputs, num_inputs))
        layer.weight[:, :num_inputs] = weight.normal_(0, (2 / (num_inputs + num_outputs)) ** 0.5, generator=generator)
        if bias:
            layer.bias.normal_(0, (1 / num_outputs) ** 0.5, generator=generator)
    return layer


def _text(sizes: Sequence[int]) -> str:
    return "-".join(map(str, sizes))
