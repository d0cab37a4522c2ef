"""Deferred sums, their squares and the steps that apply them: written out, then the twin."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_kernels import Choose, Floats, TwoTiers, every_optimizer, floats
from support.variants import both

from adaptive.kernels.planning.books import APPLY, DEFER, SKIP, UPDATE
from adaptive.kernels.rows.cpu import update
from adaptive.kernels.rows.cpu.deferred import BLOCK, defer, power, update_from_sums
from adaptive.kernels.vector.bfloat16 import NO_KEYS
from adaptive.optim import Adagrad, Adam, RowOptimizer

NOTHING = np.zeros(0, np.float32)
DIMS = st.sampled_from([1, 3, 16, 17, 40])


class Summed(TwoTiers):
    """Each row has an entry: entry e is slot e, or host row e - num_slots."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num = self.num_slots + self.num_host
        self.sums = np.full((self.num, self.dim), np.nan, np.float32)
        self.squares = np.full((self.num, self.optimizer.squares_width(self.dim)), np.nan, np.float32)
        self.pending = np.zeros(self.num, np.bool_)
        self.deferred: dict[int, reference.Deferred] = {}  # the twin's

    def location(self, entry: int) -> int:
        return entry if entry < self.num_slots else ~(entry - self.num_slots)

    def defer(self, choose: Choose, entries: Any, segments: Any, vectors: Any, scales: Any, gradients: Floats,
              actions: Any, num_chunks: int = 1) -> Floats:  # fmt: skip
        """Returns the norms of all rows, NaN if they are not updated."""
        norms, actions, entries = np.full(len(entries), np.nan, np.float32), np.asarray(actions), np.asarray(entries)
        now, summed = (np.flatnonzero(chosen).astype(np.int32) for chosen in (actions == UPDATE, actions % SKIP > 0))
        applied = np.flatnonzero(actions[summed] == APPLY).astype(np.int32)
        written, listed = np.concatenate([now, summed[applied]]), np.full(len(now) + len(applied), np.nan, np.float32)
        choose(defer)(
            (now, summed, entries[summed].astype(np.int32), applied),
            (np.array([self.location(entry) for entry in entries], np.int64), np.asarray(segments, np.int64),
             np.asarray(vectors, np.int32), np.asarray(scales, np.float32), gradients),
            (self.sums, self.squares, self.pending), self.tables, self.rule, (NO_KEYS, listed[None]),
            np.full((num_chunks * BLOCK, self.dim + 1), np.nan, np.float32),
        )  # fmt: skip
        norms[written] = listed
        return norms

    def defer_slowly(self, entries: Any, segments: Any, vectors: Any, scales: Any, gradients: Floats, actions: Any
                     ) -> list[Any]:  # fmt: skip
        norms: list[Any] = [np.nan] * len(entries)
        for u, entry in enumerate(entries):
            span = slice(segments[u], segments[u + 1])
            gradient = reference.summed_gradient(gradients[vectors[span]], scales[span] if len(scales) else None)
            if actions[u] == UPDATE:
                norms[u] = self.step_slowly(self.location(entry), gradient)
            elif actions[u] != SKIP:
                self.deferred[entry] = reference.put_off(self.optimizer, gradient, self.deferred.get(entry))
            if actions[u] == APPLY:
                norms[u] = self.apply_slowly(entry)
        return norms

    def apply_slowly(self, entry: int) -> np.float32:
        pending = self.deferred.pop(entry)
        return self.step_slowly(self.location(entry), pending.gradient, pending.squares)

    def keeps(self, waiting: dict[int, reference.Deferred]) -> bool:
        """True if these sums and no others are pending."""
        return set(np.flatnonzero(self.pending)) == set(waiting) and all(
            np.array_equal(self.sums[entry], twin.gradient) and np.array_equal(self.squares[entry], twin.squares)
            for entry, twin in waiting.items()
        )


def one_row(optimizer: RowOptimizer, dim: int, weight: float) -> Summed:
    rows = Summed(optimizer, dim, num_slots=1, num_host=0)
    rows.device[:] = weight
    return rows


def visit(choose: Choose, rows: Summed, gradient: Sequence[float], *, applied: bool) -> Floats:
    """One lookup of the only row."""
    return rows.defer(choose, [0], [0, 1], [0], [], floats(gradient), [APPLY if applied else DEFER])


# --- written out -----------------------------------------------------------------------------------------------------


@both
def test_two_visits_with_adagrad(choose: Choose) -> None:
    """Gradients (3, 6) and (4, 8): the state grows by 9 + 16 and 36 + 64, not by 7 * 7 and 14 * 14. The step is
    5 * 7 / sqrt(25) and 5 * 14 / sqrt(100)."""
    rows = one_row(Adagrad(5.0, eps=0.0), 2, 8)
    visit(choose, rows, [3, 6], applied=False)
    assert (rows.device == 8).all() and (rows.device_state == 0).all() and rows.pending.all()
    np.testing.assert_array_equal(rows.squares, [[9, 36]])
    norms = visit(choose, rows, [4, 8], applied=True)
    np.testing.assert_array_equal(rows.device, [[1, 1]])
    np.testing.assert_array_equal(rows.device_state, [[25, 100]])
    np.testing.assert_array_equal(norms, np.sqrt(floats(98)))
    assert not rows.pending.any()


@both
def test_two_visits_with_adam_are_two_updates_with_their_mean(choose: Choose) -> None:
    """Gradients 1 and 3: mean 2, mean square 5. With both betas 0.5 a quarter of the moments stays: 2 / 4 + 3 / 4 * 2
    and 1 / 4 + 3 / 4 * 5, so 2 and 4. The row moves by twice the fourth update's size, times 2 / sqrt(4)."""
    optimizer = Adam(0.5, eps=0.0, beta1=0.5, beta2=0.5)
    rows = one_row(optimizer, 1, 1)
    rows.device_state[:] = 2, 1, 2
    visit(choose, rows, [1], applied=False)
    np.testing.assert_array_equal(rows.squares, [[1, 1]])
    norms = visit(choose, rows, [3], applied=True)
    np.testing.assert_array_equal(rows.squares, [[10, 2]])
    np.testing.assert_array_equal(rows.device_state, [[2, 4, 4]])
    moved = 2 * optimizer.corrections()[3]
    np.testing.assert_array_equal(rows.device, [[1 - moved]])
    np.testing.assert_array_equal(norms, [moved])


@both
@pytest.mark.parametrize("base", [0.0, 0.9, 0.999, 0.25])
def test_powers_are_those_of_the_twin(choose: Choose, base: float) -> None:
    """A first power is the base itself, so that a sum of one visit has the bits of the plain update."""
    powers = [choose(power)(np.float32(base), np.float32(exponent)) for exponent in range(256)]
    np.testing.assert_array_equal(powers, [reference.power(np.float32(base), exponent) for exponent in range(256)])
    assert powers[0] == 1 and powers[1] == np.float32(base)
    np.testing.assert_allclose(powers, np.float64(np.float32(base)) ** np.arange(256), rtol=1e-5, atol=1e-37)


@both
@pytest.mark.parametrize("visits", [1, 2, 5, 8, 255])
def test_equal_gradients_count_as_plain_updates_of_adam(choose: Choose, visits: int) -> None:
    """Moments end as after the plain updates, and so does the row if the moments do not change. One update with the sum
    would move the row by one of these updates."""
    optimizer, gradient = Adam(0.01, beta1=0.9, beta2=0.99), floats(0.5, -2.0, 1e-3)
    for first, second in ((gradient, gradient * gradient), (floats(3, 0, -1), floats(9, 1, 1e-4))):
        deferred, plain = (one_row(optimizer, 3, 1) for _ in range(2))
        for rows in (deferred, plain):
            rows.device_state[:] = np.concatenate([first, second, floats(10_000)])
        for number in range(1, visits + 1):
            visit(choose, deferred, gradient, applied=number == visits)
            visit(choose, plain, gradient, applied=True)
        np.testing.assert_allclose(deferred.device_state, plain.device_state, rtol=1e-4, atol=1e-7)
    steady, moved = (one_row(optimizer, 3, 0) for _ in range(2))
    steady.device_state[:] = moved.device_state[:] = np.concatenate([gradient, gradient * gradient, floats(10_000)])
    for number in range(1, visits + 1):
        visit(choose, steady, gradient, applied=True)
        visit(choose, moved, gradient, applied=number == visits)
    np.testing.assert_allclose(moved.device, steady.device, rtol=1e-4)
    np.testing.assert_allclose(np.abs(moved.device), 0.01 * visits, rtol=1e-3)


@both
@every_optimizer
def test_sums_start_as_copies(choose: Choose, optimizer: RowOptimizer) -> None:
    """-0.0 keeps its sign, and the NaN of an unused entry is gone."""
    rows = one_row(optimizer, 3, 1)
    visit(choose, rows, [-0.0, 1, -0.0], applied=False)
    np.testing.assert_array_equal(np.signbit(rows.sums), [[True, False, True]])
    assert not np.isnan(rows.squares).any() and not np.signbit(rows.squares).any()


# --- against the plain update and the twin ---------------------------------------------------------------------------


@both
@every_optimizer
@settings(max_examples=25, deadline=None)
@given(dim=DIMS, seed=st.integers(0, 2**32 - 1))
def test_a_sum_of_one_visit_is_the_plain_update(choose: Choose, optimizer: RowOptimizer, dim: int, seed: int) -> None:
    """Bit for bit, three times in a row; some rows with many lookups."""
    rng = np.random.default_rng(seed)
    summed, plain = Summed(optimizer, dim), Summed(optimizer, dim)
    for _ in range(3):
        entries = rng.permutation(summed.num)[:5]
        segments = np.concatenate([[0], np.cumsum(rng.choice([1, 2, 40], 5))])
        vectors = rng.integers(0, 6, segments[-1]).astype(np.int32)
        gradients = (rng.normal(size=(6, dim)) * 10.0 ** rng.integers(-2, 2)).astype(np.float32)
        norms = np.empty(5, np.float32)
        deferred_norms = summed.defer(choose, entries, segments, vectors, [], gradients, [APPLY] * 5)
        update.update(
            (np.array([plain.location(entry) for entry in entries]), segments, vectors, NOTHING, gradients),
            plain.tables, plain.rule, (NO_KEYS, norms[None]), np.empty((1, dim), np.float32),
        )  # fmt: skip
        np.testing.assert_array_equal(deferred_norms, norms)
        assert summed.equals(plain)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[dict[str, Any]]]:
    """(width, arguments of `Summed.defer` for each batch)"""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dim, scaled = draw(DIMS), draw(st.booleans())
    history = []
    for _ in range(draw(st.integers(1, 6))):
        num = draw(st.integers(0, 7))
        segments = np.concatenate([[0], np.cumsum(rng.choice([1, 2, 3, 50], num))]).astype(np.int64)
        history.append(
            {
                "entries": rng.permutation(7)[:num],
                "segments": segments,
                "vectors": rng.integers(0, 4, segments[-1]),
                "scales": rng.normal(size=segments[-1] if scaled else 0).astype(np.float32),
                "gradients": (rng.normal(size=(4, dim)) * 10.0 ** rng.integers(-2, 2)).astype(np.float32),
                "actions": rng.choice([UPDATE, APPLY, DEFER, DEFER, SKIP], num),
            }
        )
    return dim, history


@both
@every_optimizer
@settings(max_examples=25, deadline=None)
@given(case=histories(), num_chunks=st.integers(1, 3))
def test_defer_equals_its_twin_for_any_number_of_chunks(
    choose: Choose, optimizer: RowOptimizer, case: tuple[int, list[dict[str, Any]]], num_chunks: int
) -> None:
    dim, history = case
    rows, twin = Summed(optimizer, dim), Summed(optimizer, dim)
    for batch in history:
        norms = rows.defer(choose, **batch, num_chunks=num_chunks)
        np.testing.assert_array_equal(norms, twin.defer_slowly(**batch))
        assert rows.equals(twin)
        assert rows.keeps(twin.deferred)


@both
@every_optimizer
@pytest.mark.parametrize("num_chunks", [1, 3])
@pytest.mark.parametrize("tier", [0, -1])
def test_update_from_sums_equals_its_twin(choose: Choose, optimizer: RowOptimizer, num_chunks: int, tier: int) -> None:
    """Some rows of a tier."""
    rows, twin = Summed(optimizer, 5), Summed(optimizer, 5)
    gradients, entries = rows.values(7), np.array([2, 0, 1] if tier == 0 else [6, 3, 5])
    rows.defer(choose, np.arange(7), np.arange(8), np.arange(7), [], gradients, [DEFER] * 7)
    twin.defer_slowly(np.arange(7), np.arange(8), np.arange(7), [], gradients, [DEFER] * 7)
    norms, locations = np.empty(3, np.float32), np.array([rows.location(entry) for entry in entries])
    choose(update_from_sums)(
        tier, (locations, entries), (rows.sums, rows.squares),
        *((rows.device, rows.device_state) if tier == 0 else (rows.host, rows.host_state)),
        rows.rule, (NO_KEYS, norms[None]), num_chunks,
    )  # fmt: skip
    np.testing.assert_array_equal(norms, [twin.apply_slowly(entry) for entry in entries])
    assert rows.equals(twin)


@pytest.mark.usefixtures("two_threads")
@every_optimizer
def test_threads_share_sums_and_give_the_same_bits(optimizer: RowOptimizer) -> None:
    """Enough rows that chunks really run at once, in both tiers; half of the rows with a sum are applied."""
    rng = np.random.default_rng(1)
    alone, shared = (
        Summed(optimizer, 17, num_slots=3000, num_host=3000, rng=np.random.default_rng(3)) for _ in range(2)
    )
    for _ in range(2):
        segments = np.concatenate([[0], np.cumsum(rng.geometric(0.3, alone.num))])
        batch = (rng.permutation(alone.num), segments, rng.integers(0, 300, segments[-1]), [])
        gradients, actions = (
            rng.normal(size=(300, 17)).astype(np.float32),
            rng.choice([UPDATE, APPLY, DEFER], alone.num),
        )
        norms = alone.defer(lambda kernel: kernel, *batch, gradients, actions)
        shared_norms = shared.defer(lambda kernel: kernel, *batch, gradients, actions, num_chunks=5)
        np.testing.assert_array_equal(shared_norms, norms)
        assert shared.equals(alone)
        for name in ("sums", "squares", "pending"):
            np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
