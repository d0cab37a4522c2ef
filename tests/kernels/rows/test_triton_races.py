"""No two programs of a launch share an address that either of them writes.

Triton's interpreter runs programs one after the other. The tests record the addresses, and reverse the order.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support import triton_setup
from support.row_kernels import OPTIMIZERS, every_optimizer, random_rows
from support.triton_setup import INTERPRETED, Pinned, hot_of, ready, run, settings_of

from adaptive.kernels.rows.gpu import decay, deferred, move, update
from adaptive.optim import RowOptimizer

with ready():
    from triton.runtime import interpreter

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs the interpreter")
SIZES = [3, 1, 80, 2, 70, 1, 5, 4, 1, 90]


class Races:
    """Addresses that the programs of the current launch have read and written."""

    def __init__(self) -> None:
        self.launches = 0
        self.bad: list[tuple[int, Any]] = []
        self.now: Any = None
        self.begin()

    def begin(self) -> None:
        self.written: dict[int, Any] = {}
        self.read: dict[int, set[Any]] = {}

    def touched(self, pointers: Any, mask: Any) -> list[int]:
        at = np.asarray(pointers.data).ravel()
        if mask is not None:
            at = at[np.broadcast_to(np.asarray(mask.data).ravel().astype(bool), at.shape)]
        addresses: list[int] = at.tolist()
        return addresses

    def writes(self, pointers: Any, mask: Any) -> None:
        for address in self.touched(pointers, mask):
            if self.written.setdefault(address, self.now) != self.now or self.read.get(address, set()) - {self.now}:
                self.bad.append((address, self.now))

    def reads(self, pointers: Any, mask: Any) -> None:
        for address in self.touched(pointers, mask):
            self.read.setdefault(address, set()).add(self.now)
            if self.written.get(address, self.now) != self.now:
                self.bad.append((address, self.now))


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> Iterator[Races]:
    """Three programs at most where a kernel loops over tiles, so that each takes several."""
    noted, builder = Races(), interpreter.InterpreterBuilder
    store, load, place = builder.create_masked_store, builder.create_masked_load, builder.set_grid_idx
    launch = interpreter.GridExecutor.__call__

    def stored(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        noted.writes(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def loaded(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        noted.reads(pointers, mask)
        return load(self, pointers, mask, *rest)

    def placed(self: Any, *at: Any) -> Any:
        noted.now = at
        return place(self, *at)

    def launched(self: Any, *arguments: Any, **options: Any) -> Any:
        noted.launches += 1
        noted.begin()
        return launch(self, *arguments, **options)

    monkeypatch.setattr(builder, "create_masked_store", stored)
    monkeypatch.setattr(builder, "create_masked_load", loaded)
    monkeypatch.setattr(builder, "set_grid_idx", placed)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
    for module in (update, deferred, decay):
        monkeypatch.setattr(module, "MAX_PROGRAMS", 3)
    monkeypatch.setattr(move, "COPY_PROGRAMS", 3)
    yield noted
    assert noted.launches > 0 and noted.bad == []


def a_batch(dim: int) -> tuple[Any, ...]:
    """(slots, segments, vectors, scales, gradients) of ten rows, three of them hot."""
    rng = np.random.default_rng(dim)
    segments = np.concatenate([[0], np.cumsum(SIZES)])
    vectors = rng.integers(0, 6, segments[-1]).astype(np.int32)
    return rng.permutation(20)[:10], segments, vectors, random_rows(rng, segments[-1]), random_rows(rng, 6, dim)


@pytest.mark.nightly
@every_optimizer
@pytest.mark.parametrize("dim", [17, 64])
def test_updates_and_sums(optimizer: RowOptimizer, dim: int, races: Races) -> None:
    slots, segments, vectors, scales, gradients = a_batch(dim)
    weights, state = random_rows(np.random.default_rng(0), 20, dim), np.ones((20, optimizer.state_width(dim)), "f4")
    tail = optimizer.kind, settings_of(optimizer), optimizer.corrections(), np.empty(10, np.float32)
    batch, hot = (segments, vectors, scales, gradients), hot_of(segments)
    run(triton_setup.update, weights, state, slots, *batch, *tail, hot=hot)
    sums, squares = np.zeros((20, dim), np.float32), np.ones((20, optimizer.squares_width(dim)), np.float32)
    for _ in range(2):
        run(triton_setup.accumulate, slots, *batch, sums, squares, np.zeros(20, np.bool_), hot=hot)
    each = np.arange(11), slots.astype(np.int32), np.zeros(0, np.float32), sums
    run(triton_setup.update, weights, state, slots, *each, *tail, squares=torch.from_numpy(squares), hot=hot[:0])


@pytest.mark.parametrize("dim", [5, 64])
def test_pooling_moves_decay_and_initial_values(dim: int, races: Races) -> None:
    rng = np.random.default_rng(dim)
    weights, host = random_rows(rng, 700, dim), random_rows(rng, 700, dim)
    state, host_state, rows = random_rows(rng, 700, 3), random_rows(rng, 700, 3), rng.permutation(700)[:300]
    slots = weights, state, rows
    on_host = Pinned(host), Pinned(host_state), rng.permutation(700)[:300]
    run(triton_setup.copy_rows, *slots, *on_host)
    run(triton_setup.copy_rows, *on_host, *slots)
    run(triton_setup.decay, weights, rows, 0.9)
    starts, locations = np.arange(0, 61, 3), rng.integers(-40, 40, 30)
    lookups, vectors = rng.integers(0, 30, 60).astype(np.int32), rng.permutation(20).astype(np.int32)
    out = np.empty((20, dim), np.float32)
    run(triton_setup.pool, weights, Pinned(host), locations, lookups, vectors, starts, np.zeros(0, np.float32), out)
    tables = np.array([0, 400, 700]), np.array([1, 2]), np.ones(2, np.float32)
    run(triton_setup.initial_rows, weights, state, rows, rows, *tables, 0.5)


def test_a_race_is_detected(races: Races) -> None:
    """Two rows of one slot."""
    _, segments, vectors, scales, gradients = a_batch(64)
    optimizer = OPTIMIZERS[0]
    tail = optimizer.kind, settings_of(optimizer), optimizer.corrections(), np.empty((2, 10), np.float32)
    rows = np.zeros((20, 64), np.float32), np.zeros((20, 0), np.float32), np.zeros(10, np.int64)
    run(triton_setup.update, *rows, segments, vectors, scales, gradients, *tail, hot=hot_of(segments))
    assert races.bad
    races.bad.clear()


@pytest.mark.nightly
def test_the_order_of_programs_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "MAX_PROGRAMS", 3)
    slots, *batch = a_batch(64)
    hot, place = hot_of(batch[0]), interpreter.InterpreterBuilder.set_grid_idx

    def trained(order: Callable[[int], int]) -> list[Any]:
        """Run the three programs of the update in this order."""

        def placed(self: Any, x: int, y: int, z: int) -> Any:
            return place(self, order(x) if self.grid_dim[0] == 3 else x, y, z)

        results = []
        with monkeypatch.context() as patch:
            patch.setattr(interpreter.InterpreterBuilder, "set_grid_idx", placed)
            for optimizer in OPTIMIZERS:
                weights = random_rows(np.random.default_rng(0), 20, 64)
                state, norms = np.ones((20, optimizer.state_width(64)), np.float32), np.empty((2, 10), np.float32)
                tail = optimizer.kind, settings_of(optimizer), optimizer.corrections(), norms
                run(triton_setup.update, weights, state, slots, *batch, *tail, hot=hot)
                results += [weights, state, norms]
        return results

    for result, expected in zip(trained(lambda x: x), trained(lambda x: 2 - x), strict=True):
        np.testing.assert_array_equal(result, expected)
