"""`RowStore`: reads, saves and loads the rows of `TieredEmbeddingBag` as arrays.

Letters: D width.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch.named import as_float32 as checked_float32
from adaptive.batch.named import as_numbers
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.row_arrays import load_rows, save_blocks, save_rows
from adaptive.embeddings.engine.statistics import StatisticsCollector
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.errors import CheckpointError, ConfigError, InputError
from adaptive.kernels.vector.bfloat16 import BFLOAT16, OVERFLOW, as_float32, as_stored
from adaptive.storage.arrays import Blocks, Stored

AT_ONCE: Final = 1 << 18  # rows that are copied at once, to bound memory


def check_rows(name: str, rows: NDArray[Any], size: int) -> None:
    """Check that rows (m,) of a table are among its `size` rows.

    Raises:
        InputError: if they are not.
    """
    if rows.dtype.kind not in "iu" or (rows.size and not 0 <= rows.min() <= rows.max() < size):
        got = f"{rows.min()} to {rows.max()}" if rows.dtype.kind in "iu" else f"dtype {rows.dtype}"
        raise InputError(f"table {name!r}: expected rows from 0 to {size - 1}, got {got}.")


class RowStore:
    """Reads and writes rows, from the training thread."""

    def __init__(self, pipeline: Pipeline, statistics: StatisticsCollector) -> None:
        self._pipeline, self._statistics = pipeline, statistics

    def flush(self) -> None:
        """Write every changed device row to the host tier; rows keep their slots."""
        self._pipeline.flush()

    def table_keys(self, name: str) -> NDArray[np.int64]:
        """Return the keys (n,) of a table that have a row, ascending.

        Raises:
            ConfigError: if there is no such table, it has no keys, or a look-ahead with a depth is running.
        """
        tiered, number = self._find_table(name)
        if tiered.keys is None:
            raise ConfigError(f'table {name!r}: expected a table with keys="int64", got one whose ids are rows.')
        self._pipeline.refuse_keys_in_flight("table_keys()")
        with self._pipeline.lock:
            return np.sort(tiered.keys.row_keys[tiered.keys.tables[number].live_rows()])

    def table_weights(self, name: str, rows: NDArray[np.integer[Any]] | None = None) -> NDArray[np.float32]:
        """Return a copy (num_embeddings, D) of a table, from both tiers.

        With keys, (n + 1, D): the rows of `table_keys` in its order, then the one for keys without a row.

        Args:
            name: of the table.
            rows: (m,) of these rows to copy, in this order, (m, D); none: all.

        Raises:
            ConfigError: if there is no such table.
            InputError: for a row that the table does not have.
        """
        if rows is None:
            return np.concatenate(list(self.table_blocks(name)))
        tiered, number = self._find_table(name)
        first, last = map(int, tiered.group.table_starts[number : number + 2])
        of_table = np.arange(first, last) if tiered.keys is None else self._rows_by_key(tiered, number)
        check_rows(name, rows, len(of_table))
        with self._pipeline.lock:
            return as_float32(self._pipeline.values(tiered, of_table[rows])[0])

    def table_blocks(self, name: str, block_bytes: int = 8 << 20) -> Iterator[NDArray[np.float32]]:
        """Yield `table_weights` in row order, in blocks of at most `block_bytes` or one row.

        Raises:
            ConfigError: if there is no such table.
        """
        tiered, number = self._find_table(name)
        first, last = map(int, tiered.group.table_starts[number : number + 2])
        length = max(1, block_bytes // (4 * tiered.group.embedding_dim))
        keyed = None if tiered.keys is None else self._rows_by_key(tiered, number)
        last = last if keyed is None else first + len(keyed)
        for start in range(first, last, length):
            rows = np.arange(start, min(start + length, last)) if keyed is None else keyed[start - first :][:length]
            with self._pipeline.lock:
                block = self._pipeline.values(tiered, rows)[0]
            yield as_float32(block)

    def _rows_by_key(self, tiered: TieredGroup, number: int) -> NDArray[np.int64]:
        """Return the group's rows of a table that have keys, in the order of `table_keys`, and its first row."""
        assert tiered.keys is not None
        self._pipeline.refuse_keys_in_flight("table_weights()")
        with self._pipeline.lock:
            table = tiered.keys.tables[number]
            rows = table.live_rows()
            return np.concatenate([rows[np.argsort(tiered.keys.row_keys[rows])], [table.start]])

    def load_table(self, name: str, vectors: NDArray[np.float32]) -> None:
        """Set rows 0 ... n - 1 of a table to `vectors` (n, D), such as pretrained ones.

        The array may be mapped from a file. bfloat16 tables round it to nearest. The rows' optimizer state starts from
        scratch; records of lookups stay.

        Raises:
            ConfigError: if there is no such table, the shape does not fit, or a look-ahead is running.
            InputError: if values are not numbers, are masked, or do not fit the rows' dtype. Then no row has changed.
        """
        pipeline, (tiered, number) = self._pipeline, self._find_table(name)
        size, width = tiered.group.tables[number].num_embeddings, tiered.group.embedding_dim
        pipeline.refuse_while_running("load_table()")
        if tiered.keys is not None:
            raise ConfigError(f"table {name!r}: expected a table without keys for load_table(), got one with keys.")
        if vectors.ndim != 2 or vectors.shape[1] != width or len(vectors) > size:
            raise ConfigError(
                f"table {name!r}: expected (n, {width}) vectors, n up to {size}, got {vectors.shape}. Give one vector "
                "for each of the first n rows."
            )
        what = f"table {name!r}: vectors"
        vectors = as_numbers(what, vectors)
        is_bfloat16 = tiered.host.dtype == BFLOAT16
        if vectors.dtype.kind == "f" and (vectors.dtype.itemsize > 4 or is_bfloat16):
            for start in range(0, len(vectors), AT_ONCE):
                part = checked_float32(f"{what} from row {start}", vectors[start : start + AT_ONCE])
                if is_bfloat16 and (np.abs(part, where=np.isfinite(part), out=np.zeros_like(part)) >= OVERFLOW).any():
                    raise InputError(
                        f"{what} from row {start}: expected numbers below {OVERFLOW:.6g}, which fit bfloat16, got "
                        "others. Scale them, or use dtype=float32."
                    )
        with pipeline.lock, pipeline.lock.changing(f"table {name!r} was loaded"):
            pipeline.finish_copies()
            for start in range(0, len(vectors), AT_ONCE):
                part = np.array(vectors[start : start + AT_ONCE], np.float32)
                rows = tiered.group.table_starts[number] + np.arange(start, start + len(part))
                state = np.full((len(part), tiered.host.state.shape[1]), tiered.host.first_state)
                tiered.put(rows, as_stored(part, tiered.host.dtype), state)
            tiered.device.forget_sums()
            pipeline.finish_copies()

    @contextmanager
    def read_as(self, convert: Callable[[NDArray[Any]], NDArray[np.float32]]) -> Iterator[None]:
        """Let `read` look up `convert(rows)` instead of rows (n, D), as a what-if."""
        self._pipeline.convert_read = convert
        try:
            yield
        finally:
            self._pipeline.convert_read = None

    def _find_table(self, name: str) -> tuple[TieredGroup, int]:
        """Return the group of a table, and the table's number in it."""
        names: list[str] = []
        for tiered in self._pipeline.tiered_groups:
            of_group = [table.name for table in tiered.group.tables]
            if name in of_group:
                return tiered, of_group.index(name)
            names += of_group
        raise ConfigError(f"table: expected one of {', '.join(names)}, got {name!r}. Pass the name of its TableConfig.")

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Return values, state and records of all rows that ever changed, as flat arrays.

        Accumulated updates (deferred) are applied to the copies. With no look-ahead running, the arrays also contain
        these sums and the hot rows, so that tables that load them train as these tables would
        (`adaptive.embeddings.engine.row_arrays`).
        """
        return save_rows(self._pipeline)

    def state_blocks(self) -> dict[str, NDArray[Any] | Blocks]:
        """Return `state_arrays` for `save_checkpoint`, also of tables larger than memory.

        Values and state are read 8 MiB at a time while they are written. Train nothing before that.
        """
        return save_blocks(self._pipeline)

    def load_state_arrays(
        self,
        arrays: Mapping[str, NDArray[Any] | Stored],
        *,
        grow: bool = False,
        last: Mapping[str, int] | None = None,
    ) -> None:
        """Restore the result of `state_arrays` into tables of the same sizes, on the host.

        Arrays in files (`Stored`) are read 8 MiB at a time.

        Tables with the same `skip` settings also restore hot rows and accumulated updates (deferred). Other tables
        load the values with these updates applied, and begin with an empty hot set.

        Args:
            arrays: from `state_arrays`, or from a checkpoint.
            grow: tables may be larger than the saved ones; rows keep their ids. Rows that never changed have the
                initial values of the larger table, whose default bound is smaller (`TableConfig.init_bound` fixes it).
            last: table -> number of its last rows that stay last, such as those of unknown ids after a vocabulary.

        Raises:
            CheckpointError: if the arrays belong to other tables or another optimizer. Then nothing has changed.
        """
        load_rows(self._pipeline, arrays, grow=grow, last=last)
        self._statistics.refresh(recount=True)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors for `state_dict()`, which `torch.load(weights_only=True)` reads."""
        tensors = {name: torch.from_numpy(array) for name, array in self.state_arrays().items()}
        return tensors | {name: tensors[name].view(torch.bfloat16) for name in self._bfloat16_names() & set(tensors)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Load the result of `to_tensors`; return an error message, with nothing changed, or None."""
        try:
            halves = self._bfloat16_names()
            arrays = {name: _array(name, tensor, bfloat16=name in halves) for name, tensor in tensors.items()}
            self.load_state_arrays(arrays)
        except (CheckpointError, ConfigError) as error:
            return str(error)
        return None

    def _bfloat16_names(self) -> set[str]:
        """Return the names of arrays that hold bfloat16, which numpy does not have."""
        names = set()
        for number, tiered in enumerate(self._pipeline.tiered_groups):
            if tiered.host.dtype == BFLOAT16:
                names |= {f"rows{number}.{name}" for name in ("weights", "hot.raw_values")}
        return names


def _array(name: str, tensor: object, *, bfloat16: bool) -> NDArray[Any]:
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"{name}: expected a tensor, got {type(tensor).__name__}. Pass the state_dict() as it was saved."
        )
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16 and bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy()
    if tensor.dtype == torch.bfloat16:  # numpy does not have this type
        raise CheckpointError(
            f"{name}: expected a dtype of numpy, got {tensor.dtype}. Pass the state_dict() as it was saved, not cast."
        )
    return tensor.numpy()
