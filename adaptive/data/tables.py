"""Features that share a table: which do, and batches in the order that embeddings ask for, table by table."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.dataset import Dataset, DataShape
from adaptive.data.progress import PartRead


def tables_of(dataset: Dataset | DataShape) -> tuple[str, ...]:
    """The table of each feature: what the data set says in `tables`, else a table per feature, named after it."""
    return dataset.tables or tuple(feature.name for feature in dataset.features)


def shape_of(dataset: Dataset) -> DataShape:
    """What a model must know of a data set."""
    return DataShape(
        dataset.features,
        dataset.num_dense,
        tables_of(dataset),
        dataset.steps,
        dataset.dense_names,
        dataset.labels,
        dict(dataset.widths),
    )


def by_table(dataset: Dataset) -> Dataset:
    """The data set with features of one table side by side; the data set itself if they are."""
    names = tables_of(dataset)
    first = {name: position for position, name in reversed(list(enumerate(names)))}
    order = np.argsort([first[name] for name in names], kind="stable")
    return dataset if (np.diff(order) == 1).all() else _Reordered(dataset, order)


class _Reordered(Dataset):
    """A data set whose features come in another order."""

    def __init__(self, dataset: Dataset, order: NDArray[np.int64]) -> None:
        self.features = tuple(dataset.features[position] for position in order)
        self.tables = tuple(tables_of(dataset)[position] for position in order)
        self.num_dense, self.dense_names, self.labels = dataset.num_dense, dataset.dense_names, dataset.labels
        self.widths = dataset.widths
        self._dataset, self._order = dataset, order

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        return (reordered(batch, self._order) for batch in self._dataset.train(batch_size, epoch=epoch))

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return (reordered(batch, self._order) for batch in self._dataset.evaluation(batch_size))

    def num_train_samples(self) -> int | None:
        return self._dataset.num_train_samples()

    def fingerprint(self) -> dict[str, object]:
        return self._dataset.fingerprint()

    def part_read(self) -> PartRead | None:
        return self._dataset.part_read()

    def rejects(self) -> dict[str, int]:
        return self._dataset.rejects()

    def out_of_range(self) -> dict[str, int]:
        return self._dataset.out_of_range()


def reordered(batch: Batch, order: NDArray[np.int64]) -> Batch:
    """The batch with its features in another order: `order[i]` is the old position of feature i."""
    return batch.reordered(order.tolist())
