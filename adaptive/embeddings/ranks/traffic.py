"""`RankTraffic`: bytes that one rank sent, by kind, and the time it waited.

Every channel has a `Tally`, which only the channel's thread writes. A `RankTraffic` sums up the tallies of a rank, or
the difference between two points in time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from time import perf_counter
from typing import Final

from adaptive.embeddings.ranks.transport import Kind


@dataclass(frozen=True)
class RankTraffic:
    """Bytes that one rank sent to others, counted once per receiver; rows; times in ms."""

    headers: int = 0  # before every part, to every other rank
    padding: int = 0  # unused room in first messages
    requests: int = 0  # rows requested by the look-ahead thread
    answers: int = 0  # masks of requests that need no vector or no gradient
    vectors: int = 0  # rows, from owners to requesters
    gradients: int = 0  # from requesters to owners
    dense: int = 0  # slices of dense gradients, and their sums; not those of DistributedDataParallel
    predictions: int = 0  # losses and predictions of a step
    other: int = 0  # evaluation, checkpoints, checks of settings
    vectors_spared: int = 0  # bytes of vectors that were not sent, because the requester had cached them
    gradients_spared: int = 0  # bytes of gradients that were not sent, because the owner would have skipped them
    rows_asked: int = 0  # requested of other ranks
    rows_served: int = 0  # requested of this rank, also by itself: the load of an owner
    wait_ms: float = 0.0  # of training, for the first messages of all others: small on the slowest rank
    exchange_ms: float = 0.0  # of training, for the rest of messages

    @property
    def sent(self) -> int:
        """Bytes of all kinds."""
        return sum(int(getattr(self, name)) for name in KINDS)

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "RankTraffic":
        """Create it from the numbers of all fields, in their order."""
        named = zip([field.name for field in fields(cls)], numbers, strict=True)
        return cls(**{name: float(number) if name in TIMES else int(number) for name, number in named})  # type: ignore[arg-type]

    def since(self, earlier: "RankTraffic") -> "RankTraffic":
        """Return the traffic after an earlier point in time."""
        return RankTraffic(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


TIMES: Final = ("wait_ms", "exchange_ms")
KINDS: Final = ("headers", "padding", "requests", "answers", "vectors", "gradients", "dense", "predictions", "other")
"""The fields that are bytes sent."""

_OF_KIND: Final = {
    Kind.REQUESTS: "requests",
    Kind.ANSWERS: "answers",
    Kind.VECTORS: "vectors",
    Kind.GRADIENTS: "gradients",
    Kind.DENSE: "dense",
    Kind.SUMS: "dense",
    Kind.STEP: "predictions",
}


class Tally:
    """Counts of one channel since its start. Only one thread may write."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = asdict(RankTraffic())

    def send(self, kind: Kind, num_bytes: int) -> None:
        """Count bytes that were sent to other ranks."""
        self._numbers[_OF_KIND.get(kind, "other")] += num_bytes

    def add(self, **numbers: float) -> None:
        """Add numbers to fields of `RankTraffic`."""
        for name, number in numbers.items():
            self._numbers[name] += number

    @contextmanager
    def timed(self, kind: Kind, name: str) -> Iterator[None]:
        """Add the time spent inside to a field in ms, if the exchange belongs to a training step."""
        started = perf_counter()
        yield
        if kind in _OF_KIND:
            self._numbers[name] += 1e3 * (perf_counter() - started)

    @staticmethod
    def total(tallies: Sequence["Tally"]) -> RankTraffic:
        """Sum up the channels of a rank; times are those of the last, which is training's."""
        totals = {name: sum(tally._numbers[name] for tally in tallies) for name in tallies[0]._numbers}
        totals |= {name: tallies[-1]._numbers[name] for name in TIMES}
        return RankTraffic.of(list(totals.values()))
