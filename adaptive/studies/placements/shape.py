"""`Shape`: the sizes of a model that determine its step time."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from adaptive.config import Config
from adaptive.errors import ConfigError
from adaptive.models.model_settings import MOST_LAYERS, WIDEST, parse_mlp
from adaptive.storage.presets import checked, load_named

SHAPES: Final = Path(__file__).parent / "shapes"
STATE_BYTES: Final = 4  # of a row under row-wise Adagrad, which DLRM uses


class Shape(Config):
    """The sizes of a DLRM and its tables."""

    name: str
    source: str = ""
    ours: str = Field(default="", description="what we added to the source")
    num_dense: int = Field(ge=0, le=2**20)
    num_sparse: int = Field(ge=1, le=2**16, description="number of tables, each with one feature")
    lookups: int = Field(ge=1, le=2**20, description="lookups per bag")
    hash_size: int = Field(ge=1, le=2**48, description="mean number of rows of a table")
    width: int = Field(ge=1, le=WIDEST, description="values per row")
    bottom_mlp: str
    top_mlp: str
    batch_size: int = Field(ge=1, le=2**24, description="samples per step, on all devices together")

    @property
    def value_bytes(self) -> int:
        return 4 * self.width

    @property
    def row_bytes(self) -> int:
        return self.value_bytes + STATE_BYTES

    @property
    def table_bytes(self) -> int:
        return self.num_sparse * self.hash_size * self.row_bytes

    @property
    def weights(self) -> int:
        """Number of weights of the MLPs' matrices."""
        bottom = (self.num_dense, *parse_mlp(self.bottom_mlp)) if self.num_dense else ()
        vectors = self.num_sparse + bool(self.num_dense)
        inputs = vectors * (vectors - 1) // 2 + (self.width if self.num_dense else 0)
        top = (inputs, *parse_mlp(self.top_mlp))
        return sum(a * b for sizes in (bottom, top) for a, b in pairwise(sizes))

    @property
    def flops_per_sample(self) -> float:
        """Operations of a training step: two per weight and product forward, twice that backward."""
        vectors = self.num_sparse + bool(self.num_dense)
        return 6.0 * (self.weights + vectors * (vectors - 1) / 2 * self.width)

    @property
    def dense_bytes(self) -> int:
        return 4 * self.weights


def load_shape(name: str) -> Shape:
    """Load a preset by name, or a file by path.

    Raises:
        ConfigError: if there is no such preset or file, or it is incomplete.
    """
    return load_named(Shape, name, SHAPES, "preset")


SWEPT: Final = ("num_dense", "num_sparse", "hash_size", "lookups", "mlp", "batch_size")


def parse_sweep(text: str) -> tuple[str, list[str]]:
    """Parse `num_dense=64,256` or `mlp=64^2,1024^4` into a key and its values.

    Raises:
        ConfigError: for another key, or no values.
    """
    key, _, rest = text.partition("=")
    values = [value.strip() for value in rest.split(",") if value.strip()]
    if key not in SWEPT or not values:
        raise ConfigError(f"--sweep: expected KEY=VALUE,VALUE with a key of {', '.join(SWEPT)}, got {text!r}")
    return key, values


def swept_settings(point: Mapping[str, str], tables: int, width: int) -> list[str]:
    """Return settings that give the built-in stream and model the shape of a point.

    Args:
        point: swept keys and their values.
        tables: number of tables, unless the point says so.
        width: of a row.
    """
    number = int(point.get("num_sparse", tables))
    sets = []
    for key, value in point.items():
        match key:
            case "batch_size":
                sets.append(f"batch_size={value}")
            case "mlp":
                sets += [f"model.{tower}={mlp}" for tower, mlp in mlps(value, width).items()]
            case "hash_size":
                sets.append(f"data.synthetic.rows={int(value) * number}")
            case _:
                name = {"num_sparse": "tables"}.get(key, key)
                sets.append(f"data.synthetic.{name}={value}")
    return sets


def mlps(text: str, width: int) -> dict[str, str]:
    """Return both towers of `512^3`: three layers of 512 before their last ones.

    Raises:
        ValueError: if the text has another form, or the sizes are out of range.
    """
    size, power, depth = text.partition("^")
    number = int(depth) if power else 1
    if not (1 <= int(size) <= WIDEST and 1 <= number <= MOST_LAYERS):
        raise ValueError(text)
    layers = "-".join([str(int(size))] * number)
    return {"bottom_mlp": f"{layers}-{width}", "top_mlp": f"{layers}-1"}


def with_values(shape: Shape, keys: Sequence[str], values: Sequence[str]) -> Shape:
    """Return the shape with other values; `mlp=512^3` sets both MLPs.

    Raises:
        ConfigError: for a value that is no whole number above 0.
    """
    changes: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        try:
            if key == "mlp":
                changes |= mlps(value, shape.width)
            else:
                changes[key] = int(value)
        except ValueError as error:
            expected = f"up to {MOST_LAYERS} layers of {WIDEST}, such as 512^3" if key == "mlp" else "a whole number"
            raise ConfigError(f"{key}: expected {expected}, got {value!r}") from error
    return checked(
        Shape,
        shape.model_dump() | changes,
        f"shape {shape.name} with {', '.join(map('='.join, zip(keys, values, strict=True)))}",
    )
