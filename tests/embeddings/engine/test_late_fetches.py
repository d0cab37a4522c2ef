"""Rows that get a slot while batches in flight update them on the host: they come in, and no bit changes.

Gradients here take 1 from a row for each lookup, so what a table must hold after any batch can be written down.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from contract import LRUOnHost
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.helpers import (
    Fixed,
    LFUOnHost,
    ScatteredOnHost,
    after_sums,
    bags,
    one_table,
    sum_of,
    wait_for_look_ahead,
)

from adaptive.batch import Batch
from adaptive.embeddings.engine.tiered_group import LateFetches
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.policy import Policy

NUM_ROWS = 12


class Static(Fixed):
    misses = "host"


@pytest.mark.parametrize("device", ["cpu", "cpu-torch"])
@pytest.mark.parametrize("depth", range(5))
def test_a_row_of_every_batch_gets_a_slot_once_one_is_idle(depth: int, device: str) -> None:
    """Row 0 takes the only slot and is held while batch 0 is in flight; row 7 is worth more once it was used."""
    batches = [bags([0]), *[bags([7])] * 12]
    embeddings = one_table(NUM_ROWS, "1", LRUOnHost, device=device)
    initial = embeddings.rows.table_weights("t")
    in_slot = []
    for planned in embeddings.look_ahead(batches, depth=depth):
        wait_for_look_ahead(embeddings, planned, depth, len(batches))
        plan = planned.works[0].plan
        assert plan is not None
        in_slot.append(plan.row_updates.locations.tolist() == [0])
        sum_of(embeddings(planned)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
    assert in_slot[1:] == [number >= max(depth + 1, 2) for number in range(1, 13)]
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


# --- the same bits -------------------------------------------------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> list[list[int]]:
    """Batches in most of which some rows come again."""
    hot = draw(st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=3))
    batch = st.lists(st.integers(0, NUM_ROWS - 1), min_size=0, max_size=4)
    return [
        cold + [row for row in hot if draw(st.integers(0, 9))] or [0]
        for cold in draw(st.lists(batch, min_size=2, max_size=14))
    ]


class Looks:
    """Trains with the look-ahead as far ahead as it gets, and looks at rows between batches."""

    def __init__(self, embeddings: TieredEmbeddingBag, batches: list[Batch]) -> None:
        self.embeddings, self.batches, self.trained = embeddings, batches, 0
        self.initial = embeddings.rows.table_weights("t")
        self.late = 0

    def train(self, depth: int, stop: int, looks: dict[int, str]) -> None:
        """Up to batch `stop`; `looks`: what is done after which batch."""
        left = self.batches[self.trained :]
        for place, planned in enumerate(self.embeddings.look_ahead(left, depth=depth)):
            wait_for_look_ahead(self.embeddings, planned, depth, planned.number - place + len(left))
            self.late += sum(len(work.plan.moves.late_rows) for work in planned.works if work.plan)
            sum_of(self.embeddings(planned)).backward()  # type: ignore[no-untyped-call]
            self.embeddings.step()
            self.trained += 1
            self.look(looks.get(self.trained, ""))
            if self.trained == stop:
                break

    def look(self, how: str) -> None:
        if how == "flush":
            self.embeddings.rows.flush()
        if how:
            self.assert_right()

    def assert_right(self) -> None:
        expected = after_sums(self.initial, self.batches[: self.trained])
        assert np.array_equal(self.embeddings.rows.table_weights("t"), expected)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    stream=streams(),
    depth=st.integers(0, 4),
    device_rows=st.integers(1, 6),
    policy=st.sampled_from([LRUOnHost, LFUOnHost, ScatteredOnHost, Static]),
    tier=st.sampled_from(
        [{"device": "cpu"}, {"device": "cpu-torch"}, {"device": "cpu-torch", "transfer": "staged"}, {"host": "mmap"}]
    ),
    stop=st.integers(1, 14),
    looks=st.dictionaries(st.integers(1, 14), st.sampled_from(["read", "flush"]), max_size=4),
)
def test_late_rows_change_no_bit(
    tmp_path_factory: pytest.TempPathFactory,
    stream: list[list[int]],
    depth: int,
    device_rows: int,
    policy: type[Policy],
    tier: dict[str, Any],
    stop: int,
    looks: dict[int, str],
) -> None:
    """With reads and flushes, stopped with batches in flight, and resumed with another depth."""
    if tier.get("host") == "mmap":
        tier = {"host": f"mmap:{tmp_path_factory.mktemp('host')}"}
    with one_table(NUM_ROWS, str(device_rows), policy, **tier) as embeddings:
        looking = Looks(embeddings, [bags(rows) for rows in stream])
        looking.train(depth, stop, looks)
        looking.assert_right()
        looking.train(4 - depth, -1, looks)
        looking.assert_right()
        assert looking.trained == len(stream)


@pytest.mark.parametrize(("left_out", "reads"), [("fetch", [6]), ("copy_current", range(1, 7))])
def test_without_either_copy_these_tests_would_fail(
    left_out: str, reads: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, copy = getattr(LateFetches, left_out), LateFetches._copy

    def without_copies(self: LateFetches, *number: int) -> None:
        monkeypatch.setattr(LateFetches, "_copy", lambda self, plans: None)
        method(self, *number)
        monkeypatch.setattr(LateFetches, "_copy", copy)

    monkeypatch.setattr(LateFetches, left_out, without_copies)
    looking = Looks(one_table(NUM_ROWS, "1", LRUOnHost), [bags([0]), *[bags([7])] * 5])
    with pytest.raises(AssertionError):
        looking.train(1, -1, dict.fromkeys(reads, "read"))
