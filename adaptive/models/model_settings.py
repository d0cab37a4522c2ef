"""The models by name, and the settings of each (`model.NAME`). Imports no torch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from adaptive.config import Config, TableConfig
from adaptive.errors import ConfigError

MOST_LAYERS, WIDEST, MOST_WEIGHTS = 64, 2**16, 2**31  # of an MLP: larger ones are mistakes


def parse_mlp(text: str) -> tuple[int, ...]:
    """Return the layer sizes of a text such as `512-256-16`, without the input size.

    Raises:
        ConfigError: if a size is not a positive whole number.
    """
    parts = text.strip().split("-")
    for position, part in enumerate(parts, start=1):
        if not (part.isascii() and part.isdecimal() and len(part) < 20 and int(part) > 0):
            raise ConfigError(
                f"expected layer sizes joined by dashes, such as 512-256-16, got {text!r}: {part!r} at position "
                f"{position} is not a positive whole number"
            )
    return tuple(int(part) for part in parts)


LayerSizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=WIDEST)], ...],
    Field(min_length=1, max_length=MOST_LAYERS),
    BeforeValidator(lambda value: parse_mlp(value) if isinstance(value, str) else value),
]


def _text(sizes: Sequence[int]) -> str:
    return "-".join(map(str, sizes))


class RowsConfig(Config):
    """Settings of the embedding rows of every model, also user-defined ones."""

    embedding_dim: int = Field(default=16, ge=1, le=4096, description="values of an embedding vector")
    widths: dict[str, int] = Field(
        default_factory=dict,
        description="table -> width of its rows, if it is not embedding_dim; a learned matrix of the table projects "
        "its vectors to embedding_dim",
    )
    row_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="stored values of embedding rows; bfloat16 takes half the bytes (see TableConfig.dtype)",
    )
    row_dtypes: dict[str, Literal["float32", "bfloat16"]] = Field(
        default_factory=dict, description="table -> row_dtype of its rows, if it is not that of all"
    )
    row_rounding: Literal["stochastic", "nearest"] = Field(
        default="stochastic", description="how updates round rows to bfloat16 (see TableConfig.rounding)"
    )

    def format_rows(self, tables: Sequence[TableConfig]) -> tuple[TableConfig, ...]:
        """Return tables whose rows are stored as `row_dtype`, `row_dtypes` and `row_rounding` say."""
        dtypes = {table.name: self.row_dtypes.get(table.name, self.row_dtype) for table in tables}
        return tuple(
            table.model_copy(update={"dtype": dtypes[table.name], "rounding": self.row_rounding}) for table in tables
        )


class ModelConfig(RowsConfig):
    """Settings of every built-in model."""

    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the values after each hidden layer that a step sets to 0; depends on seed and step",
    )
    bf16: bool = Field(
        default=False,
        description="compute matrix products of the dense part in bfloat16; weights and logits stay float32",
    )


class TowerConfig(ModelConfig):
    """Settings of a DLRM with any number of outputs, which other models may use."""

    bottom_mlp: LayerSizes = Field(
        default=(64, 16),
        description="layer sizes of the bottom MLP without its input; the last is embedding_dim; default 64-<that>",
    )
    top_mlp: LayerSizes = Field(
        default=(128, 64, 1), description="layer sizes of the top MLP without its input; the last is 1"
    )
    interaction: Literal["dot", "cat"] = Field(
        default="dot", description="dot: pairwise dot products; cat: concatenation of the vectors"
    )

    @model_validator(mode="before")
    @classmethod
    def _bottom_follows_width(cls, values: Any) -> Any:
        """Let the default bottom MLP end with `embedding_dim`, so that a width alone works."""
        if isinstance(values, dict) and "bottom_mlp" not in values and isinstance(values.get("embedding_dim"), int):
            return {**values, "bottom_mlp": (*cls.model_fields["bottom_mlp"].default[:-1], values["embedding_dim"])}
        return values

    @model_validator(mode="after")
    def _check_last_sizes(self) -> "TowerConfig":
        if self.bottom_mlp[-1] != self.embedding_dim:
            raise ValueError(
                f"expected bottom_mlp to end with embedding_dim = {self.embedding_dim}, got {_text(self.bottom_mlp)}"
            )
        for name, sizes in (("bottom_mlp", self.bottom_mlp), ("top_mlp", self.top_mlp)):
            if sum(inputs * outputs for inputs, outputs in pairwise(sizes)) > MOST_WEIGHTS:
                raise ValueError(f"expected at most {MOST_WEIGHTS:,} weights in {name}, got {_text(sizes)}")
        return self


class DLRMConfig(TowerConfig):
    """Settings of a DLRM."""

    @model_validator(mode="after")
    def _check_logit(self) -> "DLRMConfig":
        if self.top_mlp[-1] != 1:
            raise ValueError(f"expected top_mlp to end with 1 (the logit), got {_text(self.top_mlp)}")
        return self


class DCNConfig(ModelConfig):
    """Settings of a DCN-v2: a cross network and an MLP, both on dense inputs and vectors."""

    cross_layers: int = Field(default=3, ge=1, le=64, description="layers of the cross network")
    cross_rank: int | None = Field(
        default=None, ge=1, description="rank of their matrices, as two factors; null: full matrices"
    )
    deep_mlp: LayerSizes = Field(
        default=(128, 64), description="layer sizes of the MLP next to the cross network, without its input"
    )


class DeepFMConfig(ModelConfig):
    """Settings of a DeepFM. A row is its first-order weight, followed by its factors."""

    deep_mlp: LayerSizes = Field(
        default=(128, 64), description="layer sizes of the MLP next to the pairs, without its input and its output of 1"
    )

    @model_validator(mode="after")
    def _has_factors(self) -> "DeepFMConfig":
        if self.embedding_dim < 2:
            raise ValueError("expected embedding_dim of 2 or more for deepfm (a weight and factors), got 1")
        return self


class TBSMConfig(TowerConfig):
    """Settings of a TBSM and its DLRM (`bottom_mlp`, `top_mlp`, `interaction`), as in RMC1."""

    bottom_mlp: LayerSizes = Field(
        default=(16,), description="layer sizes of the DLRM's bottom MLP without its input; the last is embedding_dim"
    )
    top_mlp: LayerSizes = Field(
        default=(15, 15), description="layer sizes of the DLRM's top MLP without its input; the last is a step's vector"
    )
    attention_mlp: LayerSizes = Field(
        default=(15, 15), description="hidden layer sizes of the attention, whose input and output are the history"
    )
    final_mlp: LayerSizes = Field(
        default=(60, 1), description="layer sizes of the MLP on history and candidate, without its input; the last is 1"
    )

    @model_validator(mode="after")
    def _check_logit(self) -> "TBSMConfig":
        if self.final_mlp[-1] != 1:
            raise ValueError(f"expected final_mlp to end with 1 (the logit), got {_text(self.final_mlp)}")
        return self


class DINConfig(ModelConfig):
    """Settings of a DIN, which attends to sequences."""

    deep_mlp: LayerSizes = Field(
        default=(128, 64), description="layer sizes of the MLP that judges, without its input and its output of 1"
    )
    attention_mlp: LayerSizes = Field(
        default=(32, 16), description="hidden layer sizes of the MLP that weights a step of a sequence"
    )


OPTIONS: Final[dict[str, type[ModelConfig]]] = {
    "dlrm": DLRMConfig,
    "dcn": DCNConfig,
    "deepfm": DeepFMConfig,
    "tbsm": TBSMConfig,
    "din": DINConfig,
}
BUILT_IN_DATA: Final[dict[str, dict[str, str | int]]] = {
    **{model: {"data": "sequences"} for model in ("tbsm", "din")},
}  # default settings of the data for some models
