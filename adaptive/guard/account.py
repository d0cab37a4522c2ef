"""`Account`: what was left out of a run, and what of it has been undone."""

from dataclasses import asdict, replace
from typing import Any

from adaptive.guard.share import LeftOut
from adaptive.guard.standing import Standing
from adaptive.policy import Policy


class Account:
    """Keeps the books of a `Standing`.

    What happened to the rows of a batch is counted when the next batch is asked for. So where something begins or is
    undone behind a batch, the rows' counts up to there are known one step later, and read then.
    """

    def __init__(self) -> None:
        self._latest: LeftOut | None = None  # what has been added to the books
        self._start = LeftOut()  # up to where nothing can be undone any more
        self._marks: list[tuple[bool, LeftOut]] = []  # still to be read: whether it is an undoing, and its inputs

    def begin(self, left_out: LeftOut) -> None:
        """What is left out from here on may be undone."""
        self._marks.append((False, left_out))

    def undo(self, left_out: LeftOut) -> None:
        """All that was left out since the latest `begin` or `undo` is undone."""
        self._marks.append((True, left_out))

    def read(self, now: Standing, left_out: LeftOut) -> None:
        """Bring the books up to date; at the beginning of a pass, after each step, and at the end of the run."""
        for undoing, marked in self._marks:
            here = replace(left_out, inputs=marked.inputs, dropped=marked.dropped)
            if undoing:
                now.undone = asdict(LeftOut(**now.undone) + (here - self._start))
            self._start = here
        self._marks.clear()
        if self._latest is not None:
            now.left_out = asdict(LeftOut(**now.left_out) + (left_out - self._latest))
        self._latest = left_out


def shares(now: Standing, policy: Policy) -> dict[str, Any]:
    """For the run's summary: what is left out of what the run has trained, what was left out and then undone, and
    whether the run has trained what it would have trained without skipping anything, bit for bit.

    Where inputs were dropped, later batches hold other samples, also if the dropping was undone.
    """
    all_, undone = LeftOut(**now.left_out), LeftOut(**now.undone)
    if policy.drops_inputs:  # its own numbers hold what filled no batch at the end of a pass
        all_ = replace(all_, inputs=policy.seen_inputs, dropped=policy.dropped_inputs)
    kept = all_ - undone
    return {
        "guard_kept": kept.shares_of(all_),
        "guard_undone": undone.shares_of(all_),
        "guard_exact": kept.skipped == 0 == all_.dropped,
    }
