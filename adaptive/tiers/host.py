"""`HostTier`: a place for every row of a group, in memory or in memory-mapped files.

Nothing is written when it is made. A row that never changed has no stored value: `initial` computes it. So a table
of a billion rows costs address space, and memory or disk only for rows that were trained.
"""

import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import ConfigError
from adaptive.kernels import cpu
from adaptive.rows.optim import RowOptimizer
from adaptive.tiers.layout import Group

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


class HostTier:
    """weights (rows, D) and state (rows, S), float32. `host` is `memory` or `mmap:DIR`."""

    def __init__(self, group: Group, optimizer: RowOptimizer, host: str) -> None:
        self.group = group
        width = group.embedding_dim
        state_width = optimizer.state_width(width)
        self._first_state = optimizer.settings()[cpu.FIRST]
        self._files: list[IO[bytes]] = []
        self._maps: list[Any] = []
        self.weights = self._allocate(host, "weights", width)
        self.state = self._allocate(host, "state", state_width)

    def _allocate(self, host: str, what: str, width: int) -> Floats:
        shape = (self.group.num_rows, width)
        if host == "memory" or 0 in shape:
            return np.empty(shape, np.float32)  # pages are taken when a row is first written
        directory = Path(host.removeprefix("mmap:"))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Without a name: nobody's file is overwritten, and the space is free again whatever ends the process.
            file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (lives as long as the tier)
            file.truncate(shape[0] * shape[1] * 4)
            mapped = np.memmap(file, np.float32, "r+", shape=shape)
        except OSError as error:
            size = shape[0] * shape[1] * 4
            raise ConfigError(f"tier.host: cannot map {size} bytes of {what} in {directory}: {error}") from error
        self._files.append(file)
        self._maps.append(mapped)
        return np.asarray(mapped)

    def initial(self, weights: Floats, state: Floats, to_rows: Int64s, rows: Int64s) -> None:
        """Write the initial values of local rows to rows `to_rows` of other arrays."""
        group = self.group
        cpu.initial_rows(
            weights,
            state,
            to_rows,
            rows,
            group.table_starts,
            group.table_keys,
            group.table_bounds,
            self._first_state,
        )

    def flush(self) -> None:
        """Hand changed pages of memory-mapped files to the disk."""
        for mapped in self._maps:
            mapped.flush()

    @property
    def disk_bytes(self) -> int:
        """Bytes of disk that memory-mapped rows have taken so far."""
        return sum(os.fstat(file.fileno()).st_blocks * 512 for file in self._files)

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes of (weights, state) if every row were written."""
        return self.weights.nbytes, self.state.nbytes
