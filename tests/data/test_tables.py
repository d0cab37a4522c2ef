"""Features that share a table become neighbors, for any order of the data set."""

from collections.abc import Iterator

import numpy as np

from adaptive.batch import Batch
from adaptive.data.dataset import Dataset, Feature, by_table, tables_of
from adaptive.training.components import build_tables


class Genres(Dataset):
    """Three features, the first and last of which share a table."""

    features = (Feature("first", 9), Feature("user", 5), Feature("second", 9))
    tables = ("genre", "user", "genre")
    num_dense = 0

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        yield Batch(
            dense=np.zeros((2, 0), np.float32),
            ids=np.array([1, 2, 3, 4, 8, 7], np.int64),
            offsets=np.array([0, 1, 3, 3, 4, 4, 6], np.int64),  # first: 1 | 2 3; user: - | 4; second: - | 8 7
            labels=np.array([0, 1], np.float32),
            weights=np.array([0.1, 0.2, 0.3, 0.4, 0.8, 0.7], np.float32),
        )

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return self.train(batch_size)

    def num_train_samples(self) -> int:
        return 2

    def fingerprint(self) -> dict[str, object]:
        return {"name": "genres"}


def test_features_that_share_a_table_are_moved_together() -> None:
    data = by_table(Genres())
    assert [feature.name for feature in data.features] == ["first", "second", "user"]
    assert tables_of(data) == ("genre", "genre", "user")
    for batch in (next(data.train(2)), next(data.evaluation(2))):
        assert batch.ids.tolist() == [1, 2, 3, 8, 7, 4]
        assert batch.offsets.tolist() == [0, 1, 3, 3, 5, 5, 6]
        assert batch.weights is not None
        np.testing.assert_allclose(batch.weights, [0.1, 0.2, 0.3, 0.8, 0.7, 0.4])
    assert (data.num_train_samples(), data.fingerprint(), data.rejects()) == (2, {"name": "genres"}, {})
    tables = build_tables(data, 4)
    assert [(t.name, t.num_embeddings, t.feature_names) for t in tables] == [
        ("genre", 9, ("first", "second")),
        ("user", 5, ("user",)),
    ]


def test_a_data_set_in_order_is_returned_as_it_is() -> None:
    data = by_table(Genres())
    assert by_table(data) is data
