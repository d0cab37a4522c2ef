"""Rows of `TieredEmbeddingBag` as arrays: to look at, to save, to load.

Letters: D width.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.embeddings.base import Base
from adaptive.embeddings.engine.pipeline import Lane
from adaptive.embeddings.engine.saving.gathering import own_rows
from adaptive.embeddings.engine.saving.row_arrays import load_rows, overwrite_rows, save_blocks, save_rows
from adaptive.embeddings.engine.saving.shared import gatherer_of
from adaptive.embeddings.engine.state_dict import rows_from_tensors, rows_to_tensors
from adaptive.embeddings.engine.table_loading import fill_table
from adaptive.errors import ConfigError
from adaptive.storage.arrays import Blocks, Stored
from adaptive.storage.shards import Part


class Rows(Base):
    """The part that reads and writes rows wherever they lie."""

    def flush(self) -> None:
        """Write every changed device row to the host tier; rows keep their slots."""
        self._pipeline.flush()

    def table_weights(self, name: str) -> NDArray[np.float32]:
        """(num_embeddings, D) copy of a table, wherever its rows lie."""
        return np.concatenate(list(self.table_blocks(name)))

    def table_blocks(self, name: str, block_bytes: int = 8 << 20) -> Iterator[NDArray[np.float32]]:
        """`table_weights` by blocks of at most `block_bytes`, or one row, in order of the rows."""
        lane, first, last = self._place_of(name)
        length = max(1, block_bytes // (4 * lane.group.embedding_dim))
        gatherer = gatherer_of(self._pipeline)
        for start in range(first, last, length):
            rows = np.arange(start, min(start + length, last))
            local = rows if gatherer is None else own_rows(lane.group, rows)[0]
            with self._pipeline.lock:
                block = self._pipeline.values(lane, local)[0]
            if gatherer is not None:  # all ranks are here
                block = gatherer.merged(lane.group.whole_rows(local), {"values": block})[1]["values"]
            yield block

    def load_table(self, name: str, vectors: NDArray[np.float32]) -> None:
        """Give rows 0 ... n - 1 of a table values from elsewhere (n, D), pretrained ones for example: an array, which
        may be mapped from a file. Their optimizer state begins anew; what is known of look-ups stays.

        Raises:
            ConfigError: if there is no such table, the shape is another, or a look-ahead is running.
            InputError: if vectors are no numbers, have masked values, or do not fit float32.
        """
        fill_table(self._pipeline, *self._find_table(name), vectors, self._optimizer)

    def _find_table(self, name: str) -> tuple[Lane, int]:
        """The lane of a table, and its number in there."""
        for lane in self._pipeline.lanes:
            names = [table.name for table in lane.group.tables]
            if name in names:
                return lane, names.index(name)
        raise ConfigError(f"no table {name!r}; there are: {', '.join(self.table_names)}")

    def _place_of(self, name: str) -> tuple[Lane, int, int]:
        """The lane of a table, its first row and the one behind its last.

        Raises:
            ConfigError: if there is no such table.
        """
        lane, number = self._find_table(name)
        first, last = lane.group.whole.table_starts[number : number + 2]
        return lane, int(first), int(last)

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint needs, as flat arrays: values, state and records of rows that ever changed, with waiting
        gradients applied. With no look-ahead running, also what is deferred and watched, so that tables that load it
        go on as these would (`adaptive.embeddings.engine.saving.row_arrays`)."""
        return save_rows(self._pipeline)

    def state_blocks(self) -> dict[str, NDArray[Any] | Blocks | Part]:
        """`state_arrays` for tables larger than memory: values and state are `adaptive.storage.arrays.Blocks`, read 8
        MiB at a time when they are written. Train nothing before that. With other ranks, the rows that this one owns,
        as parts of a shard (`adaptive.storage.shards`)."""
        return save_blocks(self._pipeline)

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
        values of the larger table, whose default bound is smaller (`TableConfig.init_bound` fixes it). `last` tells of
        tables how many of their last rows stay the last ones: those of unknown ids behind a vocabulary.

        Tables that watch and defer as those did get back what was watched and deferred, too. Others, such as tables
        without `skip`, get the values with waiting gradients applied, and begin to watch anew.

        Raises:
            CheckpointError: if the arrays belong to other tables or another optimizer; nothing is changed then.
        """
        load_rows(self._pipeline, arrays, grow=grow, last=last)
        self._since.count_rows()

    def state_shapes(self) -> list[tuple[int, float]]:
        """Of each group of tables: float32 values of optimizer state a row, and their first value."""
        first = float(self._optimizer.settings()[4])
        return [(lane.host.state.shape[1], first) for lane in self._pipeline.lanes]

    def overwrite_rows(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Overwrite rows where they lie with `state_arrays` of other tables of the same shapes. Call it between two
        steps; a look-ahead may be running. Rows that never changed there stay as they are, and so do records, slots
        and verdicts; gradients that wait are dropped.

        Raises:
            CheckpointError: if the arrays belong to other tables or another optimizer; nothing is changed then.
        """
        overwrite_rows(self._pipeline, arrays)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        tensors = rows_to_tensors(self._pipeline, separate=self._separate)
        destination.update({prefix + name: tensor for name, tensor in tensors.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        tensors = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        if not tensors:
            missing_keys.append(prefix + "rows0.weights")
            return
        if (wrong := rows_from_tensors(self._pipeline, tensors, self.load_state_arrays)) is not None:
            error_msgs.append(f"{prefix or 'embeddings'}: {wrong}")
