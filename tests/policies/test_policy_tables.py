"""Whole tables by their look-ups per byte: what a row is worth, and what that does to a device that fills."""

from itertools import islice

import numpy as np
import pytest
from builders import View, batch_of
from contract import row_stats
from golden_runs import CALIBRATION_BATCHES, batches, drifting_ids
from make_trace import NUM_EMBEDDINGS

from adaptive.config import TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.policies.tables import Tables


def test_a_row_is_worth_its_tables_look_ups_per_byte_whatever_its_own() -> None:
    """Six look-ups each; 10, 100 and 1000 rows of 16 bytes."""
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


def test_without_a_sample_all_rows_are_worth_the_same() -> None:
    policy = Tables()
    policy.calibrate([], View())
    assert policy.score(row_stats(3)).tolist() == [0, 0, 0]


def test_it_is_restored_from_its_state_and_names_what_is_wrong_with_one() -> None:
    policy, restored = Tables(), Tables()
    policy.calibrate([batch_of([3, 3, 5])], View())
    restored.load_state_dict(policy.state_dict())
    assert restored.score(row_stats(2)).tolist() == policy.score(row_stats(2)).tolist()
    with pytest.raises(ValueError, match=r"needed worth, found \['rows'\]"):
        Tables().load_state_dict({"rows": np.arange(3)})


def test_the_better_table_lies_on_the_device_as_a_whole_and_the_other_where_there_is_room() -> None:
    """The drifting trace: tables of 6000 and 400 rows, looked up equally often; 1000 slots.

    A row of the small table is missed once, at its first look-up, and never again, wherever popularity drifts. Of the
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
