"""Rows in a `state_dict()`: the arrays of `saving` as tensors, so that any framework's checkpoint is whole.

Every array is a tensor of its own under its own name, of its own type: nothing but `torch.load(weights_only=True)` is
needed to read them. Where tables are too large to be copied into each checkpoint (`rows="separate"`), one small tensor
stands in their place, `rows_apart`: the next batch, and the tables' keys. Loading it checks that the rows are there.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.saving.row_arrays import Arrays, save_rows
from adaptive.errors import CheckpointError, ConfigError

APART: Final = "rows_apart"


def rows_to_tensors(pipeline: Pipeline, *, separate: bool) -> dict[str, Tensor]:
    """What a module's state is: copies of all rows that ever changed, with all that belongs to them; or the mark of
    rows that are saved apart."""
    if separate:
        return {APART: torch.from_numpy(_mark(pipeline))}
    return {name: torch.from_numpy(array) for name, array in save_rows(pipeline).items()}


def rows_from_tensors(pipeline: Pipeline, tensors: Mapping[str, Tensor], load: Callable[[Arrays], None]) -> str | None:
    """Load what `rows_to_tensors` gave by `load`; returns what is wrong with it, or None. If it is, nothing changed."""
    try:
        arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
        if APART in arrays:
            _check_mark(pipeline, arrays[APART])
        else:
            load(arrays)
    except (CheckpointError, ConfigError) as error:
        return str(error)
    return None


def _array(name: str, tensor: object) -> NDArray[Any]:
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype == torch.bfloat16:  # which numpy does not have
        raise CheckpointError(f"{name}: expected a dtype of numpy, got {tensor.dtype}. Load the state as it was saved")
    return tensor.detach().cpu().numpy()


def _mark(pipeline: Pipeline) -> NDArray[np.int64]:
    keys = [group.table_keys.view(np.int64) for group in pipeline.groups]
    return np.concatenate([[pipeline.trained + 1], *keys]).astype(np.int64)


def _check_mark(pipeline: Pipeline, found: NDArray[np.int64]) -> None:
    mark = _mark(pipeline)
    if found.dtype != mark.dtype or found.shape != mark.shape:
        raise CheckpointError(f"{APART}: expected {mark.dtype} {mark.shape}, got {found.dtype} {found.shape}")
    if not np.array_equal(found[1:], mark[1:]):
        raise CheckpointError("the checkpoint was made with another seed or other table names")
    if found[0] != mark[0]:
        raise CheckpointError(
            f'the rows are not in this checkpoint (rows="separate"): it is of {found[0]} trained batches, the rows '
            f"here of {mark[0]}; load them first: load_state_arrays() with what state_arrays() gave then"
        )
