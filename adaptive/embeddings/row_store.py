"""`RowStore`: rows of `TieredEmbeddingBag` as arrays, wherever they lie: to look at, to save, to load.

Letters: D width.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch.named import as_float32, as_numbers
from adaptive.embeddings.engine.lane import Lane
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.saving.gathering import gatherer_of, select_owned
from adaptive.embeddings.engine.saving.row_arrays import load_rows, overwrite_rows, save_parts, save_rows
from adaptive.embeddings.engine.statistics import StatisticsCollector
from adaptive.errors import CheckpointError, ConfigError
from adaptive.storage.arrays import Stored
from adaptive.storage.shards import Part

AT_ONCE: Final = 1 << 18  # rows: what is copied in between is bounded
APART: Final = "rows_apart"


class RowStore:
    """Reads and writes rows. With other ranks, all call it together."""

    def __init__(self, pipeline: Pipeline, statistics: StatisticsCollector) -> None:
        self._pipeline, self._statistics = pipeline, statistics

    def flush(self) -> None:
        """Write every changed device row to the host tier; rows keep their slots."""
        self._pipeline.flush()

    def table_weights(self, name: str) -> NDArray[np.float32]:
        """(num_embeddings, D) copy of a table, wherever its rows lie."""
        return np.concatenate(list(self.table_blocks(name)))

    def table_blocks(self, name: str, block_bytes: int = 8 << 20) -> Iterator[NDArray[np.float32]]:
        """`table_weights` by blocks of at most `block_bytes`, or one row, in order of the rows.

        Raises:
            ConfigError: if there is no such table.
        """
        lane, number = self._find_table(name)
        first, last = map(int, lane.group.undivided.table_starts[number : number + 2])
        length = max(1, block_bytes // (4 * lane.group.embedding_dim))
        gatherer = gatherer_of(self._pipeline)
        for start in range(first, last, length):
            rows = np.arange(start, min(start + length, last))
            local = rows if gatherer is None else select_owned(lane.group, rows)[0]
            with self._pipeline.lock:
                block = self._pipeline.values(lane, local)[0]
            if gatherer is not None:  # all ranks are here
                block = gatherer.merged(lane.group.group_rows(local), block)
            yield block

    def load_table(self, name: str, vectors: NDArray[np.float32]) -> None:
        """Give rows 0 ... n - 1 of a table values from elsewhere (n, D), pretrained ones for example: an array, which
        may be mapped from a file. Their optimizer state starts from scratch; what is known of lookups stays.

        Raises:
            ConfigError: if there is no such table, the shape is another, or a look-ahead is running.
            InputError: if vectors are no numbers, have masked values, or do not fit float32; no row has changed then.
        """
        pipeline, (lane, number) = self._pipeline, self._find_table(name)
        size, width = lane.group.tables[number].num_embeddings, lane.group.embedding_dim
        if pipeline.running:
            raise ConfigError(
                "vectors cannot be loaded while a look-ahead is running; exhaust or close its iterator first"
            )
        if vectors.ndim != 2 or vectors.shape[1] != width or len(vectors) > size:
            raise ConfigError(
                f"table {name}: expected (n, {width}) vectors, n up to {size}, got {vectors.shape}. Give one vector "
                "for each of the first n rows"
            )
        what = f"table {name}: vectors"
        vectors = as_numbers(what, vectors)
        if vectors.dtype.kind == "f" and vectors.dtype.itemsize > 4:
            for start in range(0, len(vectors), AT_ONCE):
                as_float32(f"{what} from row {start}", vectors[start : start + AT_ONCE])
        with pipeline.lock:
            pipeline.finish_copies()
            for start in range(0, len(vectors), AT_ONCE):
                part = np.array(vectors[start : start + AT_ONCE], np.float32)
                rows = lane.group.undivided.table_starts[number] + np.arange(start, start + len(part))
                rows, part = select_owned(lane.group, rows, part)
                state = np.full((len(part), lane.host.state.shape[1]), lane.host.first_state, np.float32)
                lane.put(rows, part, state)
            lane.device.forget_watched()
            pipeline.finish_copies()

    def _find_table(self, name: str) -> tuple[Lane, int]:
        """The lane of a table, and its number in there."""
        names: list[str] = []
        for lane in self._pipeline.lanes:
            of_lane = [table.name for table in lane.group.tables]
            if name in of_lane:
                return lane, of_lane.index(name)
            names += of_lane
        raise ConfigError(f"no table {name!r}; there are: {', '.join(names)}")

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint needs, as flat arrays: values, state and records of rows that ever changed, with waiting
        gradients applied. With no look-ahead running, also what is deferred and watched, so that tables that load it
        train as these would (`adaptive.embeddings.engine.saving.row_arrays`)."""
        return save_rows(self._pipeline)

    def state_parts(self) -> dict[str, NDArray[Any] | Part]:
        """`state_arrays` for `save_checkpoint`, also of tables larger than memory: the rows that this rank owns, as
        parts of a shard (`adaptive.storage.shards`). Values and state are read 8 MiB at a time when they are written;
        train nothing before that."""
        return save_parts(self._pipeline)

    def load_state_arrays(
        self,
        arrays: Mapping[str, NDArray[Any] | Stored],
        *,
        grow: bool = False,
        last: Mapping[str, int] | None = None,
    ) -> None:
        """Restore what `state_arrays` gave, into tables of the same shapes; rows start on the host. Those in
        files (`Stored`) are read 8 MiB at a time.

        With `grow`, tables may be larger than those were: rows keep their ids. Rows that never changed have the initial
        values of the larger table, whose default bound is smaller (`TableConfig.init_bound` fixes it). `last` maps
        tables to how many of their last rows stay the last ones: those of unknown ids behind a vocabulary.

        Tables that watch and defer as those did get back what was watched and deferred, too. Others, such as tables
        without `skip`, get the values with waiting gradients applied, and begin to watch from scratch.

        Raises:
            CheckpointError: if the arrays belong to other tables or another optimizer; nothing is changed then.
        """
        load_rows(self._pipeline, arrays, grow=grow, last=last)
        self._statistics.count_rows()

    def overwrite(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Overwrite rows where they lie with `state_arrays` of other tables of the same shapes. Call it between two
        steps; a look-ahead may be running. Rows that never changed there stay as they are, and so do records, slots
        and verdicts; gradients that wait are dropped.

        Raises:
            CheckpointError: if the arrays belong to other tables or another optimizer; nothing is changed then.
        """
        overwrite_rows(self._pipeline, arrays)

    def to_tensors(self, *, separate: bool) -> dict[str, Tensor]:
        """What `state_dict()` has of the rows: `state_arrays`, each a tensor of its own name and type, which
        `torch.load(weights_only=True)` reads. `separate`: instead of them one small tensor, `rows_apart`, with the next
        batch and the tables' keys; loading it checks that the rows are there."""
        if separate:
            return {APART: torch.from_numpy(self._mark())}
        return {name: torch.from_numpy(array) for name, array in self.state_arrays().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Load what `to_tensors` gave; returns what is wrong with it, or None. If something is, nothing changed."""
        try:
            arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
            if APART in arrays:
                _check_mark(self._mark(), arrays[APART])
            else:
                self.load_state_arrays(arrays)
        except (CheckpointError, ConfigError) as error:
            return str(error)
        return None

    def _mark(self) -> NDArray[np.int64]:
        keys = [group.table_keys.view(np.int64) for group in self._pipeline.groups]
        return np.concatenate([[self._pipeline.trained + 1], *keys]).astype(np.int64)


def _array(name: str, tensor: object) -> NDArray[Any]:
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype == torch.bfloat16:  # which numpy does not have
        raise CheckpointError(f"{name}: expected a dtype of numpy, got {tensor.dtype}. Load the state as it was saved")
    return tensor.detach().cpu().numpy()


def _check_mark(mark: NDArray[np.int64], saved: NDArray[np.int64]) -> None:
    if saved.dtype != mark.dtype or saved.shape != mark.shape:
        raise CheckpointError(f"{APART}: expected {mark.dtype} {mark.shape}, got {saved.dtype} {saved.shape}")
    if not np.array_equal(saved[1:], mark[1:]):
        raise CheckpointError("the checkpoint was made with another seed or other table names")
    if saved[0] != mark[0]:
        raise CheckpointError(
            f'the rows are not in this checkpoint (rows="separate"): it is of {saved[0]} trained batches, the rows '
            f"here of {mark[0]}; load them first: rows.load_state_arrays() with what state_arrays() gave then"
        )
