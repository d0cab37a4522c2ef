"""Loops over the distinct rows of a batch, shared by a crew. Rows are distinct, so parts write to nothing in common."""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels import planning
from adaptive.rows.tracker import Records, Tracker
from adaptive.tiers.crew import Crew
from adaptive.tiers.plan import Int64s


def locate(crew: Crew, rows: Int64s, codes: NDArray[np.int32], number: int, used: NDArray[np.int32]) -> list[Int64s]:
    """[locations (U,): slots or -1, missing: those without one]; slots are held for batch `number` in `used`."""
    locations, missing = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    stretches = crew.cut(len(rows))
    found: list[Int64s] = [missing] * len(stretches)

    def part(worker: int, at: int) -> None:
        own = stretches[at]
        count = planning.locate(rows[own], codes, locations[own], missing[own])
        found[at] = missing[own.start : own.start + count]
        found[at] += own.start
        planning.hold(locations[own], number, used)

    crew.share(len(stretches), part)
    return [locations, np.concatenate(found) if len(found) > 1 else found[0]]


def touch(
    crew: Crew,
    rows: Int64s,
    counts: NDArray[np.int32],
    locations: Int64s,
    number: int,
    tracker: Tracker,
    used: NDArray[np.int32],
) -> None:
    """Count the look-ups of batch `number` and hold its slots; see `planning.touch`."""
    stretches = crew.cut(len(rows))

    def part(worker: int, at: int) -> None:
        own = stretches[at]
        planning.touch(rows[own], counts[own], locations[own], number, tracker.accesses, tracker.last_access, used)

    crew.share(len(stretches), part)


def gather(crew: Crew, rows: Int64s, tracker: Tracker) -> Records:
    """The records of rows (n,)."""
    stretches = crew.cut(len(rows))
    if len(stretches) == 1:
        return tracker.gather(rows)
    accesses, last = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    norms, codes = np.empty(len(rows), np.float32), np.empty(len(rows), np.int32)

    def part(worker: int, at: int) -> None:
        own = stretches[at]
        accesses[own], last[own], norms[own], codes[own] = tracker.gather(rows[own])

    crew.share(len(stretches), part)
    return Records(accesses, last, norms, codes)
