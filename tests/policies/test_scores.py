"""What each built-in keeps and what it lets go, on rows written out."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from contract import row_stats
from support.builders import View, batch_of
from support.example_policies import RecShard
from support.golden_runs import CALIBRATION_BATCHES, batches, drifting_ids
from support.make_trace import NUM_EMBEDDINGS

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.policies.device import Device
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policies.scratchpipe import ScratchPipe
from adaptive.policies.static import Static
from adaptive.policies.tables import Tables
from adaptive.policy import NEVER, Policy, RowStats


def leaving(policy: Policy, rows: RowStats) -> list[int]:
    """Rows in the order in which they leave; of equal scores the one given first."""
    order = np.argsort(policy.score(rows), kind="stable")
    return [int(row) for row in rows.rows[order]]


def sample(*batches: Sequence[int]) -> list[Batch]:
    return [batch_of(ids) for ids in batches]


def test_lru_lets_the_least_recent_go_first() -> None:
    assert leaving(LRU(), row_stats(4, step=9, last_access=[7, 2, 8, -1])) == [3, 1, 0, 2]


def test_lfu_evicts_the_least_frequent_then_the_least_recent() -> None:
    rows = row_stats(5, step=9, accesses=[5, 1, 9, 1, 0], last_access=[1, 8, 0, 3, -1])
    assert leaving(LFU(), rows) == [4, 3, 1, 0, 2]


def test_lfu_with_a_half_life_forgets_what_was_popular() -> None:
    rows = row_stats(3, step=100, accesses=[1000, 4, 1], last_access=[0, 98, 100])
    assert leaving(LFU(), rows) == [2, 1, 0]
    assert leaving(LFU(half_life=10), rows) == [0, 2, 1]  # 1000 / 2^10 < 1 / 2^0 < 4 / 2^0.2
    scores = LFU(half_life=10).score(rows)
    np.testing.assert_allclose(2.0**scores, [1000 / 2**10, 4 / 2**0.2, 1])


def test_lfu_with_a_half_life_does_not_underflow() -> None:
    rows = row_stats(2, step=100_000, accesses=[8, 8], last_access=[10, 20])
    assert leaving(LFU(half_life=1), rows) == [0, 1]


def test_static_keeps_what_was_frequent_in_the_sample() -> None:
    policy = Static()
    policy.calibrate(sample([3, 3, 5], [5, 5, 2]), View())
    rows = row_stats(7, accesses=np.arange(7) * 100)
    assert policy.score(rows).tolist() == [0, 0, 1, 2, 0, 3, 0]


def test_scratchpipe_evicts_unneeded_rows_then_the_farthest() -> None:
    next_access = [51, 60, NEVER, NEVER, 52, NEVER]
    rows = row_stats(6, step=50, last_access=[40, 49, 3, 50, 48, -1], next_access=next_access)
    assert leaving(ScratchPipe(), rows) == [5, 2, 3, 1, 4, 0]


def test_baselines_fix_their_tiers() -> None:
    assert (Hybrid.misses, Hybrid.device_rows) == ("host", "0")
    assert (Device.misses, Device.device_rows) == ("prefetch", "100%")
    assert all(TierConfig(device_rows=str(cls.device_rows)) for cls in (Hybrid, Device))
    assert Hybrid().score(row_stats(2)).tolist() == [0, 0]
    assert leaving(Device(), row_stats(3, step=9, last_access=[7, 8, 6])) == [2, 0, 1]


# --- `tables`: whole tables by their lookups per byte ----------------------------------------------------------------


def test_a_row_is_worth_its_tables_lookups_per_byte() -> None:
    """Six lookups each; 10, 100 and 1000 rows of 16 bytes."""
    policy = Tables()
    ids = np.array([[0, 5, 5], [1, 5, 5], [2, 5, 900]])
    policy.calibrate([batch_of(ids), batch_of(ids)], View(sizes=(10, 100, 1000)))
    stats = row_stats(4, table=[0, 1, 2, 2], accesses=[0, 0, 9, 0])
    assert policy.score(stats) == pytest.approx([6 / 160, 6 / 1600, 6 / 16000, 6 / 16000])


def test_a_table_of_half_the_width_is_worth_twice_as_much() -> None:
    class TwoWidths(View):
        @property
        def row_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array([16, 8])

    policy = Tables()
    policy.calibrate([batch_of(np.array([[0, 0], [3, 3]]))], TwoWidths(sizes=(10, 10)))
    wide, narrow = policy.score(row_stats(2, table=[0, 1]))
    assert narrow == 2 * wide > 0


def test_the_better_table_is_on_the_device_as_a_whole() -> None:
    """The drifting trace: tables of 6000 and 400 rows, looked up equally often; 1000 slots.

    A row of the small table is missed once, at its first lookup, and never again, wherever popularity drifts. Of the
    large one 600 rows stay once the small one is there: those that came first, whatever is popular later.
    """
    tables = [TableConfig(name=f"t{t}", num_embeddings=rows, embedding_dim=1) for t, rows in enumerate(NUM_EMBEDDINGS)]
    with TieredEmbeddingBag(tables, TierConfig(device_rows="1000", device="cpu"), policy=Tables()) as embeddings:
        embeddings.calibrate(list(islice(batches(drifting_ids()), CALIBRATION_BATCHES)))
        for batch in embeddings.look_ahead(batches(drifting_ids()), depth=0):
            embeddings.stack(batch).sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
        counts = embeddings.statistics.take().counts
        view, starts = embeddings.runtime.view, np.cumsum([0, *NUM_EMBEDDINGS])
        rows = np.arange(starts[-1])
        resident = [view.resident(rows[starts[t] : starts[t + 1]]) for t in (0, 1)]
    small = counts[1]
    seen = np.unique(drifting_ids()[:, :, 1])
    assert small[Counter.UNIQUE_ROWS] - small[Counter.ROW_HITS] == len(seen)
    np.testing.assert_array_equal(np.flatnonzero(resident[1]), seen)
    assert int(resident[0].sum()) == 1000 - len(seen)


# --- `recshard`: lookups per sample, smoothed by steps ----------------------------------------------------------------


TWO_TABLES = View(sizes=(10, 1000))


def recshard_scores(policy: RecShard, rows: Sequence[int]) -> list[float]:
    stats = row_stats(len(rows), table=(np.array(rows) >= 10).astype(np.int32))
    object.__setattr__(stats, "rows", np.array(rows))
    return [float(score) for score in policy.score(stats)]


def recshard(first: Sequence[int], second: Sequence[int], **options: Any) -> RecShard:
    policy = RecShard(**options)
    policy.calibrate([batch_of(np.stack([first, second], axis=1))], TWO_TABLES)
    return policy


def test_a_row_is_worth_its_lookups_per_sample() -> None:
    """Nobody was seen once, so nothing is expected of the unseen."""
    policy = recshard([0, 0, 0, 1, 1, 0], [5, 5, 5, 5, 5, 5])
    assert recshard_scores(policy, [0, 1, 2, 15, 16]) == pytest.approx([4 / 6, 2 / 6, 0, 1, 0])


def test_having_been_seen_makes_no_row_less_likely() -> None:
    policy = recshard(list(range(9)), [0] * 9)
    assert min(recshard_scores(policy, list(range(9)))) >= recshard_scores(policy, [9])[0]
