"""`Ranks`: this process among the others, its two channels, and the blocks of a batch that are its own.

A global batch is cut into `blocks` blocks of equal size; rank r of W has blocks rK/W to (r+1)K/W - 1. Every sum over a
batch is a sum over its blocks, from the first to the last. So with a number of blocks that is given, the number of
ranks changes no bit. Without, there is one block for each rank.
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
    """The ranks that train together.

    Args:
        transport: between the ranks.
        blocks: into which a global batch is cut; at least as many as ranks. None: as many.
        gradients: `mean`: of the ranks' gradients, as DistributedDataParallel takes it; `sum`: losses are divided by
            the samples of all ranks already.
        wire: how values of rows and of their gradients cross: `fp32` as they are, `bf16` rounded, also where a rank
            owns what it asks for. Half the bytes; not the numbers of fp32, but the same on any number of ranks.

    Raises:
        ConfigError: if there are fewer blocks than ranks, or no such wire.
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
            raise ConfigError(f"ranks.blocks={self.blocks}: {self.size} ranks need at least {self.size} blocks")
        if wire not in ("fp32", "bf16"):
            raise ConfigError(f"ranks.wire: expected fp32 or bf16, got {wire!r}")
        self.gradients, self.wire = gradients, wire
        self.ahead, self.rows = Channel(transport, AHEAD), Channel(transport, ROWS)
        self._transport = transport

    is_local = False
    """There are no ranks: this process trains alone, and nothing crosses."""

    @property
    def is_first(self) -> bool:
        """This rank writes what is written once."""
        return self.rank == 0

    @property
    def name(self) -> str:
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """A rank, its host and process."""
        return f"rank {rank} of {self.size} ({self._transport.name_of(rank)})"

    @property
    def places(self) -> list[str]:
        """Host and process of each rank, as far as known; none of a process alone."""
        return [self._transport.name_of(rank) for rank in range(self.size)]

    def blocks_of(self, rank: int) -> range:
        """The blocks of a rank."""
        return range(rank * self.blocks // self.size, (rank + 1) * self.blocks // self.size)

    @property
    def own_blocks(self) -> range:
        return self.blocks_of(self.rank)

    def block_bounds(self, num_samples: int) -> list[int]:
        """Where the blocks of a global batch begin, and where the last one ends."""
        return [number * num_samples // self.blocks for number in range(self.blocks + 1)]

    def own_part(self, batch: Batch) -> Batch:
        """The samples of a global batch that are this rank's, in its blocks."""
        blocks = self.own_blocks
        return OwnPart.of_batch(batch, self.block_bounds(batch.num_samples)[blocks.start : blocks.stop + 1])

    def traffic(self) -> RankTraffic:
        """What this rank has sent since its start."""
        return Tally.total([self.ahead.tally, self.rows.tally])

    # --- devices ---------------------------------------------------------------------------------------------

    @property
    def gpu(self) -> int | None:
        """Number of the GPU that is this rank's; None: whichever is current, if there is one."""
        return self._transport.gpu

    def check_device(self, kind: str) -> None:
        """Check that rows may lie on devices of a kind, "cpu" or "cuda".

        Raises:
            ConfigError: on every rank.
        """
        self._transport.check_device(kind)

    def crosses_on(self, kind: str) -> bool:
        """Whether rows and gradients on devices of a kind cross from there (NCCL), not over the host's memory."""
        return self._transport.values_on == kind

    # --- agreeing, between batches ---------------------------------------------------------------------------

    def gather_arrays(self, array: NDArray[Any], kind: Kind = Kind.FACTS, batch: int = -1) -> list[NDArray[Any]]:
        """Every rank's array, each of any length, of one type."""
        flat = np.ascontiguousarray(array).reshape(-1)
        parts = self.rows.exchange(kind, batch, [flat] * self.size).parts
        return [np.frombuffer(part.tobytes(), array.dtype) for part in parts]

    def gather_facts(self, facts: Any) -> list[Any]:
        """Every rank's facts, JSON values."""
        raw = np.frombuffer(json.dumps(facts, sort_keys=True).encode(), np.uint8)
        return [json.loads(part.tobytes()) for part in self.rows.exchange(Kind.FACTS, parts=[raw] * self.size).parts]

    def require_equal(self, facts: Callable[[], Mapping[str, object]]) -> None:
        """Check that all ranks have the same facts, JSON values by name; a process alone does not ask for them.

        Raises:
            ConfigError: on every rank, naming the first that differs, the ranks and their values.
        """
        everyones = self.gather_facts(facts())
        for key in dict.fromkeys(key for of_rank in everyones for key in of_rank):
            values = [of_rank.get(key) for of_rank in everyones]
            for rank, value in enumerate(values):
                if value != values[0]:
                    where, first, second = _difference(key, values[0], value)
                    raise ConfigError(
                        f"ranks differ: {where} is {first} on rank 0 ({self._transport.name_of(0)}) and "
                        f"{second} on rank {rank} ({self._transport.name_of(rank)}); start all ranks alike"
                    )

    # --- failing ---------------------------------------------------------------------------------------------

    def report(self, channel: Channel, error: BaseException) -> None:
        """Report an error to the others, on one channel."""
        code = error.exit_code if isinstance(error, AdaptiveError) else RanksError.exit_code
        text = str(error) if isinstance(error, AdaptiveError) else f"{type(error).__name__}: {error}"
        channel.report_failure(code, text)

    def close(self) -> None:
        self._transport.close()


class _NoTransport(Transport):
    """Of a process alone, which sends nothing."""

    rank, size = 0, 1

    def swap(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int], largest: int) -> list[Bytes]:
        raise AssertionError("a process alone exchanges nothing")

    def name_of(self, rank: int) -> str:
        return "this process"

    def silent(self) -> list[int]:
        return []

    def close(self) -> None:
        return


class LocalRanks(Ranks):
    """This process alone. What all ranks agree on is what it says itself, without copies."""

    is_local = True

    def __init__(self) -> None:
        super().__init__(_NoTransport())

    @property
    def places(self) -> list[str]:
        return []

    def own_part(self, batch: Batch) -> Batch:
        return batch

    def gather_arrays(self, array: NDArray[Any], kind: Kind = Kind.FACTS, batch: int = -1) -> list[NDArray[Any]]:
        return [array]

    def gather_facts(self, facts: Any) -> list[Any]:
        return [facts]

    def require_equal(self, facts: Callable[[], Mapping[str, object]]) -> None:
        return

    def report(self, channel: Channel, error: BaseException) -> None:
        return


ALONE: Final = LocalRanks()
"""For all processes that train alone: it has no state."""


def _difference(key: str, first: Any, second: Any) -> tuple[str, str, str]:
    """Where two values differ, and the values there."""
    while isinstance(first, dict) and isinstance(second, dict):
        inner = next(name for name in {**first, **second} if first.get(name) != second.get(name))
        key, first, second = f"{key}.{inner}", first.get(inner), second.get(inner)
    return key, f"{first!r}"[:200], f"{second!r}"[:200]
