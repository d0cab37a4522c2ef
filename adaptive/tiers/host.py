"""`HostTier`: a place for every row of a group, in memory or in memory-mapped files.

Nothing is written when it is made. A row that never changed has no stored value: `initial` computes it. So a table
of a billion rows costs address space, and memory or disk only for rows that were trained.
"""

from pathlib import Path

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
        self._maps: list[np.memmap] = []
        self.weights = self._allocate(host, "weights", width)
        self.state = self._allocate(host, "state", state_width)

    def _allocate(self, host: str, what: str, width: int) -> Floats:
        shape = (self.group.num_rows, width)
        if host == "memory" or 0 in shape:
            return np.empty(shape, np.float32)  # pages are taken when a row is first written
        directory = Path(host.removeprefix("mmap:"))
        path = directory / f"width{self.group.embedding_dim}.{what}.f32"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            mapped = np.memmap(path, np.float32, "w+", shape=shape)
        except OSError as error:
            raise ConfigError(f"tier.host: cannot map {np.prod(shape) * 4} bytes at {path}: {error}") from error
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
    def num_bytes(self) -> tuple[int, int]:
        """Bytes of (weights, state) if every row were written."""
        return self.weights.nbytes, self.state.nbytes
