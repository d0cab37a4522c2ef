"""`drop_negatives`: which samples stay depends on seed, file and line alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive.batch import Batch, one_hot_batch
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.sampling import in_size

LINES = 4000


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quarter of the samples is positive; the first integer is the line's number."""
    path = tmp_path_factory.mktemp("day") / "day_0"
    path.write_text("".join(f"{int(n % 4 == 0)}\t{n}" + "\t" * 38 + "\n" for n in range(LINES)))
    return path


def kept(day: Path, batch_size: int = 64, *, epoch: int = 0, **options: Any) -> tuple[list[int], list[int]]:
    """Lines and labels in the order of training."""
    batches = list(open_dataset(f"criteo:{day}", DataOptions(**options)).train(batch_size, epoch=epoch))
    assert {batch.num_samples for batch in batches[:-1]} == {batch_size}
    lines = [int(line) for batch in batches for line in batch.origin.lines]  # type: ignore[union-attr]
    return lines, [int(label) for batch in batches for label in batch.labels]


def test_a_share_of_the_negatives_goes_and_no_positive(day: Path) -> None:
    lines, labels = kept(day, drop_negatives=0.875)
    assert sum(labels) == LINES // 4
    assert len(labels) - sum(labels) == pytest.approx(LINES * 3 / 4 * 0.125, rel=0.15)  # 375 +- 18
    assert lines == sorted(lines)


def test_the_same_go_in_every_epoch_batch_size_and_shuffle(day: Path) -> None:
    lines, _ = kept(day, drop_negatives=0.5)
    assert kept(day, 1000, drop_negatives=0.5, epoch=3)[0] == lines
    shuffled, _ = kept(day, drop_negatives=0.5, shuffle_buffer=512)
    assert shuffled != lines and sorted(shuffled) == lines
    assert kept(day, drop_negatives=0.5, seed=1)[0] != lines


def test_what_is_evaluated_keeps_all(day: Path) -> None:
    data = open_dataset(f"criteo:{day}", DataOptions(holdout=0.25, drop_negatives=0.5))
    assert sum(batch.num_samples for batch in data.evaluation(64)) == LINES // 4
    assert data.num_train_samples() is None
    assert data.fingerprint()["drop_negatives"] == 0.5


def _samples(first: int, count: int) -> Batch:
    ids = np.arange(first, first + count, dtype=np.int64)
    return one_hot_batch(dense=np.zeros((count, 0), np.float32), ids=ids[:, None], labels=np.zeros(count, np.float32))


@given(sizes=st.lists(st.integers(0, 9), max_size=12), size=st.integers(1, 7))
def test_batches_of_any_sizes_in_order(sizes: list[int], size: int) -> None:
    starts = np.cumsum([0, *sizes])
    found = [batch.ids for batch in in_size((_samples(int(a), n) for a, n in zip(starts, sizes)), size)]  # noqa: B905
    assert np.concatenate([[], *found]).tolist() == list(range(sum(sizes)))
    assert all(len(ids) == size for ids in found[:-1]) and all(0 < len(ids) <= size for ids in found)
