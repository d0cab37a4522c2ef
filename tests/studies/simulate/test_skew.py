"""`simulate --skew`: shares of the lookups, and ids that share a row."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy import SIZES, ToyData, toy_config

import adaptive.studies.skew
from adaptive.batch import Batch
from adaptive.data.dataset import by_table
from adaptive.errors import InputError
from adaptive.studies.skew import TableSkew, count_skew, skew_document, table_skew


def test_lookups_are_counted_by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = ToyData()
    monkeypatch.setattr(adaptive.studies.skew, "open_data", lambda config: by_table(toy))
    result = count_skew(toy_config(batch_size=64, steps=3))
    ids = np.concatenate([batch.ids.reshape(3, -1) for batch, _ in zip(toy.train(64), range(3), strict=False)], axis=1)
    assert (result.batches, result.samples) == (3, 192)
    for table, values in zip(result.tables, ids, strict=True):
        counts = np.sort(np.bincount(values))[::-1]
        assert (table.rows, table.lookups, table.used_rows) == (SIZES[table.table], 192, len(set(values.tolist())))
        assert table.top_10_share == counts[: -(-table.rows // 10)].sum() / 192 and table.shared_ids_share is None
    json.dumps(asdict(result), allow_nan=False)
    text = skew_document(result).to_text()
    assert "576 lookups of 192 samples in 3 batches" in text and "sharing a row" in text


def test_a_small_case_equals_one_worked_by_hand() -> None:
    counts = np.array([0, 6, 1, 0, 0, 2, 0, 0, 0, 1])
    assert table_skew("t", counts, None) == TableSkew("t", 10, 4, 10, 0.6, 0.6, None)
    assert table_skew("t", np.zeros(5, np.int64), None).top_1_share is None
    assert table_skew("t", counts, 8).shared_ids_share == 3 / 8, "not the rows of missing ids"


@given(st.integers(50, 400), st.integers(0, 9))
def test_collisions_of_hashed_ids_are_close(ids: int, seed: int) -> None:
    """Random rows for 50 to 400 ids in 500 rows, against the ids that share one."""
    rows = np.random.default_rng(seed).integers(0, 500, ids)
    counts = np.bincount(rows, minlength=500)
    share = table_skew("t", counts, 500).shared_ids_share
    assert share is not None and abs(share - (counts[rows] > 1).mean()) < 0.2


def test_empty_data_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(ToyData):
        def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
            return iter(())

    monkeypatch.setattr(adaptive.studies.skew, "open_data", lambda config: Empty())
    with pytest.raises(InputError, match="expected training samples, got none"):
        count_skew(toy_config())
