"""`Ranks`: this process and the others, its two channels, and its blocks of each batch.

A global batch is cut into K = `blocks` blocks of equal size; rank r of W has blocks rK/W to (r+1)K/W - 1. Every sum
over a batch is a sum over its blocks, from the first to the last. So with a fixed number of blocks, the number of ranks
changes no bit. By default, there is one block per rank.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, OwnPart
from adaptive.embeddings.ranks.channel import Channel
from adaptive.embeddings.ranks.traffic import RankTraffic, Tally
from adaptive.embeddings.ranks.transport import AHEAD, ROWS, Bytes, Kind, Transport
from adaptive.errors import AdaptiveError, ConfigError, RanksError


class Ranks:
    """The ranks that train together, as this process sees them.

    Args:
        transport: between the ranks.
        blocks: number of blocks of a global batch, at least one per rank; None for one per rank.
        gradients: `mean` averages the ranks' gradients, like DistributedDataParallel; `sum` adds them, for losses that
            are divided by the samples of all ranks.
        wire: `fp32` sends rows and gradients as they are. `bf16` rounds them and sends half the bytes: other numbers
            than with fp32, but the same on any number of ranks, because a rank's own rows are rounded, too.

    Raises:
        ConfigError: if there are fewer blocks than ranks, or for another `wire`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        blocks: int | None = None,
        gradients: Literal["mean", "sum"] = "mean",
        wire: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        self.rank, self.size = transport.rank, transport.size
        self.blocks = self.size if blocks is None else blocks
        if self.blocks < self.size:
            raise ConfigError(
                f"ranks.blocks: expected at least {self.size} for {self.size} ranks, got {self.blocks}. Set it to a "
                "multiple of the number of ranks, or leave it out for one block per rank."
            )
        if wire not in ("fp32", "bf16"):
            raise ConfigError(f"ranks.wire: expected fp32 or bf16, got {wire!r}. bf16 sends half the bytes, rounded.")
        self.gradients, self.wire = gradients, wire
        self.ahead, self.rows = Channel(transport, AHEAD), Channel(transport, ROWS)
        self._transport = transport

    is_local = False
    """True if this process trains alone, without ranks."""

    @property
    def is_first(self) -> bool:
        """True for the rank that writes files which are written once."""
        return self.rank == 0

    @property
    def name(self) -> str:
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """Return a rank's number, host and process, as text for messages."""
        return f"rank {rank} of {self.size} ({self._transport.name_of(rank)})"

    @property
    def places(self) -> list[str]:
        """Host and process of each rank, if known; empty for a single process."""
        return [self._transport.name_of(rank) for rank in range(self.size)]

    def blocks_of(self, rank: int) -> range:
        """Return the blocks of a rank."""
        return range(rank * self.blocks // self.size, (rank + 1) * self.blocks // self.size)

    @property
    def own_blocks(self) -> range:
        return self.blocks_of(self.rank)

    def block_bounds(self, num_samples: int) -> list[int]:
        """Return the first sample of each block of a global batch, and the end of the last block."""
        return [number * num_samples // self.blocks for number in range(self.blocks + 1)]

    def own_part(self, batch: Batch) -> Batch:
        """Return this rank's samples of a global batch, in its blocks."""
        blocks = self.own_blocks
        return OwnPart.of_batch(batch, self.block_bounds(batch.num_samples)[blocks.start : blocks.stop + 1])

    def traffic(self) -> RankTraffic:
        """Return the traffic of this rank since its start."""
        return Tally.total([self.ahead.tally, self.rows.tally])

    # --- devices ---------------------------------------------------------------------------------------------

    @property
    def gpu(self) -> int | None:
        """Number of this rank's GPU; None for the current one, or if there is none."""
        return self._transport.gpu

    def check_device(self, kind: str) -> None:
        """Check that the device tier may be on devices of this kind, "cpu" or "cuda".

        Raises:
            ConfigError: on every rank.
        """
        self._transport.check_device(kind)

    def crosses_on(self, kind: str) -> bool:
        """True if rows on such devices are sent from there (NCCL), not through host memory."""
        return self._transport.values_on == kind

    # --- exchanges between batches ---------------------------------------------------------------------------

    def gather_arrays(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every rank's array, flat, each of any length and all of one dtype."""
        flat = np.ascontiguousarray(array).reshape(-1)
        parts = self.rows.exchange(Kind.FACTS, parts=[flat] * self.size).parts
        return [np.frombuffer(part.tobytes(), array.dtype) for part in parts]

    def gather_facts(self, facts: Any) -> list[Any]:
        """Return every rank's facts, which are JSON values."""
        raw = np.frombuffer(json.dumps(facts, sort_keys=True).encode(), np.uint8)
        return [json.loads(part.tobytes()) for part in self.rows.exchange(Kind.FACTS, parts=[raw] * self.size).parts]

    def require_equal(self, facts: Callable[[], Mapping[str, object]]) -> None:
        """Check that all ranks have the same facts, JSON values by name.

        Raises:
            ConfigError: on every rank, with the first fact that differs, the ranks and their values.
        """
        facts_of_ranks = self.gather_facts(facts())
        for key in dict.fromkeys(key for of_rank in facts_of_ranks for key in of_rank):
            values = [of_rank.get(key) for of_rank in facts_of_ranks]
            for rank, value in enumerate(values):
                if value != values[0]:
                    name, first, second = _difference(key, values[0], value)
                    raise ConfigError(
                        f"ranks differ: expected {name} = {first} as on rank 0 ({self._transport.name_of(0)}), got "
                        f"{second} on rank {rank} ({self._transport.name_of(rank)}). Start all ranks with the same "
                        "settings and data."
                    )

    # --- errors ----------------------------------------------------------------------------------------------

    def report(self, channel: Channel, error: BaseException) -> None:
        """Report an error to the other ranks, on one channel."""
        code = error.exit_code if isinstance(error, AdaptiveError) else RanksError.exit_code
        text = str(error) if isinstance(error, AdaptiveError) else f"{type(error).__name__}: {error}"
        channel.report_failure(code, text)

    def close(self) -> None:
        self._transport.close()


class _NoTransport(Transport):
    """The transport of a single process, which sends nothing."""

    rank, size = 0, 1

    def swap(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int], largest: int) -> list[Bytes]:
        raise AssertionError("a single process exchanges nothing")

    def name_of(self, rank: int) -> str:
        return "this process"

    def silent(self) -> list[int]:
        return []

    def close(self) -> None:
        return


class LocalRanks(Ranks):
    """This process alone. Gathering returns its own values, without copies."""

    is_local = True

    def __init__(self) -> None:
        super().__init__(_NoTransport())

    @property
    def places(self) -> list[str]:
        return []

    def own_part(self, batch: Batch) -> Batch:
        return batch

    def gather_arrays(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        return [array]

    def gather_facts(self, facts: Any) -> list[Any]:
        return [facts]

    def require_equal(self, facts: Callable[[], Mapping[str, object]]) -> None:
        return

    def report(self, channel: Channel, error: BaseException) -> None:
        return


ALONE: Final = LocalRanks()
"""Shared by everything that trains in a single process; it has no state."""


def _difference(key: str, first: Any, second: Any) -> tuple[str, str, str]:
    """Return the path of the innermost difference of two values, and the two values there."""
    while isinstance(first, dict) and isinstance(second, dict):
        inner = next(name for name in {**first, **second} if first.get(name) != second.get(name))
        key, first, second = f"{key}.{inner}", first.get(inner), second.get(inner)
    return key, f"{first!r}"[:200], f"{second!r}"[:200]
