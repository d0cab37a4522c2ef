"""`Batch`: what it refuses, and that rearranging samples loses nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin, concatenate, one_hot_batch

Sample = tuple[float, list[list[int]], list[list[float]], str]


def floats(*values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def ints(*values: Any) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def two_by_two(**changes: Any) -> Batch:
    """2 samples, 2 features: feature 0 has bags (1 2) and (), feature 1 has (3) and (4 5)."""
    arrays: dict[str, Any] = {
        "dense": floats([0.5], [1.5]),
        "ids": ints(1, 2, 3, 4, 5),
        "offsets": ints(0, 2, 2, 3, 5),
        "labels": floats(0, 1),
    }
    return Batch(**arrays | changes)


def samples_of(batch: Batch) -> list[Sample]:
    """The batch as a list of its samples: label with dense input, ids and weights per feature, origin."""
    samples = []
    for b in range(batch.num_samples):
        spans = [
            slice(batch.offsets[f * batch.num_samples + b], batch.offsets[f * batch.num_samples + b + 1])
            for f in range(batch.num_features)
        ]
        weights = [] if batch.weights is None else [batch.weights[span].tolist() for span in spans]
        where = "" if batch.origin is None else batch.origin.where(b)
        samples.append((float(batch.labels[b]), [batch.ids[span].tolist() for span in spans], weights, where))
        assert batch.dense[b].tolist() == [batch.labels[b]] * batch.dense.shape[1]
    return samples


def assert_checked(batch: Batch) -> None:
    """What is made without checks passes them, and what is known of its bags is true."""
    assert replace(batch).bag_size == batch.bag_size


@st.composite
def batches(
    draw: st.DrawFn, min_samples: int = 0, num_features: int | None = None, weighted: bool | None = None
) -> Batch:
    num_samples = draw(st.integers(min_samples, 5))
    features = draw(st.integers(0, 3)) if num_features is None else num_features
    num_bags = num_samples * features
    size = draw(st.sampled_from([None, 1, 2]))  # bags of one size have a way of their own
    bag_sizes = [size] * num_bags if size else draw(st.lists(st.integers(0, 3), min_size=num_bags, max_size=num_bags))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    num_ids = sum(bag_sizes)
    labels = rng.normal(size=num_samples).astype(np.float32)
    with_weights = draw(st.booleans()) if weighted is None else weighted
    origin = Origin(("a", "b"), rng.integers(0, 2, num_samples).astype(np.int32), rng.integers(1, 99, num_samples))
    return Batch(
        dense=np.repeat(labels[:, None], 2, axis=1),
        ids=rng.integers(0, 2**40, num_ids),
        offsets=np.concatenate([[0], np.cumsum(bag_sizes)]).astype(np.int64),
        labels=labels,
        weights=rng.normal(size=num_ids).astype(np.float32) if with_weights else None,
        origin=origin if draw(st.booleans()) else None,
    )


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dense": floats([1])}, "expected 2 dense rows, as labels, got 1"),
        ({"dense": floats(1, 2)}, r"dense: expected float32 values in 2 dimension\(s\), got float32 array of 1 dim"),
        ({"dense": np.zeros((2, 1))}, "dense: expected float32 values .* got float64"),
        ({"ids": np.zeros(5, np.int32)}, "ids: expected int64 values .* got int32"),
        ({"ids": [1, 2, 3, 4, 5]}, "ids: expected int64 values .* got list"),
        (
            {"ids": np.zeros(10, np.int64)[::2]},
            r"ids: expected a C-contiguous array. Pass numpy.ascontiguousarray\(ids\)",
        ),
        ({"labels": ints(0, 1)}, "labels: expected float32 values"),
        ({"labels": floats(0), "dense": floats([1]), "offsets": ints(0, 2, 1, 5)}, "a lower one at position 2"),
        (
            {"labels": floats(0, 1, 2), "dense": floats([1], [2], [3])},
            r"expected features x 3 samples \+ 1 offsets, got 5",
        ),
        ({"offsets": ints()}, r"expected features x 2 samples \+ 1 offsets, got 0"),
        ({"offsets": ints(1, 2, 2, 3, 5)}, r"expected offsets from 0 to 5 \(number of ids\), got 1 to 5"),
        ({"offsets": ints(0, 2, 2, 3, 4)}, r"expected offsets from 0 to 5 \(number of ids\), got 0 to 4"),
        ({"offsets": ints(0, 2, 1, 3, 5)}, "expected rising offsets, got a lower one at position 2"),
        ({"offsets": ints(0, -2, 2, 3, 5)}, "a lower one at position 1"),
        ({"weights": floats(1, 2)}, "expected 5 weights, as ids, got 2"),
        ({"weights": np.ones(5)}, "weights: expected float32 values .* got float64"),
        ({"labels": floats(), "dense": np.zeros((0, 1), np.float32)}, "features x 0 samples"),
    ],
    ids=str,
)
def test_a_batch_that_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_by_two(**changes)


def test_batches_without_features_dense_inputs_or_samples() -> None:
    none = Batch(np.zeros((0, 3), np.float32), ints(), ints(0), floats())
    assert (none.num_samples, none.num_features) == (0, 0)
    only_labels = Batch(np.zeros((2, 0), np.float32), ints(), ints(0), floats(1, 0))
    assert (only_labels.num_samples, only_labels.num_features) == (2, 0)


# --- take ------------------------------------------------------------------------------------------------------------


def test_take_written_out() -> None:
    taken = two_by_two(dense=floats([0], [1])).take(ints(1, 0, 1))
    assert taken.ids.tolist() == [1, 2, 4, 5, 3, 4, 5]
    assert taken.offsets.tolist() == [0, 0, 2, 2, 4, 5, 7]
    assert taken.labels.tolist() == [1, 0, 1]


@given(batch=batches(), data=st.data())
def test_take_gives_the_samples_asked_for(batch: Batch, data: st.DataObject) -> None:
    last = batch.num_samples - 1
    picks = data.draw(st.lists(st.integers(0, last), min_size=1, max_size=7) if last >= 0 else st.just([]))
    samples = samples_of(batch)
    taken = batch.take(ints(*picks))
    assert samples_of(taken) == [samples[pick] for pick in picks]
    assert_checked(taken)


def test_take_outside_the_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="below 2, got 0 to 2"):
        two_by_two().take(ints(0, 2))
    with pytest.raises(ValueError, match="got -1 to 0"):
        two_by_two().take(ints(-1, 0))


# --- concatenate -----------------------------------------------------------------------------------------------------


@given(data=st.data(), num_features=st.integers(1, 3), weighted=st.booleans(), number=st.integers(1, 4))
def test_concatenate_gives_all_samples_in_order(
    data: st.DataObject, num_features: int, weighted: bool, number: int
) -> None:
    parts = [data.draw(batches(1, num_features, weighted)) for _ in range(number)]
    joined = concatenate(parts)
    assert_checked(joined)
    expected = [sample for part in parts for sample in samples_of(part)]
    if any(part.origin is None for part in parts):
        expected = [(label, ids, weights, "") for label, ids, weights, _ in expected]
    assert samples_of(joined) == expected


def test_batches_that_differ_are_not_concatenated() -> None:
    one_feature = Batch(floats([0], [1]), ints(1, 2), ints(0, 1, 2), floats(0, 1))
    with pytest.raises(ValueError, match=r"batches with the same features, got \[1, 2\]"):
        concatenate([two_by_two(), one_feature])
    with pytest.raises(ValueError, match=r"same weights or none, got \[False, True\]"):
        concatenate([two_by_two(), two_by_two(weights=np.ones(5, np.float32))])


def test_origins_of_other_files_are_forgotten() -> None:
    def at(*files: str) -> Batch:
        return two_by_two(origin=Origin(files, np.zeros(2, np.int32), ints(3, 4)))

    assert concatenate([at("a"), at("b")]).origin is None
    joined = concatenate([at("a"), at("a")])
    assert joined.origin is not None
    assert [joined.origin.where(b) for b in range(4)] == ["a:3", "a:4", "a:3", "a:4"]


# --- parts and held-back samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1,), (1, 2), (0, 2), (3, -1)])
def test_parts_make_up_the_batch(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="positive part sizes with sum 2"):
        two_by_two(part_sizes=sizes)
    assert two_by_two(part_sizes=(1, 1)).part_sizes == (1, 1)


def test_wishes_for_a_batch_are_not_handed_on() -> None:
    batch = replace(two_by_two(dense=floats([0], [1])), part_sizes=(1, 1), held_back=two_by_two())
    for other in (batch.take(ints(0, 1)), concatenate([batch, batch])):
        assert (other.part_sizes, other.held_back) == ((), None)


# --- one id per bag --------------------------------------------------------------------------------------------------


@given(num_samples=st.integers(1, 5), num_features=st.integers(1, 4), seed=st.integers(0, 99))
def test_one_hot_holds_every_samples_ids(num_samples: int, num_features: int, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 2**40, (num_samples, num_features))
    origin = Origin(("f",), np.zeros(num_samples, np.int32), np.arange(num_samples))
    batch = one_hot_batch(np.zeros((num_samples, 0), np.float32), ids, np.zeros(num_samples, np.float32), origin)
    assert [bags for _, bags, _, _ in samples_of(batch)] == [[[i] for i in row] for row in ids.tolist()]
    assert batch.origin is origin


def test_one_id_for_each_bag() -> None:
    assert one_hot_batch(np.zeros((2, 0), np.float32), ints([1, 2], [4, 5]), floats(0, 1)).one_each
    assert not two_by_two().one_each
    assert not two_by_two(ids=ints(1, 2, 3, 4), offsets=ints(0, 2, 2, 3, 4)).one_each, "as many ids as bags, unevenly"
    assert two_by_two(ids=ints(1, 2, 3, 4, 5, 6, 7, 8), offsets=ints(0, 2, 4, 6, 8)).bag_size == 2
    assert two_by_two().bag_size == two_by_two(ids=ints(), offsets=ints(0, 0, 0, 0, 0)).bag_size == 0
