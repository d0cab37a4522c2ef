"""What tests hand to readers and policies: files of text, one-hot batches, tiers that hold nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import SkipConfig
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.open import open_dataset
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.policies.lru import LRU
from adaptive.policy import InputRule


def csv_data(folder: Path, schema: str, text: str, **options: Any) -> Dataset:
    """The data set of `folder`/data.csv, which gets this text and this schema."""
    (folder / "schema.toml").write_text(schema)
    (folder / "data.csv").write_text(text)
    return open_dataset(f"csv:{folder / 'data.csv'}", DataOptions(schema_path=folder / "schema.toml", **options))


def batch_of(ids: ArrayLike, labels: ArrayLike | None = None) -> Batch:
    """A batch without dense inputs: ids (samples, features), or (samples,) of one feature; labels are 0 by default."""
    ids = np.asarray(ids)
    labels = np.zeros(len(ids)) if labels is None else np.asarray(labels)
    dense = np.zeros((len(ids), 0), np.float32)
    return one_hot_batch(dense, ids if ids.ndim == 2 else ids[:, None], labels.astype(np.float32))


def assert_same_batches(found: Iterable[Batch], wanted: Iterable[Batch], *, places: bool = False) -> None:
    """The same samples in the same batches, bit for bit and of the same types; `places`: from the same lines."""
    for batch, twin in zip(found, wanted, strict=True):
        for name in ("dense", "ids", "offsets", "labels"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(twin, name), err_msg=name, strict=True)
        assert list(batch.extras) == list(twin.extras)
        for name, values in twin.extras.items():
            np.testing.assert_array_equal(batch.extras[name], values, err_msg=name, strict=True)
        origins = [
            None if one.origin is None else [*map(one.origin.where, range(one.num_samples))] for one in (batch, twin)
        ]
        assert not places or origins[0] == origins[1]


FEW_ROWS = 100
HOT_EARLY = SkipConfig(interval=4, hot_rows="50%", min_accesses=4, feedback_delay=4)
"""For runs of few batches: half of the rows can be hot, from their fourth lookup on."""


def skewed_batches() -> Iterator[Batch]:
    """60 batches of 16 look-ups of one table of `FEW_ROWS` rows, some of them far more often than others."""
    random = np.random.default_rng(7)
    for _ in range(60):
        ids = random.zipf(1.4, (16, 1)) % FEW_ROWS
        yield batch_of(ids, ids[:, 0] % 3 == 0)


@dataclass
class View:
    """A `TierView` of tables with equally many features, of one id each. No row is on the device or was looked up."""

    sizes: Sequence[int] = (100,)
    device_rows: int = 10
    bytes_a_row: int = 16

    @property
    def table_starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        return np.full(len(self.sizes), self.bytes_a_row)

    @property
    def num_rows(self) -> int:
        return sum(self.sizes)

    def rows(self, batch: Batch) -> NDArray[np.int64]:
        return batch.ids + np.repeat(self.table_starts[:-1], len(batch.ids) // len(self.sizes))

    def resident(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(rows), np.bool_)

    saturated = resident

    def accesses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros(len(rows), np.int64)


def kept_batches(rule: InputRule, batches: Iterator[Batch], sizes: Sequence[int] = (FEW_ROWS,)) -> list[Batch]:
    """What training gets of the batches under an input rule, of tables of these sizes."""
    policy, view = LRU(), View(sizes)
    policy.rule = rule
    return list(PolicyCaller(policy).arrange(batches, view, view.rows))
