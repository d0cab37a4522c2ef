"""Arrays of `.npz` files that others made: read without unpickling, and checked by name."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import InputError


def load_arrays(path: Path, wanted: tuple[str, ...], whose: str, needed: str = "needed") -> list[NDArray[Any]]:
    """Arrays of an `.npz` file, in the order of `wanted`.

    Args:
        whose: files these are, such as `dlrm's`.
        needed: the word before the names that are wanted.

    Raises:
        InputError: if one is missing or cannot be read without unpickling.
    """
    arrays, at = list[NDArray[Any]](), ""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: needed {whose} .npz file, found a folder, a pipe or a device")
    try:
        with zipfile.ZipFile(path) as members, np.load(path, allow_pickle=False) as file:
            for key in wanted:
                if f"{key}.npy" not in members.namelist():
                    names = ", ".join(name.removesuffix(".npy") for name in members.namelist())
                    raise InputError(f"{path}: has no array {key}; {needed} {', '.join(wanted)}, found {names}")
                at = f"array {key} "
                arrays.append(file[key])
    except InputError:
        raise
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: {at}cannot be read as {whose} .npz ({error}); make the file again") from error
    return arrays


def fits_float32(array: NDArray[Any]) -> bool:
    """True if all numbers are finite as float32."""
    most = np.finfo(np.float32).max
    return not array.size or bool(-most <= array.min() and array.max() <= most)


def check_array(good: bool, path: Path, key: str, needed: str, array: NDArray[Any], got: str = "") -> None:
    """Check an array of such a file. Raises InputError: if it is not `good`, with what was `needed` and `got`."""
    if not good:
        raise InputError(f"{path}: array {key}: needed {needed}, found {got or f'{array.dtype} {array.shape}'}")
