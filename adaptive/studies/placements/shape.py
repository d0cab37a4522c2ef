"""`Shape`: what of a model decides how long its step takes; those of papers come with the package."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from adaptive.config import Config
from adaptive.errors import ConfigError
from adaptive.models.model_settings import MOST_LAYERS, WIDEST, parse_mlp
from adaptive.storage.presets import checked, load_named, names_in

SHAPES: Final = Path(__file__).parent / "shapes"
STATE_BYTES: Final = 4  # of a row under row-wise Adagrad, as in DLRM's practice


class Shape(Config):
    """A DLRM and its tables."""

    name: str
    source: str = ""
    ours: str = Field(default="", description="what the source does not say")
    num_dense: int = Field(ge=0, le=2**20)
    num_sparse: int = Field(ge=1, le=2**16, description="tables, each with a feature")
    lookups: int = Field(ge=1, le=2**20, description="of a bag")
    hash_size: int = Field(ge=1, le=2**48, description="rows of a table, on average")
    width: int = Field(ge=1, le=WIDEST, description="values of a row")
    bottom_mlp: str
    top_mlp: str
    batch_size: int = Field(ge=1, le=2**24, description="samples of a step, on all devices together")

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
        """Of the MLPs' matrices."""
        bottom = (self.num_dense, *parse_mlp(self.bottom_mlp)) if self.num_dense else ()
        vectors = self.num_sparse + bool(self.num_dense)
        inputs = vectors * (vectors - 1) // 2 + (self.width if self.num_dense else 0)
        top = (inputs, *parse_mlp(self.top_mlp))
        return sum(a * b for sizes in (bottom, top) for a, b in pairwise(sizes))

    @property
    def flops_per_sample(self) -> float:
        """Of a training step: two a weight and product forward, twice that backward."""
        vectors = self.num_sparse + bool(self.num_dense)
        return 6.0 * (self.weights + vectors * (vectors - 1) / 2 * self.width)

    @property
    def dense_bytes(self) -> int:
        return 4 * self.weights


def shape_names() -> list[str]:
    """The shapes that come with the package."""
    return names_in(SHAPES)


def load_shape(name: str) -> Shape:
    """A preset by name, or a file by path.

    Raises:
        ConfigError: if there is none, or it does not say what is needed.
    """
    return load_named(Shape, name, SHAPES, "preset")


SWEPT: Final = ("num_dense", "num_sparse", "hash_size", "lookups", "mlp", "batch_size")


def parse_sweep(text: str) -> tuple[str, list[str]]:
    """Key and values of `num_dense=64,256`, `mlp=64^2,1024^4`.

    Raises:
        ConfigError: for another key, or no values.
    """
    key, _, rest = text.partition("=")
    values = [value.strip() for value in rest.split(",") if value.strip()]
    if key not in SWEPT or not values:
        raise ConfigError(f"--sweep {text!r}: needed KEY=VALUE,VALUE,... with a key of {', '.join(SWEPT)}")
    return key, values


def swept_settings(point: Mapping[str, str], tables: int, width: int) -> list[str]:
    """`KEY=VALUE` settings with which the built-in stream and its model have a point's shape.

    Args:
        point: swept keys and their values.
        tables: of the stream where the point does not say.
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
    """Both towers of `512^3`: three layers of 512 before their last ones.

    Raises:
        ValueError: if it is no such text, or says what no MLP has.
    """
    size, power, depth = text.partition("^")
    number = int(depth) if power else 1
    if not (1 <= int(size) <= WIDEST and 1 <= number <= MOST_LAYERS):
        raise ValueError(text)
    layers = "-".join([str(int(size))] * number)
    return {"bottom_mlp": f"{layers}-{width}", "top_mlp": f"{layers}-1"}


def with_values(shape: Shape, keys: Sequence[str], values: Sequence[str]) -> Shape:
    """The shape with other values; `mlp=512^3` gives both MLPs three layers of 512 before their last ones.

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
            meant = f"such as 512^3, at most {MOST_LAYERS} layers of {WIDEST}" if key == "mlp" else "a whole number"
            raise ConfigError(f"{key}={value!r}: needed {meant}") from error
    return checked(
        Shape,
        shape.model_dump() | changes,
        f"shape {shape.name} with {', '.join(map('='.join, zip(keys, values, strict=True)))}",
    )
