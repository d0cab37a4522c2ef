"""The look-ahead thread: every batch once and in order, and no thread left behind, however a loop ends."""

import gc
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from support.helpers import (
    Windowed,
    after_sums,
    bags,
    look_ahead_threads,
    one_table,
    resident,
    step_all,
    sum_of,
    wait_for_look_ahead,
)

from adaptive.batch import Batch
from adaptive.embeddings.engine import lookahead, pipeline
from adaptive.embeddings.planning import lookups
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import AdaptiveError, InputError
from adaptive.policies.lru import LRU


@pytest.fixture(autouse=True, params=["ahead", "in turn"])
def planning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Batches are planned by the look-ahead thread, or by the training thread as if it took all of two cores."""
    if request.param == "in turn":
        monkeypatch.setattr(pipeline, "get_num_threads", lambda: 2)
        monkeypatch.setattr(lookups, "usable_cores", lambda: 2)
    return str(request.param)


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    yield
    assert look_ahead_threads() == []


class Source:
    """Batches that count how often they were asked for, and know when they were closed."""

    def __init__(self, num_batches: int) -> None:
        self.asked, self.closed = 0, False
        self._num_batches = num_batches

    def __iter__(self) -> Iterator[Batch]:
        try:
            for number in range(self._num_batches):
                self.asked += 1
                yield bags([number % 10])
        finally:
            self.closed = True


@pytest.mark.parametrize("depth", [0, 1, 2, 6])
@pytest.mark.parametrize("num_batches", [0, 1, 2, 5])
def test_every_batch_once_and_in_order(num_batches: int, depth: int) -> None:
    source, embeddings = Source(num_batches), one_table()
    initial = embeddings.rows.table_weights("t")
    done = step_all(embeddings, source, depth=depth)
    assert [planned.batch.ids.tolist() for planned in done] == [[n] for n in range(num_batches)]
    assert [planned.number for planned in done] == list(range(num_batches))
    assert source.asked == num_batches
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, [p.batch for p in done]))


@pytest.mark.parametrize("depth", range(4))
def test_never_further_ahead_than_the_depth(depth: int, planning: str) -> None:
    source, embeddings = Source(12), one_table()
    for planned in embeddings.look_ahead(source, depth=depth):
        wait_for_look_ahead(embeddings, planned, depth, 12)
        planned_ahead = 0 if planning == "in turn" else depth
        assert embeddings.runtime.pipeline.next_number == min(planned.number + planned_ahead + 1, 12)
        # One more batch may have been read; it is planned when there is room for it.
        assert source.asked <= planned.number + depth + 2


@pytest.mark.parametrize(("stop", "depth"), [(0, 4), (2, 0), (2, 1)])
def test_breaking_out_of_the_loop(stop: int, depth: int) -> None:
    """Batches in flight are dropped; what was trained stays, and training can go on."""
    source, embeddings = Source(20), one_table(device_rows="50%")
    initial, trained = embeddings.rows.table_weights("t"), []
    for planned in embeddings.look_ahead(source, depth=depth):
        wait_for_look_ahead(embeddings, planned, depth, 20)
        sum_of(embeddings(planned)).backward()
        embeddings.step()
        trained.append(planned.batch)
        if planned.number == stop:
            break
    assert look_ahead_threads() == []
    assert len(trained) == stop + 1
    more = [bags([n, n + 1]) for n in range(9)]
    step_all(embeddings, more, depth=depth % 2)
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, [*trained, *more]))


@pytest.mark.parametrize("depth", [0, 3])
def test_closing_before_the_first_batch_and_twice(depth: int) -> None:
    ready = one_table().look_ahead(Source(3), depth=depth)
    ready.close()
    ready.close()
    assert next(ready, None) is None


@pytest.mark.parametrize("depth", [0, 2])
def test_the_source_is_closed_when_the_loop_ends_early(depth: int) -> None:
    source, embeddings = Source(20), one_table()
    ready = embeddings.look_ahead(source, depth=depth)
    next(ready)
    ready.close()
    assert source.closed


class Failure(Exception):  # noqa: N818 (any error of the user's)
    pass


def train_and_note(embeddings: TieredEmbeddingBag, batches: Iterable[Batch], depth: int, numbers: list[int]) -> None:
    """Train, and note the number of every batch that came."""
    for planned in embeddings.look_ahead(batches, depth=depth):
        numbers.append(planned.number)
        sum_of(embeddings(planned)).backward()
        embeddings.step()


@pytest.mark.parametrize("error", [Failure, SystemExit, KeyboardInterrupt, InputError])
@pytest.mark.parametrize(("after", "depth"), [(0, 4), (3, 0), (3, 1)])
def test_an_error_in_the_source_comes_after_its_batches(error: type[BaseException], after: int, depth: int) -> None:
    def source() -> Iterator[Batch]:
        yield from Source(after)
        raise error("the source")

    embeddings, numbers = one_table(), list[int]()
    with pytest.raises(error, match="the source"):
        train_and_note(embeddings, source(), depth, numbers)
    assert look_ahead_threads() == []
    assert numbers == list(range(after))
    assert [planned.number for planned in step_all(embeddings, Source(2), depth=depth)] == [after, after + 1]


@pytest.mark.parametrize("ahead", [{"plan_threads": 3}, {"policy": Windowed}])
def test_batches_read_further_ahead_come_before_an_error(ahead: dict[str, Any]) -> None:
    """They are trained as with any policy and any number of threads, and so is what comes after the error."""
    numbers = list[int]()

    def source() -> Iterator[Batch]:
        yield from Source(5)
        raise Failure("the source")

    with pytest.raises(Failure, match="the source"):
        train_and_note(one_table(**ahead), source(), 1, numbers)
    assert numbers == list(range(5))


def test_a_look_ahead_collected_as_garbage_in_its_own_thread() -> None:
    """An abandoned iterator in a reference cycle, such as the traceback of an error in a loop, goes when any thread
    collects garbage."""
    abandoned, collected = threading.Event(), threading.Event()

    def source() -> Iterator[Batch]:
        yield bags([1])
        assert abandoned.wait(60)
        gc.collect()
        collected.set()
        yield from Source(9)

    embeddings = one_table()
    ready = embeddings.look_ahead(source(), depth=1)
    sum_of(embeddings(next(ready))).backward()
    embeddings.step()
    cycle: list[Any] = [ready]
    cycle.append(cycle)
    del ready, cycle
    abandoned.set()
    assert collected.wait(60)
    for thread in look_ahead_threads():
        thread.join(60)
    step_all(embeddings, [bags([2]), bags([3])], depth=1)


@pytest.mark.parametrize("depth", [0, 3])
def test_an_error_in_the_training_loop(depth: int) -> None:
    embeddings = one_table(device_rows="50%")
    initial = embeddings.rows.table_weights("t")

    def loop() -> None:
        for planned in embeddings.look_ahead(Source(9), depth=depth):
            wait_for_look_ahead(embeddings, planned, depth, 9)
            raise Failure

    with pytest.raises(Failure):
        loop()
    assert look_ahead_threads() == []
    more = [bags([n, n + 1]) for n in range(9)]
    step_all(embeddings, more, depth=depth)
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, more))


@pytest.mark.parametrize("depth", [0, 2])
def test_after_a_fault_the_first_error_is_raised(
    depth: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a fault of a GPU every wait fails, also those by which a look-ahead ends."""
    embeddings = one_table()

    def end() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(embeddings.runtime.pipeline, "end", end)
    with pytest.raises(InputError, match="got 10"):
        step_all(embeddings, [bags([1]), bags([2, 10])], depth=depth)
    assert caplog.messages == ["ending the look-ahead failed after another error: RuntimeError: the device is gone"]
    other = one_table()
    monkeypatch.setattr(other.runtime.pipeline, "end", end)
    coming = other.look_ahead(Source(3), depth=depth)
    next(coming)
    with pytest.raises(RuntimeError, match="the device is gone"):
        coming.close()


def test_a_source_that_never_returns_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "JOIN_SECONDS", 0.05)
    released = threading.Event()

    def source() -> Iterator[Batch]:
        yield bags([1])
        released.wait()

    ready = one_table().look_ahead(source(), depth=1)
    next(ready)
    with pytest.raises(AdaptiveError, match="look-ahead thread: expected it to end within"):
        ready.close()
    released.set()
    for thread in look_ahead_threads():
        thread.join()


def test_a_second_look_ahead_beside_a_running_one_is_refused() -> None:
    """Both would plan for the same slots, each believing that the other's batches are trained."""
    embeddings = one_table()
    ready = embeddings.look_ahead(Source(9), depth=2)
    next(ready)
    with pytest.raises(ValueError, match=r"look_ahead\(\): expected no running look-ahead, got one after 0 trained"):
        next(iter(embeddings.look_ahead(Source(3), depth=1)))
    ready.close()
    assert len(step_all(embeddings, Source(3), depth=1)) == 3


@pytest.mark.parametrize("depth", [0, 2])
def test_gradients_of_an_abandoned_batch_are_forgotten(depth: int) -> None:
    """The slots of its rows belong to other rows by the time of the next step."""
    embeddings = one_table(device_rows="4", policy=LRU)
    initial = embeddings.rows.table_weights("t")
    coming = embeddings.look_ahead([bags([0, 1])], depth=depth)
    sum_of(embeddings(next(coming))).backward()
    with pytest.warns(UserWarning, match="batch 0: the loop ended after backward.* the gradients of its rows are lost"):
        coming.close()  # as a loop does that found a gradient it does not like
    batches = [bags([2, 3]), bags([4, 5]), bags([6])]
    step_all(embeddings, batches)
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, batches))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_batches_without_forward_backward_or_step_hold_nothing(depth: int) -> None:
    embeddings = one_table(device_rows="5", when_full="reduce_lookahead")
    initial, batches, stepped = embeddings.rows.table_weights("t"), [bags([n, (n + 1) % 10]) for n in range(10)] * 3, []
    for planned in embeddings.look_ahead(batches, depth=depth):
        kind = planned.number % 4
        if kind == 0:
            continue
        loss = sum_of(embeddings(planned))
        if kind >= 2:
            loss.backward()
        if kind == 2:
            embeddings.discard()
        if kind == 3:
            embeddings.step()
            stepped.append(planned.batch)
    assert len(resident(embeddings)) <= 5
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, stepped))
