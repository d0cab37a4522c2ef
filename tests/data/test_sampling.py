"""A share of the samples: how many, which ones, from where, whatever the batches; `drop_negatives`: which samples stay
depends on seed, file and line alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import batch_of

from adaptive.batch import Batch
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.sampling import in_size, take_share

LINES = 4000
MANY = 100_000


def stream(size: int, number: int = MANY) -> list[Batch]:
    """Each input looks up its own number, twice."""
    ids = np.stack([np.arange(number), np.arange(number)], axis=1)
    return [batch_of(ids[first : first + size]) for first in range(0, number, size)]


def numbers(batches: list[Batch]) -> list[int]:
    return [int(row) for batch in batches for row in batch.ids[: batch.num_samples]]


def test_a_share_is_spread_over_all_of_the_data() -> None:
    sample = take_share(stream(512), 0.05, seed=0, most=MANY)
    actual = numbers(sample.batches)
    assert sample.num_samples == MANY
    assert actual == sorted(set(actual))
    per_tenth = np.bincount(np.array(actual) * 10 // MANY)
    assert len(per_tenth) == 10 and (np.abs(per_tenth - 500) < 5 * np.sqrt(500)).all()


def test_which_inputs_depends_on_the_seed_and_not_on_the_batches() -> None:
    first, second = (numbers(take_share(stream(size), 0.05, seed=3, most=MANY).batches) for size in (512, 77))
    assert first == second
    assert first != numbers(take_share(stream(512), 0.05, seed=4, most=MANY).batches)


def test_batches_are_of_one_size() -> None:
    sizes = [
        batch.num_samples for batch in take_share(stream(100, 1000), 0.5, seed=0, most=MANY, batch_size=64).batches
    ]
    assert set(sizes[:-1]) == {64} and 0 < sizes[-1] <= 64
    assert numbers(take_share(stream(100, 1000), 1.0, seed=0, most=MANY, batch_size=64).batches) == list(range(1000))


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_more_than_fit_are_thinned_out_evenly(share: float) -> None:
    sample = take_share(stream(500), share, seed=0, most=4000)
    actual = np.array(numbers(sample.batches))
    assert 1000 < len(actual) <= 4000
    assert abs(actual.mean() / MANY - 0.5) < 0.02
    rate = share / 2 ** np.ceil(np.log2(share * MANY / 4000))
    assert actual.tolist() == numbers(take_share(stream(500), float(rate), seed=0, most=MANY).batches)


def test_reading_may_end_early() -> None:
    read = 0

    def counted() -> object:
        nonlocal read
        for batch in stream(500):
            read += 1
            yield batch

    sample = take_share(counted(), 0.1, seed=0, most=1000, read_all=False)  # type: ignore[arg-type]
    assert sample.num_samples is None and read < 30
    assert 1000 <= len(numbers(sample.batches)) < 1100


def test_a_sample_of_no_data_is_empty() -> None:
    assert take_share([], 0.05, seed=0, most=10).batches == []
    assert take_share(stream(10, 10), 1e-9, seed=0, most=10).batches == []


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


def test_evaluation_keeps_all_samples(day: Path) -> None:
    data = open_dataset(f"criteo:{day}", DataOptions(holdout=0.25, drop_negatives=0.5))
    assert sum(batch.num_samples for batch in data.evaluation(64)) == LINES // 4
    assert data.num_train_samples() is None
    assert data.fingerprint()["drop_negatives"] == 0.5


@given(sizes=st.lists(st.integers(0, 9), max_size=12), size=st.integers(1, 7))
def test_batches_of_any_sizes_in_order(sizes: list[int], size: int) -> None:
    starts = np.cumsum([0, *sizes])
    pieces = (batch_of(np.arange(first, first + count)) for first, count in zip(starts[:-1], sizes, strict=True))
    actual = [batch.ids for batch in in_size(pieces, size)]
    assert np.concatenate([[], *actual]).tolist() == list(range(sum(sizes)))
    assert all(len(ids) == size for ids in actual[:-1]) and all(0 < len(ids) <= size for ids in actual)
