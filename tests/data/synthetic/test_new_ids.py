"""New ids in the built-in stream: they replace others day by day, and reach tables as keys or hashed rows."""

from typing import Any

import numpy as np
import pytest
import reference
from support.builders import assert_same_batches

from adaptive.batch import concatenate
from adaptive.config import KeyRules
from adaptive.data.data_options import DataOptions, SyntheticConfig
from adaptive.data.dataset import Dataset, mapping_of
from adaptive.data.kernels.synthetic import live_id
from adaptive.data.open import open_dataset
from adaptive.data.synthetic import Synthetic
from adaptive.errors import ConfigError

SHAPE = {"tables": 4, "rows": 100_000, "num_dense": 2, "num_train": 30_000, "num_eval": 2_000, "days": 10}
KEYS = {"capacity": 70_000, "admit": 2, "expire": "3d"}


def stream(*, keys: dict[str, Any] | None = KEYS, hash_rows: int = 100, **settings: Any) -> Dataset:
    synthetic = {**SHAPE, "new_ids": 0.1, **settings}
    return open_dataset("synthetic", DataOptions(synthetic=synthetic, keys=keys, hash_rows=hash_rows))


def ids_of(dataset: Dataset, feature: int) -> np.ndarray:
    batch = concatenate(list(dataset.train(4096)))
    return batch.ids[batch.feature_span(feature)]


def test_a_share_of_the_ids_is_new_every_day() -> None:
    """Ids that a day and the next both look up most have changed by the share of new ids, on average."""
    config = SyntheticConfig(**SHAPE, new_ids=0.1)
    fields = Synthetic(config)._fields
    assert fields["life"].tolist() == [0, 0, 30_000, 30_000]  # ten days
    field = fields[2]
    days = np.array([[live_id(field, rank, day * 3000) for rank in range(1, 2001)] for day in range(21)])
    new = (days[1:] != days[:-1]).mean(axis=1)
    np.testing.assert_allclose(new, 0.1, atol=0.03)
    assert (days[10] != days[0]).all()  # every id lives ten days
    assert len(np.unique(days)) == 2000 * 3  # and none comes back


def test_the_default_id_stays() -> None:
    config = SyntheticConfig(**{**SHAPE, "tables": 26}, new_ids=0.1)
    fields = Synthetic(config)._fields
    (changing,) = np.nonzero((fields["life"] > 0) & (fields["default_limit"] > 0))
    assert len(changing)
    for field in fields[changing]:
        assert live_id(field, 0, 0) == live_id(field, 0, 10**9)


def test_only_large_tables_change() -> None:
    dataset = stream()
    assert dict(dataset.key_rules) == dict.fromkeys(("C3", "C4"), KeyRules(admit=2, expire="3d"))
    assert [feature.num_embeddings for feature in dataset.features] == [1460, 583, 70_000, 70_000]
    still = open_dataset("synthetic", DataOptions(synthetic=SHAPE))
    for feature in (0, 1):
        np.testing.assert_array_equal(ids_of(dataset, feature), ids_of(still, feature))
    assert ids_of(dataset, 2).min() < -(2**62) < 2**62 < ids_of(dataset, 2).max()


def test_hashed_ids_are_those_of_a_file() -> None:
    keys, rows = ids_of(stream(), 2), ids_of(stream(keys=None), 2)
    assert rows.min() >= 0 and rows.max() < 100
    for key, row in zip(keys[:50].tolist(), rows.tolist(), strict=False):  # docs/how-to/data.md, "Rows of ids"
        assert row == reference.mix(key % reference.WORD) * 100 >> 64


def test_labels_depend_on_the_ids_before_they_are_hashed() -> None:
    (first, *_), (second, *_) = stream().train(4096), stream(keys=None).train(4096)
    np.testing.assert_array_equal(first.labels, second.labels)


def test_days_are_parts_of_the_stream() -> None:
    whole = concatenate(list(stream().train(4096)))
    days = [concatenate(list(stream(day=day).train(512))) for day in range(10)]
    assert [day.num_samples for day in days] == [3000] * 10
    assert_same_batches([concatenate(days)], [whole])
    times = whole.extras["timestamp"]
    np.testing.assert_allclose(times[::3000], np.arange(10) * 86_400.0)
    after = concatenate(list(stream(day=4).evaluation(512)))
    assert_same_batches([after], [days[5].take(np.arange(2000))])
    assert stream(day=4).num_train_samples() == 3000
    last = stream(day=9)
    assert_same_batches(last.evaluation(512), stream().evaluation(512))


def test_fingerprints_differ_only_by_what_changes_samples() -> None:
    assert "mapping" not in open_dataset("synthetic", DataOptions()).fingerprint()
    fingerprints = [one.fingerprint() for one in (stream(), stream(day=3), stream(keys=None), stream(new_ids=0.2))]
    assert all(fingerprints.count(one) == 1 for one in fingerprints)
    assert stream(keys={**KEYS, "admit": 7}).fingerprint() == fingerprints[0]
    assert fingerprints[0]["rows"] == 100_000
    assert [mapping_of(one) for one in fingerprints[:3:2]] == [{"ids": "keyed 70000"}, {"ids": "hashed 101"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": KEYS}, r"data synthetic: expected no data\.keys, got a value: ids are rows without .*new_ids"),
        ({"synthetic": {"new_ids": 0.1}, "vocabulary": True}, r"expected no data\.vocabulary, got a value: new ids"),
        ({"synthetic": {"days": 5, "day": 5}}, "expected day below days = 5, got 5"),
        ({"synthetic": {"num_train": 4, "days": 5}}, "expected days of at most num_train = 4, got 5"),
        ({"keys": KEYS, "vocabulary": True}, "expected keys or vocabulary, got both"),
        ({"keys": {"admit": 2}}, "capacity"),
        ({"keys": {"capacity": 0}}, "greater than or equal to 1, got 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_dataset("synthetic", DataOptions(**options))
