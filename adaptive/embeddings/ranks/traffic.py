"""`RankTraffic`: what one rank sent to the others, by kind, and how long it waited for them.

Every channel keeps a `Tally`, written by the channel's own thread only; a `RankTraffic` is the difference of two looks
at both.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from time import perf_counter
from typing import Final

from adaptive.embeddings.ranks.transport import Kind


@dataclass(frozen=True)
class RankTraffic:
    """Bytes that one rank sent to other ranks, each counted once for each rank it went to, and what goes with them."""

    headers: int = 0  # before every part, to every other rank
    padding: int = 0  # room in first messages that was not filled
    requests: int = 0  # rows asked for, one look-ahead early
    answers: int = 0  # which requests need no vector or no gradient
    vectors: int = 0  # rows, from owners to askers
    gradients: int = 0  # from askers to owners
    dense: int = 0  # slices of dense gradients, and their sums; not those of DistributedDataParallel
    predictions: int = 0  # losses and predictions of a step
    other: int = 0  # evaluation, checkpoints, agreements
    vectors_spared: int = 0  # bytes of vectors that did not cross, as the asker had them
    gradients_spared: int = 0  # bytes of gradients that did not cross, as the owner would have left them out
    rows_asked: int = 0  # of other ranks
    rows_served: int = 0  # asked of this rank, by itself too: an owner's load
    wait_ms: float = 0.0  # of training, until first messages of all others had come: small on the slowest rank
    exchange_ms: float = 0.0  # of training, while what they had no room for crossed

    @property
    def sent(self) -> int:
        """Bytes of all kinds."""
        return sum(int(getattr(self, name)) for name in KINDS)

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "RankTraffic":
        """Of the fields' numbers in their order."""
        named = zip([one.name for one in fields(cls)], numbers, strict=True)
        return cls(**{name: float(number) if name in TIMES else int(number) for name, number in named})  # type: ignore[arg-type]

    def since(self, earlier: "RankTraffic") -> "RankTraffic":
        """What came after an earlier look."""
        return RankTraffic(*(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self)))


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
    """Counts of one channel since its start; for one writing thread."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = asdict(RankTraffic())

    def send(self, kind: Kind, num_bytes: int) -> None:
        """Count the parts for other ranks of one exchange."""
        self._numbers[_OF_KIND.get(kind, "other")] += num_bytes

    def add(self, **numbers: float) -> None:
        """Count fields of `RankTraffic`."""
        for name, number in numbers.items():
            self._numbers[name] += number

    @contextmanager
    def timed(self, kind: Kind, name: str) -> Iterator[None]:
        """Add the time spent inside, in an exchange of a training step, to a field in ms."""
        started = perf_counter()
        yield
        if kind in _OF_KIND:
            self._numbers[name] += 1e3 * (perf_counter() - started)

    @staticmethod
    def total(tallies: Sequence["Tally"]) -> RankTraffic:
        """Of all channels of a rank. Times are those of the last one, which is that of training."""
        whole = {one.name: sum(tally._numbers[one.name] for tally in tallies) for one in fields(RankTraffic)}
        whole |= {name: tallies[-1]._numbers[name] for name in TIMES}
        return RankTraffic.of(list(whole.values()))
