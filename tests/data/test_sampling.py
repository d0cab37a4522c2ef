"""A share of the inputs: how many, which ones, from where, and that it does not depend on how batches are cut."""

import numpy as np
import pytest
from builders import batch_of

from adaptive.batch import Batch
from adaptive.data.sampling import take_share

MANY = 100_000


def stream(size: int, number: int = MANY) -> list[Batch]:
    """Each input looks up its own number, twice."""
    ids = np.stack([np.arange(number), np.arange(number)], axis=1)
    return [batch_of(ids[first : first + size]) for first in range(0, number, size)]


def numbers(batches: list[Batch]) -> list[int]:
    return [int(row) for batch in batches for row in batch.ids[: batch.num_samples]]


def test_a_share_is_spread_over_all_of_the_data() -> None:
    sample = take_share(stream(512), 0.05, seed=0, most=MANY)
    found = numbers(sample.batches)
    assert sample.num_samples == MANY
    assert found == sorted(set(found))
    per_tenth = np.bincount(np.array(found) * 10 // MANY)
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
    found = np.array(numbers(sample.batches))
    assert 1000 < len(found) <= 4000
    assert abs(found.mean() / MANY - 0.5) < 0.02
    rate = share / 2 ** np.ceil(np.log2(share * MANY / 4000))
    assert found.tolist() == numbers(take_share(stream(500), float(rate), seed=0, most=MANY).batches)


def test_or_reading_ends_where_it_has_enough() -> None:
    read = 0

    def counted() -> object:
        nonlocal read
        for batch in stream(500):
            read += 1
            yield batch

    sample = take_share(counted(), 0.1, seed=0, most=1000, read_all=False)  # type: ignore[arg-type]
    assert sample.num_samples is None and read < 30
    assert 1000 <= len(numbers(sample.batches)) < 1100


def test_no_data_are_no_sample() -> None:
    assert take_share([], 0.05, seed=0, most=10).batches == []
    assert take_share(stream(10, 10), 1e-9, seed=0, most=10).batches == []
