"""The batches on their way: handed out unchanged, whatever the training thread reads ahead of them."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from guarded_policies import DropHalf, Plain
from hypothesis import given
from hypothesis import strategies as st

from adaptive.batch import Batch, one_hot_batch
from adaptive.errors import InputError
from adaptive.guard.stream import Inputs, NumberedBatches
from adaptive.policy import Policy

SIZES = [4, 4, 4, 2]


def batches(sizes: list[int] = SIZES) -> Iterator[Batch]:
    """Batch i has the id i in all its samples."""
    for number, size in enumerate(sizes):
        ids = np.full((size, 1), number)
        yield one_hot_batch(np.zeros((size, 1), np.float32), ids, np.zeros(size, np.float32))


def number_of(batch: Batch | None) -> int | None:
    return None if batch is None else int(batch.ids[0])


@given(st.lists(st.tuples(st.sampled_from(["take", "get", "coming", "forget"]), st.integers(0, 12)), max_size=40))
def test_what_is_handed_out_is_the_source_whatever_is_asked_in_between(calls: list[tuple[str, int]]) -> None:
    stream, taken, oldest = NumberedBatches(batches([3] * 8), Plain()), [], 0
    for call, number in calls:
        if call == "take":
            taken.append(number_of(next(stream, None)))
        elif call == "get" and number >= oldest:
            assert number_of(stream.get(number)) == (number if number < 8 else None)
        elif call == "coming" and number >= oldest:
            found = [number_of(batch) for batch in stream.coming(number, 7)]
            assert found == list(range(number, min(number + 3, 8)))
        elif call == "forget":
            stream.forget(number)
            oldest = max(oldest, min(number, stream.taken - 1))
    taken += [number_of(batch) for batch in stream]
    assert [number for number in taken if number is not None] == list(range(8))


def test_numbers_go_on_in_the_next_pass() -> None:
    stream = NumberedBatches(batches(), Plain(), first=10)
    assert number_of(stream.get(11)) == 1 and stream.taken == 10
    assert [number_of(next(stream)), number_of(next(stream))] == [0, 1]
    assert stream.taken == 12 and stream.place(4) == 11 and stream.place(8) == 12
    assert stream.inputs(12) == Inputs(8, 8)


def test_the_place_of_trained_samples() -> None:
    stream = NumberedBatches(batches(), Plain())
    list(stream)
    assert [stream.place(samples) for samples in (4, 8, 12, 14)] == [1, 2, 3, 4]
    assert [stream.inputs(number).seen for number in (1, 2, 3, 4)] == [4, 8, 12, 14]
    stream.forget(2)
    assert [stream.place(samples) for samples in (8, 12, 14)] == [2, 3, 4]
    assert stream.inputs(2) == Inputs(8, 8)


class DropAllOfSome(Policy):
    """Keeps the first three samples of each batch, and none of batch 1; passes on batches of 3."""

    drops_inputs = True

    def score(self, rows):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def arrange(self, batches, view=None):  # type: ignore[no-untyped-def]
        for number, batch in enumerate(batches):
            self.seen_inputs += batch.num_samples
            kept = 0 if number == 1 else min(batch.num_samples, 3)
            self.dropped_inputs += batch.num_samples - kept
            if kept:
                yield batch.take(np.arange(kept))


def test_the_place_where_inputs_are_dropped() -> None:
    """3 samples of batch 0, none of batch 1, 3 of batch 2, 2 of batch 3. What is not needed yet does not count."""
    policy = DropAllOfSome()
    policy.seen_inputs, policy.dropped_inputs = 100, 40  # from an earlier pass
    stream = NumberedBatches(batches(), policy)
    arranged = policy.arrange(stream)
    found = []
    for trained in (3, 6, 8):
        next(arranged)
        found.append((stream.place(trained), stream.inputs(stream.place(trained))))
    assert found == [(1, Inputs(4, 3)), (3, Inputs(12, 6)), (4, Inputs(14, 8))]
    assert [stream.place(trained) for trained in (3, 6)] == [1, 3]  # the same however far the look-ahead is


def test_an_allowance_is_set_when_its_batch_is_taken() -> None:
    policy = DropHalf()
    stream = NumberedBatches(batches(), policy)
    assert stream.switch(1, 0.25) == 1
    next(stream)
    assert policy.allowance == 1
    stream.get(3)  # read ahead, not taken
    assert policy.allowance == 1
    next(stream)
    assert policy.allowance == 0.25
    assert stream.switch(0, 0.0) == 2  # batches 0 and 1 are on their way
    next(stream)
    assert policy.allowance == 0


def spoilt() -> Iterator[Batch]:
    yield from batches([4, 4])
    raise InputError("line 9 is bad")


def test_an_error_of_the_source_comes_in_its_turn() -> None:
    stream = NumberedBatches(spoilt(), Plain())
    assert len(stream.coming(0, 100)) == 2 and stream.get(2) is None
    assert [number_of(next(stream)), number_of(next(stream))] == [0, 1]
    for _ in range(2):
        with pytest.raises(InputError, match="line 9"):
            next(stream)


def test_nothing_is_remembered_that_was_forgotten() -> None:
    stream = NumberedBatches(batches([2] * 100), Plain())
    for number, _ in enumerate(stream):
        stream.forget(number)
        assert len(stream._batches) <= 2 and len(stream._inputs) <= 2


@pytest.mark.parametrize("behind", [0, 3])
def test_two_threads(behind: int) -> None:
    stream = NumberedBatches(batches([2] * 500), Plain())
    taken: list[int | None] = []
    thread = threading.Thread(target=lambda: taken.extend(number_of(batch) for batch in stream))
    thread.start()
    asked = []
    for number in range(500):
        asked.append(number_of(stream.get(number)))
        if behind:
            stream.forget(number - behind)
    thread.join()
    assert taken == asked == list(range(500)) and stream.get(500) is None


def test_the_training_thread_does_not_wait_while_a_batch_is_read() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Batch]:
        for number, batch in enumerate(batches()):
            if number == 2:
                reading.set()
                assert go_on.wait(30)
            yield batch

    policy = Plain()
    stream = NumberedBatches(slow(), policy)
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    assert reading.wait(30)
    assert stream.place(4) == 1 and stream.inputs(2) == Inputs(8, 8)
    stream.forget(1)
    assert stream.switch(3, 0.5) == 3 and number_of(stream.get(1)) == 1
    go_on.set()
    thread.join()
    assert stream.taken == 4 and policy.allowance == 0.5


def test_a_batch_that_two_threads_want_is_read_once() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Batch]:
        reading.set()
        assert go_on.wait(30)
        yield from batches()

    stream = NumberedBatches(slow(), Plain())
    threads = [threading.Thread(target=stream.get, args=(0,)) for _ in range(2)]
    threads[0].start()
    assert reading.wait(30)
    threads[1].start()
    threads[1].join(0.1)  # it comes to the lock
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(stream._batches) == 1
