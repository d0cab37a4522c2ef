"""`Dataset`, what every source of training data offers, whatever its format; and features that share a table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.reading_progress import PartRead
from adaptive.errors import InputError

NO_WIDTHS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Feature:
    """One categorical feature: ids lie in [0, num_embeddings)."""

    name: str
    num_embeddings: int


@dataclass(frozen=True)
class DataShape:
    """What a model must know of data: enough to make it where they are not at hand. Fields as in `Dataset`."""

    features: tuple[Feature, ...]
    num_dense: int
    tables: tuple[str, ...]
    steps: int = 1
    dense_names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)


class Dataset(ABC):
    """A source of batches with a training part and, where there is one, an evaluation part.

    `train` and `evaluation` may be iterated any number of times and give the same batches each time for the
    same arguments. The order is the data's own unless the data set was opened with a shuffle buffer.
    """

    features: tuple[Feature, ...]
    num_dense: int
    tables: tuple[str, ...] | None = None
    """The table of each feature where features share tables; None: a table per feature, named after it."""
    dense_names: tuple[str, ...] = ()
    """Names of the dense inputs, in order; empty where they have none."""
    steps: int = 1
    """Steps of a sample that is a sequence, the last one the candidate that its label is of. Features and dense inputs
    are then those of all steps: a table's features in the order of steps; dense inputs step by step."""

    labels: tuple[str, ...] = ()
    """Names of the labels where samples have several: the first is `Batch.labels`, the others are `Batch.extras` under
    their names, float32 of 0 and 1."""

    widths: Mapping[str, int] = NO_WIDTHS
    """Table -> width of its rows, where the data say so (a schema's `width`); what the model says of a table wins."""

    epochs_differ: bool = False
    """Whether an epoch has other samples than the one before, apart from their order."""

    @abstractmethod
    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Batches of the training part; the last one may be smaller."""

    @abstractmethod
    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Batches of the evaluation part; empty where there is none."""

    @abstractmethod
    def num_train_samples(self) -> int | None:
        """Samples of one epoch, or None where counting would mean reading everything."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """What identifies the data in a run's record: names, sizes, checksums, seeds; JSON values only."""

    def part_read(self) -> PartRead | None:
        """How much is read of the part that was begun last, for an estimate of the time left; None: it is not known."""
        return None

    def rejects(self) -> dict[str, int]:
        """Bad lines so far, by cause; empty for data without lines."""
        return {}

    def out_of_range(self) -> dict[str, int]:
        """Out-of-range ids so far, which went to the row for unknown ids, by feature; empty where that cannot be."""
        return {}


def tables_of(dataset: Dataset | DataShape) -> tuple[str, ...]:
    """The table of each feature: what the data set says in `tables`, else a table per feature, named after it."""
    return dataset.tables or tuple(feature.name for feature in dataset.features)


def shape_of(dataset: Dataset) -> DataShape:
    """What a model must know of a data set."""
    tables, widths = tables_of(dataset), dict(dataset.widths)
    return DataShape(
        dataset.features, dataset.num_dense, tables, dataset.steps, dataset.dense_names, dataset.labels, widths
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
        self._dataset, self._order = dataset, order.tolist()

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        return (batch.reordered(self._order) for batch in self._dataset.train(batch_size, epoch=epoch))

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return (batch.reordered(self._order) for batch in self._dataset.evaluation(batch_size))

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


def require_batches(batches: Iterator[Batch], problem: Callable[[], str]) -> Iterator[Batch]:
    """The batches. Raises InputError: if there are none, with the problem."""
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        raise InputError(problem())
