"""What lies in the folder of a prepared data set.

    prepared.json        what there is: features, tables, files that the samples came from; `Manifest`
    train.bin            samples in blocks of up to 65,536, each with all columns one after another
    train.index.npy      a row per block: where it begins, its bytes, samples, checksum, look-ups of each feature
    evaluation.bin, evaluation.index.npy     where there is an evaluation part
    vocabulary/          of categories that have rows by a fitted vocabulary
    rejects.jsonl        lines that were bad

Letters: n samples of a block, D dense inputs, F features. A block has, each from a multiple of 64 bytes on: labels
float32 (n,), of several one after another; dense float32 (n, D); where samples come from, if known: file uint32 (n,),
line int64 (n,); then for every feature its ids, in the smallest unsigned type that holds the table's last row: (n,)
where each sample has one look-up, else behind uint32 (n,), where the look-ups of each sample end.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive.config import Config
from adaptive.data.rows.data_files import load_signed
from adaptive.errors import InputError

MANIFEST: Final = "prepared.json"
FORMAT: Final = 1
AGAIN: Final = "prepare the data again"
ALIGNMENT: Final = 64
MOST_ROWS: Final = 1 << 16
_MOST_VALUES: Final = 1 << 24  # of a block that is being written, so that it stays within 128 MiB
_MOST_MANIFEST: Final = 1 << 28  # bytes

# Columns of an index, before those of the features: look-ups of a feature, or SINGLE.
OFFSET, SIZE, ROWS, CHECKSUM, FIRST_FEATURE = range(5)
SINGLE: Final = -1  # every sample has one look-up

Index = NDArray[np.int64]


class StoredFeature(Config):
    """A feature, the rows of its table, and the table's name."""

    name: str
    rows: int = Field(ge=1, le=2**41)
    table: str


class StoredPart(Config):
    """Samples of one part, and what its index is to be."""

    samples: int = Field(ge=0)
    bytes: int = Field(ge=0, description="of the file of blocks")
    blocks: int = Field(ge=0)
    index_bytes: int = Field(ge=0)
    index_sha256: str


class Manifest(Config):
    """The content of prepared.json."""

    format: int
    features: tuple[StoredFeature, ...]
    num_dense: int = Field(ge=0)
    steps: int = Field(default=1, ge=1)
    labels: tuple[str, ...] = Field(default=(), description="names, where samples have several labels")
    widths: dict[str, Annotated[int, Field(ge=1, le=4096)]] = Field(
        default_factory=dict, description="table -> width of its rows, where the schema gave one"
    )
    files: tuple[str, ...] | None = Field(description="names for the origin of samples; null: not known")
    train: StoredPart
    evaluation: StoredPart | None
    rejects: dict[str, int]
    data: str
    fingerprint: dict[str, object]


def id_type(rows: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds the rows 0 to `rows` - 1."""
    return next(np.dtype(kind) for kind in ("u1", "u2", "u4", "u8") if rows <= 2 ** (8 * np.dtype(kind).itemsize))


def block_samples(values: int) -> int:
    """Samples of a block, if each has so many dense inputs and look-ups."""
    return max(1024, min(MOST_ROWS, _MOST_VALUES // max(values, 1)))


def load_manifest(folder: Path) -> Manifest:
    """The content of prepared.json in a folder.

    Raises:
        InputError: if it is missing, damaged, or of another version.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise InputError(f"{folder}: no prepared data here, {MANIFEST} is missing; make them: adaptive-train prepare")
    return load_signed(path, Manifest, FORMAT, advice=AGAIN, error=InputError, most=_MOST_MANIFEST)


@dataclass(frozen=True)
class Section:
    """One array of a block: where it begins in the block, its type and number of values."""

    start: int
    dtype: np.dtype[Any]
    count: int

    def of(self, block: NDArray[np.uint8]) -> NDArray[Any]:
        return block[self.start : self.start + self.count * self.dtype.itemsize].view(self.dtype)


@dataclass(frozen=True)
class BlockLayout:
    """Where the arrays of a block lie. `ends[f]` is None where every sample has one look-up."""

    labels: Section
    dense: Section
    origin: tuple[Section, Section] | None
    ends: tuple[Section | None, ...]
    ids: tuple[Section, ...]
    size: int

    @classmethod
    def of(cls, manifest: Manifest, samples: int, lookups: NDArray[np.int64]) -> "BlockLayout":
        """The layout of a block of so many samples. `lookups` (F,): of each feature, or SINGLE."""
        at = 0

        def section(kind: str | np.dtype[Any], count: int) -> Section:
            nonlocal at
            placed = Section(at, np.dtype(kind), count)
            at = -(-(at + count * placed.dtype.itemsize) // ALIGNMENT) * ALIGNMENT
            return placed

        labels = section("<f4", samples * max(len(manifest.labels), 1))  # label by label
        dense = section("<f4", samples * manifest.num_dense)
        origin = (section("<u4", samples), section("<i8", samples)) if manifest.files is not None else None
        ends, ids = list[Section | None](), []
        for feature, count in zip(manifest.features, lookups.tolist(), strict=True):
            ends.append(None if count == SINGLE else section("<u4", samples))
            ids.append(section(id_type(feature.rows).newbyteorder("<"), samples if count == SINGLE else count))
        return cls(labels, dense, origin, tuple(ends), tuple(ids), at)
