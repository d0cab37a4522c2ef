"""The policies that every test of "any policy" runs over. A new policy is added to one list, here."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.example_policies import RecShard, S3Fifo, Sieve
from support.skip_rules import LeaveOut

from adaptive.batch import Batch, concatenate
from adaptive.plugins import make_rule
from adaptive.policies.device import Device
from adaptive.policies.fae import FAE
from adaptive.policies.hotline import Hotline
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policies.random_drop import RandomDrop
from adaptive.policies.scratchpipe import ScratchPipe
from adaptive.policies.slipstream import Slipstream
from adaptive.policies.static import Static
from adaptive.policies.tables import Tables
from adaptive.policy import InputPolicy, InputRule, Policy, RowStats, TierView


class RandomScores(Policy):
    """Scores by a generator that starts anew at every question, so that equal questions get equal answers."""

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.random.default_rng(rows.step).random(len(rows))


class RandomOnHost(RandomScores):
    misses = "host"


class LRUOnHost(LRU):
    misses = "host"


class MostRecentOut(Policy):
    """The opposite of LRU: a poor idea, and still a valid one."""

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return -rows.last_access


class Infinite(Policy):
    """Scores of plus and minus infinity, many of them equal."""

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.where(rows.rows % 2 == 0, np.inf, -np.inf)


class Regrouping(LRU, InputPolicy):
    """Two batches become one, its samples in reverse order."""

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            following = next(batches, None)
            joined = batch if following is None else concatenate([batch, following])
            yield joined.take(np.arange(joined.num_samples)[::-1])


class DropsOdd(InputRule):
    """Every other sample is left out."""

    def keep(self, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        self.batch_share = 0.5
        return np.arange(batch.num_samples) % 2 == 0

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        raise AssertionError("not asked")


class Dropping(LRU):
    def __init__(self) -> None:
        self.rule = DropsOdd()


class InParts(LRU, InputPolicy):
    """Every batch is cut in two, not in the middle."""

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            first = batch.num_samples // 3
            yield replace(batch, part_sizes=(first, batch.num_samples - first)) if first else batch


class Carrying(LFU):
    """Carries a skip rule of its own."""

    def __init__(self, *, spec: str = "defer") -> None:
        super().__init__()
        self.rule = make_rule(spec)


class EagerlySaturating(LRU):
    """Half of the rows are saturated, whatever they do."""

    def __init__(self) -> None:
        self.rule = LeaveOut(lambda rows: np.equal(rows.rows % 2, 0))


BUILT_INS: list[type[Policy]] = [
    Hybrid,
    Device,
    Static,
    LRU,
    LFU,
    ScratchPipe,
    Slipstream,
    FAE,
    Hotline,
    RandomDrop,
    Tables,
]

OTHERS: list[type[Policy]] = [
    RecShard,
    Sieve,
    S3Fifo,
    RandomScores,
    RandomOnHost,
    LRUOnHost,
    MostRecentOut,
    Infinite,
    Regrouping,
    Dropping,
    InParts,
    EagerlySaturating,
]

POLICIES: list[tuple[type[Policy], dict[str, Any]]] = [
    *((cls, {}) for cls in BUILT_INS + OTHERS),
    (LFU, {"half_life": 20}),
    (ScratchPipe, {"window": 1}),
    (Carrying, {"spec": "defer+at_most=3+warmup=0"}),
    (Carrying, {"spec": "support.skip_rules:Waits+most=3"}),
    (Carrying, {"spec": "predicted+warmup=2+factor=2"}),
    (FAE, {"select": "top", "rate": 10, "block": 5}),
    (FAE, {"rate": 25, "block": 4, "held_back": 4, "measure_every": 1, "spool_bytes": 1}),
    (Hotline, {"learn": 4}),
    (Hotline, {"learn": 4, "micro_batches": False}),
]


def policy_id(case: tuple[type[Policy], dict[str, Any]]) -> str:
    """Name of a case in the test report."""
    cls, options = case
    return "-".join([cls.__name__, *(f"{key}={value}" for key, value in options.items())])


def row_stats(size: int, **columns: Any) -> RowStats:
    """`RowStats` of `size` rows 0..size-1 of one table, fresh but for the given columns."""
    values: dict[str, Any] = {
        "step": 0,
        "rows": np.arange(size),
        "table": np.zeros(size, np.int32),
        "accesses": np.zeros(size, np.int64),
        "last_access": np.full(size, -1),
        "next_access": np.full(size, np.iinfo(np.int64).max),
        "update_norm": np.zeros(size, np.float32),
        "update_size": np.full(size, np.nan, np.float32),
        "saturated": np.zeros(size, np.bool_),
        "resident": np.ones(size, np.bool_),
    }
    assert set(columns) <= set(values), columns
    given = {
        name: np.asarray(value, values[name].dtype) if name != "step" else value for name, value in columns.items()
    }
    return RowStats(**values | given)
