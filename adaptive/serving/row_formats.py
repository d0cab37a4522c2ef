"""Formats of exported rows: float32, bfloat16, or int8 with a scale and an offset per row.

int8 stores a row as steps from -128, its smallest value, to 127, its largest: value = step * scale + offset, where the
scale is (largest - smallest) / 255. Rows of equal values are exact. `scoring.Table` reads them.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.vector.bfloat16 import BFLOAT16, as_float32, narrow, widen
from adaptive.storage.arrays import Blocks

Floats = NDArray[np.float32]
STEPS, HALF = 255, 128

ROW_BYTES: Final[Mapping[str, Callable[[int], int]]] = MappingProxyType(
    {"float32": lambda width: 4 * width, "bfloat16": lambda width: 2 * width, "int8": lambda width: width + 8}
)
"""Bytes of a row of a width, by format."""


def table_tensors(
    form: str, number: int, shape: tuple[int, int], blocks: Callable[[], Iterator[Floats]]
) -> dict[str, Blocks]:
    """Return the tensors of a table by name, made from its `blocks` of rows (n, D)."""
    name = f"tables.{number}"
    if form == "float32":
        return {f"{name}.weight": Blocks(np.dtype(np.float32), shape, blocks)}
    if form == "bfloat16":
        return {f"{name}.weight": Blocks(BFLOAT16, shape, lambda: map(narrow, blocks()))}
    return {
        f"{name}.weight": Blocks(np.dtype(np.int8), shape, lambda: (quantized(block)[0] for block in blocks())),
        f"{name}.scales": Blocks(
            np.dtype(np.float32), (shape[0], 2), lambda: (quantized(block)[1] for block in blocks())
        ),
    }


def quantized(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return rows (n, D) as steps (n, D), with their scales and offsets (n, 2).

    Rows with NaN or infinity have such scales, so that they cannot be read as numbers.
    """
    least, most = (function(rows.astype(np.float64), axis=1, keepdims=True) for function in (np.min, np.max))
    with np.errstate(invalid="ignore"):
        scale = (most - least) / STEPS
        scales = np.concatenate([scale, least + HALF * scale], axis=1).astype(np.float32)
        steps = np.rint((rows - least) / np.where(scale > 0, scale, 1)) - HALF
    return np.nan_to_num(steps).clip(-HALF, HALF - 1).astype(np.int8), scales


def dequantized(steps: NDArray[np.int8], scales: Floats) -> Floats:
    """Return the values (n, D) float32 of `quantized` rows."""
    with np.errstate(invalid="ignore"):  # of rows with NaN or infinity
        values: Floats = steps.astype(np.float32) * scales[:, :1] + scales[:, 1:]
    return values


READERS: Final[Mapping[str, Callable[[Floats], Floats]]] = MappingProxyType(
    {
        "float32": lambda rows: rows,
        "bfloat16": lambda rows: widen(narrow(rows)),
        "int8": lambda rows: dequantized(*quantized(rows)),
    }
)
"""Functions from rows (n, D) to the values that an export in a format has."""


def as_exported(form: str) -> Callable[[NDArray[Any]], Floats]:
    """Return the function from rows, as tables store them, to the values that an export has."""
    reader = READERS[form]
    return lambda rows: reader(as_float32(rows))
