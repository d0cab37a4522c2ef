"""Logits and labels of a run's latest evaluation, for tests over the same samples: `evaluation.npy`, float32 (2, n)."""

import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.durable import replace_file
from adaptive.storage.untrusted import open_plain

SCORES: Final = "evaluation.npy"


def write_scores(directory: Path, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
    """Keep logits and labels (n,) in a run directory, 8 bytes a sample.

    Raises:
        OutputError: if they cannot be written.
    """
    both, file = np.stack([logits, labels]), directory / SCORES
    try:
        replace_file(file, lambda into: np.save(into, both, allow_pickle=False))
    except OSError as error:
        raise OutputError(f"{file} could not be written: {error}") from error


def read_scores(directory: Path) -> NDArray[np.float32] | None:
    """Logits and labels (2, n) from a run directory, mapped into memory; None if they were not kept.

    Raises:
        CheckpointError: for a damaged file, and for what is no file.
    """
    file = directory / SCORES
    if not os.path.lexists(file):
        return None
    open_plain(file).close()  # a pipe would be waited for
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{file}: expected logits and labels of an evaluation, found: {error}") from error
    if not isinstance(found, np.ndarray) or found.dtype != np.float32 or found.ndim != 2 or len(found) != 2:
        what = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else "several arrays"
        raise CheckpointError(f"{file}: expected float32 (2, samples), found {what}; the file is damaged")
    if not np.isfinite(found).all():
        raise CheckpointError(f"{file}: expected finite logits and labels, got NaN or infinity; the file is damaged")
    return found
