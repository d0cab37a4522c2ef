"""Made-up rows, batches and tiers for the checks of policies."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.policy import NEVER, SATURATED, RowStats

TABLE_ROWS = (1000, 40, 7)  # one table per feature
STARTS = np.array([0, 1000, 1040, 1047], np.int64)
BATCH_SIZE = 16


def made_up_stats(size: int, step: int = 700) -> RowStats:
    """Return made-up candidates with every special value."""
    random = np.random.default_rng(size + step)
    last_access = random.integers(-1, step + 1, size)
    next_access = np.where(random.random(size) < 0.5, NEVER, step + random.integers(1, 64, size))
    rows = random.choice(STARTS[-1], size, replace=False)
    update_size = random.random(size, np.float32) ** 4
    update_size[random.random(size) < 0.3] = np.nan
    return RowStats(
        step=step,
        rows=rows,
        table=(np.searchsorted(STARTS, rows, "right") - 1).astype(np.int32),
        accesses=np.where(last_access < 0, 0, random.integers(1, 100_000, size)),
        last_access=last_access,
        next_access=next_access,
        update_norm=random.random(size, np.float32) * 100,
        update_size=update_size,
        saturated=update_size < SATURATED,
        resident=random.random(size) < 0.5,
    )


def made_up_batches(num: int | None) -> Iterator[Batch]:
    """Yield `num` batches of skewed ids, the last one smaller, or endlessly if None.

    `dense` has the number of the sample.
    """
    for number in count() if num is None else range(num):
        num_samples = BATCH_SIZE - 5 if number + 1 == num else BATCH_SIZE
        random = np.random.default_rng(number)
        sizes = random.integers(0, 4, len(TABLE_ROWS) * num_samples)
        skewed = random.random(sizes.sum()) ** 3
        rows = np.repeat(np.repeat(np.array(TABLE_ROWS), num_samples), sizes)
        batch = Batch(
            dense=(number * BATCH_SIZE + np.arange(num_samples, dtype=np.float32))[:, None],
            ids=(skewed * rows).astype(np.int64),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]),
            labels=(random.random(num_samples) < 0.25).astype(np.float32),
        )
        for array in (batch.dense, batch.ids, batch.offsets, batch.labels):
            array.flags.writeable = False
        yield batch


def samples_of(batch: Batch) -> Iterator[tuple[int, tuple[object, ...]]]:
    """Yield the number and content of every sample."""
    for sample in range(batch.num_samples):
        bags = range(sample, batch.num_samples * batch.num_features, batch.num_samples)
        ids = tuple(tuple(batch.ids[batch.offsets[bag] : batch.offsets[bag + 1]].tolist()) for bag in bags)
        yield int(batch.dense[sample, 0]), (float(batch.labels[sample]), ids)


@dataclass(frozen=True)
class MadeUpView:
    """Tiers in which every third row is resident, unless told otherwise, and every tenth is saturated."""

    num_rows: int = int(STARTS[-1])
    device_rows: int = int(STARTS[-1]) // 3
    table_starts: NDArray[np.int64] = field(default_factory=STARTS.copy)
    row_bytes: NDArray[np.int64] = field(default_factory=lambda: np.full(len(TABLE_ROWS), 16))
    resident_rows: NDArray[np.bool_] = field(default_factory=lambda: np.arange(STARTS[-1]) % 3 == 0)

    @classmethod
    def empty(cls) -> "MadeUpView":
        """Return tiers without residents, for `follow`."""
        return cls(resident_rows=np.zeros(STARTS[-1], np.bool_))

    def rows(self, batch: Batch) -> NDArray[np.int64]:
        bags = np.repeat(np.arange(len(batch.offsets) - 1), np.diff(batch.offsets))
        return batch.ids + self.table_starts[bags // max(batch.num_samples, 1)]

    def resident(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.resident_rows[rows]

    def accesses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.num_rows - rows

    def saturated(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.equal(rows % 10, 0)


def follow(caller: PolicyCaller, number: int, rows: NDArray[np.int64], view: MadeUpView) -> None:
    """Report a batch to a policy as training does, and update `view`.

    Missing rows come, and half as many of the rows that are not needed leave. Before that, the keys of three rows
    expire that are neither needed nor on the device.
    """
    coming = rows[~view.resident_rows[rows]]
    leaving = np.setdiff1d(np.flatnonzero(view.resident_rows), rows)[: len(coming) // 2]
    caller.notify("expired", number, np.setdiff1d(np.flatnonzero(~view.resident_rows), rows)[:3])
    caller.notify("looked_up", number, rows, view)
    caller.notify("evicted", number, leaving)
    caller.notify("admitted", number, coming)
    view.resident_rows[leaving], view.resident_rows[coming] = False, True
