"""`Dataset`, the interface of every source of training data."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Never

import numpy as np

from adaptive.batch import Batch
from adaptive.config import KeyRules
from adaptive.data import PartRead
from adaptive.errors import ConfigError, InputError

DAY: Final = 86_400.0  # seconds
NOTHING: Mapping[str, Never] = MappingProxyType({})
"""The value of facts that a data set does not have."""


@dataclass(frozen=True)
class Feature:
    """A categorical feature, with ids in [0, num_embeddings), or keys of a table with so many rows."""

    name: str
    num_embeddings: int


@dataclass(frozen=True)
class DataShape:
    """The facts about data that a model depends on. Fields as in `Dataset`."""

    features: tuple[Feature, ...]
    num_dense: int
    tables: tuple[str, ...]
    steps: int = 1
    dense_names: tuple[str, ...] = ()
    key_rules: Mapping[str, KeyRules] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)
    bags: tuple[str, ...] = ()
    keep_negatives: float = 1.0


class Dataset(ABC):
    """A source of batches with a training part and an evaluation part, which may be empty.

    `train` and `evaluation` may be called any number of times, and yield the same batches for the same arguments. The
    order is that of the data, unless the data set was opened with a shuffle buffer.
    """

    features: tuple[Feature, ...]
    num_dense: int
    tables: tuple[str, ...] | None = None
    """The table of each feature if features share tables; None: one table for each feature, with its name."""
    dense_names: tuple[str, ...] = ()
    """Names of the dense inputs, in order; empty if they have none."""
    steps: int = 1
    """Steps of a sample that is a sequence; the last step is the candidate, to which the label belongs. Features and
    dense inputs are those of all steps: a table's features in the order of steps, dense inputs step by step."""

    key_rules: Mapping[str, KeyRules] = NOTHING
    """Table -> how keys get and lose rows, for tables whose ids are 64-bit keys. If they expire by time, batches have
    `Batch.extras["timestamp"]`, in seconds."""

    sequences: Mapping[str, int] = NOTHING
    """Feature -> the most ids of a sample, for features whose ids are steps of a sequence, oldest first. All other
    features of their tables have one id per sample."""

    bags: tuple[str, ...] = ()
    """Features that may have any number of ids per sample."""

    keep_negatives: float = 1.0
    """Share of the training samples with label 0 that are kept. Probabilities are corrected for it."""

    hash_rows: Mapping[str, int] = NOTHING
    """Table -> rows into which its ids are hashed, for tables whose ids may collide."""

    @abstractmethod
    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Return batches of the training part; the last one may be smaller."""

    @abstractmethod
    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Return batches of the evaluation part; none if there is no such part."""

    @abstractmethod
    def num_train_samples(self) -> int | None:
        """Return the samples of an epoch, or None if counting would mean reading everything."""

    @abstractmethod
    def fingerprint(self) -> dict[str, object]:
        """Return JSON values that identify the data: names, sizes, checksums, seeds."""

    def raw_values(self, columns: Sequence[str]) -> Callable[[Batch], list[Sequence[Any]]]:
        """Return a function from a batch, in the order of the data, to values of columns as they are in the data."""
        raise ConfigError("expected csv or parquet data for columns next to scores, got others (--with). Leave it out.")

    def part_read(self) -> PartRead | None:
        """Return the progress of the latest iteration, or None if it is not known."""
        return None

    def rejects(self) -> dict[str, int]:
        """Return the number of bad lines so far, by cause; empty for data without lines."""
        return {}

    def out_of_range(self) -> dict[str, int]:
        """Return the number of ids so far that went to the row for unknown ids, by feature."""
        return {}

    def truncated(self) -> dict[str, int]:
        """Return the number of sequences so far whose oldest ids were left out, by feature."""
        return {}


def tables_of(dataset: Dataset | DataShape) -> tuple[str, ...]:
    """Return the table of each feature."""
    return dataset.tables or tuple(feature.name for feature in dataset.features)


def shape_of(dataset: Dataset) -> DataShape:
    """Return the facts about a data set that a model depends on."""
    facts = {f.name: getattr(dataset, f.name) for f in fields(DataShape)} | {"tables": tables_of(dataset)}
    plain: dict[str, Any] = {name: dict(fact) if isinstance(fact, Mapping) else fact for name, fact in facts.items()}
    return DataShape(**plain)


def mapping_of(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a fingerprint says about how values become rows and inputs: equal for data that a model can read."""
    if "mapping" in fingerprint:
        return dict(fingerprint["mapping"])
    groups = (fingerprint.get("schema") or {}).get("categorical") or ()
    mapping = {name: fingerprint.get(name) for name in ("rows", "rows_setting", "vocabularies", "scales")}
    mapping["kinds"] = [[list(group["columns"]), group["kind"]] for group in groups]
    return {name: value for name, value in mapping.items() if value}


def by_table(dataset: Dataset) -> Dataset:
    """Return the data set with features of a table next to each other; itself if they are."""
    names = tables_of(dataset)
    first = {name: position for position, name in reversed(list(enumerate(names)))}
    order = np.argsort([first[name] for name in names], kind="stable").tolist()
    if order == list(range(len(order))):
        return dataset
    ordered = Changed(dataset, lambda batch: batch.reordered(order))
    ordered.features = tuple(dataset.features[position] for position in order)
    ordered.tables = tuple(names[position] for position in order)
    return ordered


class Changed(Dataset):
    """A data set with a function applied to each batch. Set attributes that the function changes."""

    def __init__(self, dataset: Dataset, change: Callable[[Batch], Batch]) -> None:
        for name in Dataset.__annotations__:
            setattr(self, name, getattr(dataset, name))
        self._dataset, self._change = dataset, change

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        return map(self._change, self._dataset.train(batch_size, epoch=epoch))

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return map(self._change, self._dataset.evaluation(batch_size))

    def num_train_samples(self) -> int | None:
        return self._dataset.num_train_samples()

    def fingerprint(self) -> dict[str, object]:
        return self._dataset.fingerprint()

    def raw_values(self, columns: Sequence[str]) -> Callable[[Batch], list[Sequence[Any]]]:
        return self._dataset.raw_values(columns)

    def part_read(self) -> PartRead | None:
        return self._dataset.part_read()

    def rejects(self) -> dict[str, int]:
        return self._dataset.rejects()

    def out_of_range(self) -> dict[str, int]:
        return self._dataset.out_of_range()

    def truncated(self) -> dict[str, int]:
        return self._dataset.truncated()


def require_batches(batches: Iterator[Batch], problem: Callable[[], str]) -> Iterator[Batch]:
    """Yield the batches; raise InputError with the problem if there are none."""
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        raise InputError(problem())
