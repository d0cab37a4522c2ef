"""Lets watched rows go that no longer come, so that others can be watched: when a hot set is full, between batches.

Which rows go follows from look-ups and batch numbers alone. Nothing they learnt is lost: gradients that wait for them
are applied. That their sums are at hand, and that entries can be numbered anew, takes that no batch is in flight; so
training catches up with planning first, at most once in many questions.
"""

from collections.abc import Sequence

import numpy as np

from adaptive.embeddings.engine.pipeline import Lane, Pipeline
from adaptive.embeddings.planning.plan import Int64s, no_rows
from adaptive.embeddings.tiers.device import WatchedValues


def no_longer_come(pipeline: Pipeline) -> list[Int64s]:
    """For each group the watched rows, by their entries, that are to be let go before the next batch is planned."""
    skippers = [lane.planner.skipper for lane in pipeline.lanes]
    number = pipeline.next_number
    return [no_rows() if skipper is None else skipper.no_longer_come(number) for skipper in skippers]


def let_go(pipeline: Pipeline, leaving: Sequence[Int64s]) -> None:
    """Let the entries `leaving` of each group go. For the look-ahead thread; every planned batch is trained."""
    number = pipeline.next_number
    assert pipeline.trained >= number - 1
    pipeline.learn_until(number)  # what was measured names rows by their entries
    with pipeline.lock:
        pipeline.mover.rest(number - 1)
        for lane, entries in zip(pipeline.lanes, leaving, strict=True):
            if len(entries):
                _let_go(pipeline, lane, entries)
        pipeline.finish_copies()


def _let_go(pipeline: Pipeline, lane: Lane, leaving: Int64s) -> None:
    skipper = lane.planner.skipper
    assert skipper is not None
    hot = skipper.hot
    kept = lane.device.kept(hot.num_entries)
    owed = hot.rows[np.intersect1d(kept.waiting, leaving)]
    if len(owed):
        pipeline.put(lane, owed, *pipeline.values(lane, owed))
    stay = np.setdiff1d(np.arange(hot.num_entries), leaving)
    still = np.isin(kept.waiting, stay)
    waiting = np.searchsorted(stay, kept.waiting[still])  # by their new numbers
    snapshots = kept.snapshots[stay] if len(kept.snapshots) else kept.snapshots
    lane.device.keep(WatchedValues(snapshots, waiting, kept.sums[still], kept.squares[still]))
    skipper.keep(stay)
