"""State and report of a guard: skipped work, and how much of it was undone."""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.policy import Policy, drops_inputs, inputs_of
from adaptive.training.telemetry.record import Record
from adaptive.training.telemetry.report import GuardSummary, SkipShares


class LoopRecorder(Protocol):
    """The guard's view of a `Recorder`, which also takes its decisions."""

    steps: int  # trained so far
    samples: int
    loss: float  # mean of the latest batch, predicted before it was trained

    def timed(self, stage: str) -> AbstractContextManager[None]: ...

    def write(self, record: Record) -> None: ...


@dataclass(frozen=True)
class SkipCounts:
    """Numbers of all and of skipped updates, lookups and inputs."""

    updates: int = 0  # one per distinct row and batch
    skipped: int = 0  # updates that were dropped or deferred
    deferred: int = 0  # skipped updates that were deferred
    lookups: int = 0
    skipped_lookups: int = 0  # lookups of rows whose update was skipped
    inputs: int = 0
    dropped: int = 0

    def __add__(self, other: "SkipCounts") -> "SkipCounts":
        return SkipCounts(**{name: count + getattr(other, name) for name, count in asdict(self).items()})

    def __sub__(self, other: "SkipCounts") -> "SkipCounts":
        return SkipCounts(**{name: count - getattr(other, name) for name, count in asdict(self).items()})

    def share_since(self, start: "SkipCounts") -> float:
        """The larger of the shares of skipped updates and of dropped inputs since `start`."""
        since = self - start
        return max(_share(since.skipped, since.updates), _share(since.dropped, since.inputs))

    def shares_of(self, whole: "SkipCounts") -> SkipShares:
        """The skipped work as shares of all work in `whole`; keys as in the run's summary."""
        return {
            "skipped_update_share": _share(self.skipped, whole.updates),
            "deferred_update_share": _share(self.deferred, whole.updates),
            "skipped_lookup_share": _share(self.skipped_lookups, whole.lookups),
            "skipped_input_share": _share(self.dropped, whole.inputs),
        }


def skip_counts(embeddings: TieredEmbeddingBag, inputs: int, trained_inputs: int) -> SkipCounts:
    """The current counts; `trained_inputs` of the `inputs` were not dropped."""
    counts = embeddings.statistics.counts()
    return SkipCounts(
        updates=int(counts[Counter.UNIQUE_ROWS]),
        skipped=int(counts[Counter.SKIPPED_UPDATES]),
        deferred=int(counts[Counter.DEFERRED_UPDATES]),
        lookups=int(counts[Counter.LOOKUPS]),
        skipped_lookups=int(counts[Counter.SKIPPED_LOOKUPS]),
        inputs=inputs,
        dropped=inputs - trained_inputs,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass
class GuardState:
    """State of a guard between two steps; batches are numbered over all passes."""

    active: bool = True  # the policy skips something, and skipping was not stopped
    place: int = 0  # batches trained
    due: int = 0  # batch of the next check
    begun: bool = False  # the warm-up is over
    allowance: float = 1.0
    passed: float | None = None  # skipped share when this allowance passed a check
    passed_at: int = 0
    rate: float = 0.0  # estimated cost of a batch in AUC
    spent: float = 0.0  # estimated cost of all batches up to `passed_at` in AUC
    fork_batches: int = 0  # trained by forks
    judged_batches: int = 0  # predicted by run and fork
    undone_batches: int = 0  # whose skipping was undone
    skip_counts: SkipCounts = SkipCounts()  # everything skipped, including undone work
    undone: SkipCounts = SkipCounts()

    def keep(self, share: float, *, since: int, cost: float) -> None:
        """Record a check passed from batch `since` on: skipped `share`, `cost` in AUC."""
        self.spent = self.cost_until(since) + cost
        self.rate = cost / (self.place - since)
        self.passed, self.passed_at = share, self.place

    def cost_until(self, place: int) -> float:
        """Estimated cost of all batches up to `place` in AUC."""
        return self.spent + (self.rate * (place - self.passed_at) if self.passed is not None else 0.0)


class Account:
    """Counts skipped and undone work for a `GuardState`.

    Row counts of a batch arrive one step late, when the loop asks for the next batch. So `begin` and `undo` leave
    marks, and the next `read` counts up to them.
    """

    def __init__(self) -> None:
        self._latest: SkipCounts | None = None  # already added to the state
        self._start = SkipCounts()  # counts up to here can no longer be undone
        self._marks: list[tuple[bool, SkipCounts]] = []  # unread: (True for an undo, inputs at the mark)

    def begin(self, skip_counts: SkipCounts) -> None:
        """Mark the point up to which skipping can no longer be undone."""
        self._marks.append((False, skip_counts))

    def undo(self, skip_counts: SkipCounts) -> None:
        """Mark all work that was skipped since the latest `begin` or `undo` as undone."""
        self._marks.append((True, skip_counts))

    def read(self, now: GuardState, skip_counts: SkipCounts) -> None:
        """Update the state at the start of a pass, after each step, and at the end."""
        for undoing, marked in self._marks:
            here = replace(skip_counts, inputs=marked.inputs, dropped=marked.dropped)
            if undoing:
                now.undone += here - self._start
            self._start = here
        self._marks.clear()
        if self._latest is not None:
            now.skip_counts += skip_counts - self._latest
        self._latest = skip_counts


def shares(now: GuardState, policy: Policy) -> GuardSummary:
    """Shares of skipped and of undone work for the run's summary.

    `guard_exact` is True if the weights equal those of a run that skips nothing, bit for bit. They do not if inputs
    were dropped, even if that was undone: later batches then hold other samples.
    """
    all_, undone = now.skip_counts, now.undone
    if drops_inputs(policy):  # these counts include inputs that filled no batch at the end of a pass
        seen, dropped = inputs_of(policy)
        all_ = replace(all_, inputs=seen, dropped=dropped)
    remaining = all_ - undone
    return {
        "guard_kept": remaining.shares_of(all_),
        "guard_undone": undone.shares_of(all_),
        "guard_exact": remaining.skipped == 0 == all_.dropped,
    }
