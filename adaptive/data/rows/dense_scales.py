"""Scales of dense inputs with `transform = "standard"`: mean and deviation of the first rows, fitted once and stored.

They are stored next to vocabularies, so that later evaluations, predictions and runs see the inputs of training.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive.config import Config
from adaptive.data.rows.row_source import Block, RowSource
from adaptive.errors import ConfigError
from adaptive.storage.durable import write_atomic
from adaptive.storage.files import checked, json_text, read_json

SCALES: Final = "scales.json"
FITTED_ROWS: Final = 100_000
_FORMAT = 1
_BLOCK_ROWS = 1 << 14
_Scale = tuple[float, Annotated[float, Field(gt=0)]]  # mean, deviation


class _Stored(Config):
    format: int = _FORMAT
    inputs: dict[str, _Scale]


def scales_of(
    source: RowSource, files: Sequence[int], slots: Mapping[str, int], *, folder: Path | None, earlier: Path | None
) -> dict[str, _Scale]:
    """Return the scale of each dense input: stored in `folder`, or `earlier`, or else fitted, and then stored.

    Args:
        slots: name of a dense input -> its column in blocks.

    Raises:
        ConfigError: if a stored file is damaged or has other inputs.
        OSError: if it cannot be written.
    """
    if not slots:
        return {}
    for place in (folder, earlier):
        if place is not None and (place / SCALES).exists():
            scales = _load(place / SCALES, slots)
            break
    else:
        scales = _fit(source, files, slots)
    if folder is not None and not (folder / SCALES).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / SCALES, json_text(_Stored(inputs=scales).model_dump(mode="json")))
    return scales


def _load(path: Path, slots: Mapping[str, int]) -> dict[str, _Scale]:
    advice = "Remove the file to fit them again."
    content = read_json(path, {"format": _FORMAT}, advice=advice, error=ConfigError)
    scales = checked(_Stored, content, str(path)).inputs
    if scales.keys() != slots.keys():
        raise ConfigError(f"{path}: expected scales of {', '.join(slots)}, got those of {', '.join(scales)}. {advice}")
    return scales


def _fit(source: RowSource, files: Sequence[int], slots: Mapping[str, int]) -> dict[str, _Scale]:
    """Return mean and deviation of the values that are present; the deviation of equal values is 1."""
    columns, parts, left = list(slots.values()), list[NDArray[np.float64]](), FITTED_ROWS
    block = Block.empty(source.formats[files[0]], _BLOCK_ROWS)
    with source.reader(files) as reader:
        while left and (rows := min(reader.read(block), left)):
            parts.append(block.columns.dense[:rows, columns].astype(np.float64))
            left -= rows
    values = np.concatenate(parts or [np.empty((0, len(columns)))])
    scales = {}
    for name, column in zip(slots, values.T, strict=True):
        present = column[~np.isnan(column)]
        deviation = float(present.std()) if len(present) else 0.0
        scales[name] = (float(present.mean()) if len(present) else 0.0, deviation or 1.0)
    return scales
