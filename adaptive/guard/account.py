"""What a guard knows, and the account it gives: how much was left out of a run, and what of it has been undone."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from adaptive.counters import Counter
from adaptive.embedding import TieredEmbeddingBag
from adaptive.policy import Policy


@dataclass(frozen=True)
class SkipCounts:
    """Counts since the run began, or of a part of it."""

    updates: int = 0  # one per distinct row and batch
    skipped: int = 0  # of the updates: dropped, or deferred
    deferred: int = 0  # of the skipped
    lookups: int = 0
    skipped_lookups: int = 0  # of rows whose update was skipped
    inputs: int = 0
    dropped: int = 0

    def __add__(self, other: "SkipCounts") -> "SkipCounts":
        return SkipCounts(**{name: count + getattr(other, name) for name, count in asdict(self).items()})

    def __sub__(self, other: "SkipCounts") -> "SkipCounts":
        return SkipCounts(**{name: count - getattr(other, name) for name, count in asdict(self).items()})

    def share_since(self, before: "SkipCounts") -> float:
        """The larger of the two shares."""
        since = self - before
        return max(_share(since.skipped, since.updates), _share(since.dropped, since.inputs))

    def shares_of(self, whole: "SkipCounts") -> dict[str, float]:
        """What is left out here as shares of all that was seen in the `whole`; keys as in the run's summary."""
        return {
            "skipped_update_share": _share(self.skipped, whole.updates),
            "deferred_update_share": _share(self.deferred, whole.updates),
            "skipped_lookup_share": _share(self.skipped_lookups, whole.lookups),
            "skipped_input_share": _share(self.dropped, whole.inputs),
        }


def left_out(embeddings: TieredEmbeddingBag, inputs: int, kept: int) -> SkipCounts:
    """As of now; `kept` of so many `inputs` were not dropped."""
    counts = embeddings.counts()
    return SkipCounts(
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


@dataclass
class GuardState:
    """Batches are those of the data, numbered from 0 over all passes."""

    active: bool = True  # there is something to skip, and it has not been stopped
    place: int = 0  # batches trained
    due: int = 0  # batch of the next check
    begun: bool = False  # the warm-up is over
    allowance: float = 1.0
    passed: float | None = None  # share skipped when this allowance was judged to be within the budget
    passed_at: int = 0
    rate: float = 0.0  # AUC that a batch is held to cost
    spent: float = 0.0  # AUC that all up to `passed_at` is held to have cost
    fork_batches: int = 0  # trained by forks
    judged_batches: int = 0  # predicted by run and fork
    undone_batches: int = 0  # whose skipping was undone
    left_out: dict[str, int] = field(default_factory=dict)  # fields of `share.LeftOut`: all, also what was undone
    undone: dict[str, int] = field(default_factory=dict)  # of these what was undone

    def keep(self, share: float, *, since: int, cost: float) -> None:
        """A check that began at batch `since` was passed: skipping such a share has cost so much AUC meanwhile."""
        self.spent = self.cost_until(since) + cost
        self.rate = cost / (self.place - since)
        self.passed, self.passed_at = share, self.place

    def cost_until(self, place: int) -> float:
        """AUC that all up to a batch is held to cost."""
        return self.spent + (self.rate * (place - self.passed_at) if self.passed is not None else 0.0)


class Account:
    """Keeps the books of a `GuardState`.

    What happened to the rows of a batch is counted when the next batch is asked for. So where something begins or is
    undone behind a batch, the rows' counts up to there are known one step later, and read then.
    """

    def __init__(self) -> None:
        self._latest: SkipCounts | None = None  # what has been added to the books
        self._start = SkipCounts()  # up to where nothing can be undone any more
        self._marks: list[tuple[bool, SkipCounts]] = []  # still to be read: whether it is an undoing, and its inputs

    def begin(self, left_out: SkipCounts) -> None:
        """What is left out from here on may be undone."""
        self._marks.append((False, left_out))

    def undo(self, left_out: SkipCounts) -> None:
        """All that was left out since the latest `begin` or `undo` is undone."""
        self._marks.append((True, left_out))

    def read(self, now: GuardState, left_out: SkipCounts) -> None:
        """Bring the books up to date; at the beginning of a pass, after each step, and at the end of the run."""
        for undoing, marked in self._marks:
            here = replace(left_out, inputs=marked.inputs, dropped=marked.dropped)
            if undoing:
                now.undone = asdict(SkipCounts(**now.undone) + (here - self._start))
            self._start = here
        self._marks.clear()
        if self._latest is not None:
            now.left_out = asdict(SkipCounts(**now.left_out) + (left_out - self._latest))
        self._latest = left_out


def shares(now: GuardState, policy: Policy) -> dict[str, Any]:
    """For the run's summary: what is left out of what the run has trained, what was left out and then undone, and
    whether the run has trained what it would have trained without skipping anything, bit for bit.

    Where inputs were dropped, later batches hold other samples, also if the dropping was undone.
    """
    all_, undone = SkipCounts(**now.left_out), SkipCounts(**now.undone)
    if policy.drops_inputs:  # its own numbers hold what filled no batch at the end of a pass
        all_ = replace(all_, inputs=policy.seen_inputs, dropped=policy.dropped_inputs)
    kept = all_ - undone
    return {
        "guard_kept": kept.shares_of(all_),
        "guard_undone": undone.shares_of(all_),
        "guard_exact": kept.skipped == 0 == all_.dropped,
    }
