"""Keys as rows for studies: numbered as a fitted vocabulary numbers them."""

from pathlib import Path

import numpy as np
import pytest
from support.builders import assert_same_batches, csv_data

from adaptive.data.dataset import Dataset, by_table
from adaptive.studies.simulation import number_keys

SCHEMA = """
label = { column = "y" }
categorical = [
    { columns = ["a", "c"], table = "shared", kind = "int", MAPPING },
    { columns = ["b"], kind = "int", num_embeddings = 9 },
    { columns = ["d"], inner_separator = "|", MAPPING },
]
"""


def opened(folder: Path, mapping: str) -> Dataset:
    random = np.random.default_rng(0)
    names = random.zipf(1.3, (60, 3)) % 1000 * 7_919_000_000_000
    lines = [f"{i % 2},{a},{i % 9},{c},{d}|{a}" for i, (a, c, d) in enumerate(names)]
    folder = folder / mapping[:4]  # data that are open must not change
    folder.mkdir()
    return by_table(csv_data(folder, SCHEMA.replace("MAPPING", mapping), "\n".join(["y,a,b,c,d", *lines]) + "\n"))


def test_rows_are_those_of_a_vocabulary(tmp_path: Path) -> None:
    keyed = opened(tmp_path, "keys = true, capacity = 5, expire = 3")
    numbered, fitted = number_keys(keyed), opened(tmp_path, "vocabulary = true")
    assert numbered.features == fitted.features and numbered.tables == fitted.tables
    assert not numbered.key_rules and keyed.key_rules
    assert_same_batches(numbered.train(7), fitted.train(7))


def test_later_keys_share_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.studies.simulation.READ_SAMPLES", 10)
    keyed = opened(tmp_path, "keys = true, capacity = 5")
    numbered = number_keys(keyed, most=10)
    (keys,), (rows,) = keyed.train(60), numbered.train(60)
    part, size = keys.feature_span(0), numbered.features[0].num_embeddings  # of one of the table's features
    early = {int(key) for batch in [next(keyed.train(10))] for f in (0, 1) for key in batch.ids[batch.feature_span(f)]}
    is_early = np.isin(keys.ids[part], list(early))
    assert 0 < is_early.sum() < 60 and size == len(early) + 2
    assert (rows.ids[part][~is_early] == size - 2).all() and (rows.ids[part][is_early] < size - 2).all()


def test_data_without_keys_stay_as_they_are(tmp_path: Path) -> None:
    dataset = opened(tmp_path, "hash_rows = 9")
    assert number_keys(dataset) is dataset
