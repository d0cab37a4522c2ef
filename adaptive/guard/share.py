"""How much a policy leaves out: of the row updates, and of the inputs."""

from dataclasses import asdict, dataclass

from adaptive.counters import Counter
from adaptive.embedding import TieredEmbeddingBag


@dataclass(frozen=True)
class LeftOut:
    """Counts since the run began, or of a part of it."""

    updates: int = 0  # one per distinct row and batch
    skipped: int = 0  # of the updates: dropped, or deferred
    deferred: int = 0  # of the skipped
    lookups: int = 0
    skipped_lookups: int = 0  # of rows whose update was skipped
    inputs: int = 0
    dropped: int = 0

    def __add__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(**{name: count + getattr(other, name) for name, count in asdict(self).items()})

    def __sub__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(**{name: count - getattr(other, name) for name, count in asdict(self).items()})

    def share_since(self, before: "LeftOut") -> float:
        """The larger of the two shares."""
        since = self - before
        return max(_share(since.skipped, since.updates), _share(since.dropped, since.inputs))

    def shares_of(self, whole: "LeftOut") -> dict[str, float]:
        """What is left out here as shares of all that was seen in the `whole`; keys as in the run's summary."""
        return {
            "skipped_update_share": _share(self.skipped, whole.updates),
            "deferred_update_share": _share(self.deferred, whole.updates),
            "skipped_lookup_share": _share(self.skipped_lookups, whole.lookups),
            "skipped_input_share": _share(self.dropped, whole.inputs),
        }


def left_out(embeddings: TieredEmbeddingBag, inputs: int, kept: int) -> LeftOut:
    """As of now; `kept` of so many `inputs` were not dropped."""
    counts = embeddings.counts()
    return LeftOut(
        updates=int(counts[Counter.UNIQUE_ROWS]),
        skipped=int(counts[Counter.SKIPPED_UPDATES]),
        deferred=int(counts[Counter.DEFERRED_UPDATES]),
        lookups=int(counts[Counter.LOOKUPS]),
        skipped_lookups=int(counts[Counter.SKIPPED_LOOKUPS]),
        inputs=inputs,
        dropped=inputs - kept,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
