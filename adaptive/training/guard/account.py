"""What a guard knows, and its report: how much was left out of a run, and how much of that was undone."""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.policy import Policy, drops_inputs, inputs_of
from adaptive.training.telemetry.record import Record
from adaptive.training.telemetry.report import GuardSummary, SkipShares


class LoopRecorder(Protocol):
    """What a guard hears of training, and where it records decisions: a `Recorder`."""

    steps: int  # trained so far
    samples: int
    loss: float  # mean of the latest batch, predicted before it was learnt

    def timed(self, stage: str) -> AbstractContextManager[None]: ...

    def write(self, record: Record) -> None: ...


@dataclass(frozen=True)
class SkipCounts:
    """How many updates, look-ups and inputs there were and were skipped, in a run so far or in a stretch of it."""

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
        """The larger of the shares of updates skipped and of inputs dropped since `before`."""
        since = self - before
        return max(_share(since.skipped, since.updates), _share(since.dropped, since.inputs))

    def shares_of(self, whole: "SkipCounts") -> SkipShares:
        """What was skipped here, as shares of what there was in `whole`; keys as in the run's summary."""
        return {
            "skipped_update_share": _share(self.skipped, whole.updates),
            "deferred_update_share": _share(self.deferred, whole.updates),
            "skipped_lookup_share": _share(self.skipped_lookups, whole.lookups),
            "skipped_input_share": _share(self.dropped, whole.inputs),
        }


def left_out(embeddings: TieredEmbeddingBag, inputs: int, kept: int) -> SkipCounts:
    """The counts as of now; `kept` of the `inputs` were not dropped."""
    counts = embeddings.statistics.counts()
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
    """What a guard knows between two steps. Batches are those of the data, numbered from 0 over all passes."""

    active: bool = True  # there is something to skip, and it has not been stopped
    place: int = 0  # batches trained
    due: int = 0  # batch of the next check
    begun: bool = False  # the warm-up is over
    allowance: float = 1.0
    passed: float | None = None  # share skipped when this allowance was judged to be within the budget
    passed_at: int = 0
    rate: float = 0.0  # AUC that each batch is taken to cost
    spent: float = 0.0  # AUC that all batches up to `passed_at` are taken to have cost
    fork_batches: int = 0  # trained by forks
    judged_batches: int = 0  # predicted by run and fork
    undone_batches: int = 0  # whose skipping was undone
    left_out: SkipCounts = SkipCounts()  # all, also what was undone
    undone: SkipCounts = SkipCounts()

    def keep(self, share: float, *, since: int, cost: float) -> None:
        """Note a passed check that began at batch `since`: since then a `share` was skipped, which cost `cost` AUC."""
        self.spent = self.cost_until(since) + cost
        self.rate = cost / (self.place - since)
        self.passed, self.passed_at = share, self.place

    def cost_until(self, place: int) -> float:
        """AUC that all batches up to `place` are taken to cost."""
        return self.spent + (self.rate * (place - self.passed_at) if self.passed is not None else 0.0)


class Account:
    """Counts for a `GuardState` what was left out of the run, and what of that was undone.

    A batch's row counts arrive one step late, when the next batch is asked for. So `begin` and `undo` leave marks, and
    the counts up to there are read at the next step.
    """

    def __init__(self) -> None:
        self._latest: SkipCounts | None = None  # what has been added to the books
        self._start = SkipCounts()  # counts up to here can no longer be undone
        self._marks: list[tuple[bool, SkipCounts]] = []  # not read yet: (whether it is an undo, inputs then)

    def begin(self, left_out: SkipCounts) -> None:
        """Mark the point from which on skipping may be undone."""
        self._marks.append((False, left_out))

    def undo(self, left_out: SkipCounts) -> None:
        """Mark as undone all that was left out since the latest `begin` or `undo`."""
        self._marks.append((True, left_out))

    def read(self, now: GuardState, left_out: SkipCounts) -> None:
        """Bring the books up to date. Called at the beginning of a pass, after each step, and at the end of the run."""
        for undoing, marked in self._marks:
            here = replace(left_out, inputs=marked.inputs, dropped=marked.dropped)
            if undoing:
                now.undone += here - self._start
            self._start = here
        self._marks.clear()
        if self._latest is not None:
            now.left_out += left_out - self._latest
        self._latest = left_out


def shares(now: GuardState, policy: Policy) -> GuardSummary:
    """For the run's summary: the shares skipped in the trained run, the shares skipped and then undone, and whether
    the result is, bit for bit, that of a run that skips nothing.

    It is not if inputs were dropped, even if that was undone: later batches then hold other samples.
    """
    all_, undone = now.left_out, now.undone
    if drops_inputs(policy):  # its own counts include inputs that filled no batch at the end of a pass
        seen, dropped = inputs_of(policy)
        all_ = replace(all_, inputs=seen, dropped=dropped)
    kept = all_ - undone
    return {
        "guard_kept": kept.shares_of(all_),
        "guard_undone": undone.shares_of(all_),
        "guard_exact": kept.skipped == 0 == all_.dropped,
    }
