"""Exceptions between books and rows: a signal waits for the end of the change, anything else marks the tables."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from adaptive import SGD, Batch, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.embeddings.engine.integrity import TableLock
from adaptive.embeddings.engine.lookahead import LookAheadPass
from adaptive.embeddings.tiers.mover import Mover
from adaptive.errors import AdaptiveError, ConfigError
from adaptive.system import Uninterrupted

REFUSED = "got rows that an error left without them while"


def make_bag(**tier: Any) -> TieredEmbeddingBag:
    table = TableConfig(name="a", num_embeddings=60, embedding_dim=4)
    return TieredEmbeddingBag([table], TierConfig(device_rows="50%", **tier), optimizer=SGD(lr=1.0))


def batches(count: int, seed: int = 0) -> list[Batch]:
    rng = np.random.default_rng(seed)
    return [Batch.of(a=rng.integers(0, 60, 6), labels=np.zeros(6)) for _ in range(count)]


def train(bag: TieredEmbeddingBag, count: int, depth: int) -> None:
    for planned in bag.look_ahead(batches(count), depth=depth):
        bag(planned)["a"].sum().backward()
        bag.step()


def assert_whole(bag: TieredEmbeddingBag, before: np.ndarray[Any, Any]) -> None:
    moved = before - bag.rows.table_weights("a")
    assert np.abs(moved - np.rint(moved)).max() < 1e-3


@pytest.mark.filterwarnings("ignore:batch .* the loop ended after backward")
@pytest.mark.parametrize("plan_threads", [0, 1])
@pytest.mark.parametrize("depth", [0, 2])
def test_ctrl_c_does_not_come_between_books_and_rows(
    depth: int, plan_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes right before rows move. They move, then KeyboardInterrupt is raised, and training goes on."""
    bag = make_bag(plan_threads=plan_threads)
    before, calls, start_moves = bag.rows.table_weights("a"), list[int](), Mover.start_moves

    def interrupted(self: Mover, *given: Any, **named: Any) -> int:
        calls.append(1)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return start_moves(self, *given, **named)

    monkeypatch.setattr(Mover, "start_moves", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(bag, 12, depth)
    assert_whole(bag, before)
    train(bag, 4, depth)
    assert_whole(bag, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_between_books_and_rows_marks_the_tables(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    bag, calls, start_moves = make_bag(plan_threads=0), list[int](), Mover.start_moves
    saved = bag.rows.state_arrays()

    def failing(self: Mover, *given: Any, **named: Any) -> int:
        calls.append(1)
        if len(calls) == 4:
            raise error
        return start_moves(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "start_moves", failing)
        with pytest.raises(error):
            train(bag, 12, 2)
    uses: list[Callable[[], object]] = [
        lambda: bag.rows.table_weights("a"),
        lambda: bag.rows.state_arrays(),
        lambda: bag.rows.flush(),
        lambda: bag.rows.load_table("a", np.zeros((1, 4), np.float32)),
        lambda: bag.read(batches(1)[0]),
        lambda: train(bag, 1, 2),
        bag.state_dict,
    ]
    for use in uses:
        with pytest.raises(AdaptiveError, match=rf"tables a: .* {REFUSED} batch 3 was planned .*load a checkpoint"):
            use()
    bag.rows.load_state_arrays(saved)
    before = bag.rows.table_weights("a")
    train(bag, 4, 2)
    assert_whole(bag, before)


def test_an_error_in_an_update_marks_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    bag = make_bag()

    def failing(*given: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(bag.runtime.pipeline.tiered_groups[0].device, "update", failing)
    with pytest.raises(MemoryError):
        train(bag, 2, 0)
    with pytest.raises(AdaptiveError, match=rf"{REFUSED} rows of batch 0 were updated \(MemoryError\)"):
        bag.rows.table_weights("a")


def test_a_look_ahead_that_could_not_end_is_ended_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bag, end, calls = make_bag(plan_threads=1), LookAheadPass.end, list[int]()

    def interrupted(self: LookAheadPass) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        end(self)

    monkeypatch.setattr(LookAheadPass, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(bag, 3, 2)
    assert bag.runtime.pipeline.running
    train(bag, 3, 2)
    assert not bag.runtime.pipeline.running
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("adaptive-")]


def test_a_look_ahead_whose_iterator_is_out_of_reach_can_be_ended() -> None:
    bag = make_bag()
    kept = bag.look_ahead(batches(8), depth=2)  # as by a traceback
    next(kept)
    with pytest.raises(ConfigError, match=r"call embeddings\.end_look_ahead\(\)"):
        train(bag, 1, 2)
    bag.end_look_ahead()
    train(bag, 2, 2)
    with pytest.raises(StopIteration):
        next(kept)
    bag.end_look_ahead()  # nothing to end


def test_signals_wait_for_the_end_of_a_block() -> None:
    order: list[str] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: order.append("handled"))
    try:
        with Uninterrupted():
            with Uninterrupted():
                signal.raise_signal(signal.SIGALRM)
                order.append("inner")
            order.append("outer")
        assert order == ["inner", "outer", "handled"]
        signal.raise_signal(signal.SIGALRM)  # its handler is in place again
        assert order[-2:] == ["handled", "handled"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_change_of_another_thread_is_no_error() -> None:
    """Only a change whose thread has left it, or has ended, is one that an exception has ended."""
    lock, inside, leave = TableLock(lambda: "a"), threading.Event(), threading.Event()

    def change() -> None:
        with lock.changing("it changes"):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=change)
    thread.start()
    inside.wait()
    lock.refuse_broken()
    leave.set()
    thread.join()
    lock.refuse_broken()
    lock._changes[thread.ident or 0] = "it changes"  # left behind by an exception in `Change` itself
    with pytest.raises(AdaptiveError, match=REFUSED):
        lock.refuse_broken()


def test_ctrl_c_while_rows_step_leaves_gradients_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes as torch has just switched gradients off."""
    bag, enter, calls = make_bag(), torch.no_grad.__enter__, list[int]()

    def interrupted(self: torch.no_grad) -> None:
        enter(self)
        calls.append(1)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)

    def stepped() -> None:
        for planned in bag.look_ahead(batches(1), depth=0):
            bag(planned)["a"].sum().backward()
            monkeypatch.setattr(torch.no_grad, "__enter__", interrupted)
            bag.step()

    with pytest.raises(KeyboardInterrupt):
        stepped()
    assert calls and torch.is_grad_enabled()
