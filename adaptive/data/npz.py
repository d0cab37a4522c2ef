"""Arrays of `.npz` files of other programs: read without unpickling, and checked by name."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import InputError


def load_arrays(path: Path, wanted: tuple[str, ...], kind: str) -> list[NDArray[Any]]:
    """Return arrays of an `.npz` file, in the order of `wanted`.

    Args:
        kind: program that wrote the file, for messages.

    Raises:
        InputError: if one is missing or cannot be read without unpickling.
    """
    arrays, where = list[NDArray[Any]](), ""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: expected a .npz file of {kind}, got a folder, a pipe or a device. Check the path.")
    try:
        with zipfile.ZipFile(path) as members, np.load(path, allow_pickle=False) as file:
            for key in wanted:
                if f"{key}.npy" not in members.namelist():
                    names = ", ".join(name.removesuffix(".npy") for name in members.namelist())
                    raise InputError(
                        f"{path}: expected arrays {', '.join(wanted)}, got {names}. Check that {kind} wrote the file."
                    )
                where = f"array {key}: "
                arrays.append(file[key])
    except InputError:
        raise
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path}: {where}expected a readable .npz file of {kind}, got an error ({error}). Write the file again."
        ) from error
    return arrays


def fits_float32(array: NDArray[Any]) -> bool:
    """Return True if all numbers are finite as float32."""
    most = np.finfo(np.float32).max
    return not array.size or bool(-most <= array.min() and array.max() <= most)


def check_array(good: bool, path: Path, key: str, expected: str, array: NDArray[Any], got: str = "") -> None:
    """Raise InputError unless `good`; `got` defaults to dtype and shape of the array."""
    if not good:
        got = got or f"{array.dtype} {array.shape}"
        raise InputError(f"{path}: array {key}: expected {expected}, got {got}. Write the file again.")
