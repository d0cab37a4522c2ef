"""The fused update in Triton: bit for bit as `kernels.rows.cpu.update`, interpreted or on a GPU.

With `exact=False` rows of more than 32 look-ups are summed in another order: bit for bit as the slow twin below.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import reference
import torch
import triton_setup
from hypothesis import given, settings
from hypothesis import strategies as st
from triton_setup import DEVICE, OPTIMIZERS, Floats, Pinned, assert_same_bits, random_rows, ready, run, settings_of

import adaptive.kernels.rows.gpu.sums
import adaptive.kernels.rows.gpu.update
from adaptive.kernels.rows.cpu import update
from adaptive.kernels.rows.hot import hot_rows
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad

every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)


@dataclass
class Rows:
    """Both tiers, and how to update rows of theirs."""

    optimizer: RowOptimizer
    dim: int
    num_slots: int = 3
    num_host: int = 4
    arrays: list[Floats] = field(init=False)  # weights and state of the device, of the host

    def __post_init__(self) -> None:
        rng, state = np.random.default_rng(0), reference.initial_state(self.optimizer, self.dim)
        self.arrays = []
        for num in (self.num_slots, self.num_host):
            self.arrays += [random_rows(rng, num, self.dim), np.tile(state, (num, 1))]

    def update(self, locations: Any, *row_updates: Any, **options: Any) -> Floats:
        """row_updates: segments, vectors, scales, gradients. Returns the norms."""
        norms = np.full(len(locations), np.nan, np.float32)
        device, device_state, host, host_state = self.arrays
        optimizer = self.optimizer
        run(
            triton_setup.update, device, device_state, Pinned(host), Pinned(host_state), locations, *row_updates,
            optimizer.kind, settings_of(optimizer), optimizer.corrections(), norms, **options,
        )  # fmt: skip
        return norms

    def update_by_twin(self, locations: Any, *row_updates: Any) -> Floats:
        norms, optimizer = np.full(len(locations), np.nan, np.float32), self.optimizer
        update.update(
            locations, *row_updates, *self.arrays, optimizer.kind, optimizer.settings(), optimizer.corrections(),
            norms, np.empty((1, 2, self.dim), np.float32),
        )  # fmt: skip
        return norms


def random_row_updates(rng: np.random.Generator, dim: int, sizes: Any, scaled: bool = False) -> tuple[Any, ...]:
    """(segments, vectors, scales, gradients)"""
    segments = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    gradients = random_rows(rng, 6, dim)
    vectors = rng.integers(0, 6, segments[-1]).astype(np.int32)
    return segments, vectors, random_rows(rng, segments[-1] if scaled else 0), gradients


def assert_equals_twin(optimizer: RowOptimizer, dim: int, locations: Any, row_updates: Any, times: int = 2) -> Rows:
    """Updates in a row, so that state counts."""
    rows, twin = Rows(optimizer, dim), Rows(optimizer, dim)
    for _ in range(times):
        assert_same_bits(rows.update(locations, *row_updates), twin.update_by_twin(locations, *row_updates))
        for found, expected in zip(rows.arrays, twin.arrays, strict=True):
            assert_same_bits(found, expected)
    return rows


# --- written out --------------------------------------------------------------------------------------------------


def test_each_rows_gradients_are_summed() -> None:
    """Slot 1 gets vectors 0 and 2; host row 0 gets vector 1. w -= 0.5 * sum; the others stay."""
    rows = Rows(SGD(0.5), 2, 2, 2)
    for array in rows.arrays:
        array.fill(0)
    gradients = np.array([[2, 4], [6, 8], [4, 4]], np.float32)
    row_updates = np.array([0, 2, 3]), np.array([0, 2, 1], np.int32), np.zeros(0, np.float32), gradients
    norms = rows.update(np.array([1, ~0]), *row_updates)
    assert_same_bits(rows.arrays[0], [[0, 0], [-3, -4]])
    assert_same_bits(rows.arrays[2], [[-3, -4], [0, 0]])
    assert_same_bits(norms, [5, 5])


def test_the_four_formulas_on_one_number() -> None:
    """Weight 1, gradient 2, first update, learning rate 0.5; numbers that float32 holds exactly."""
    expected: dict[RowOptimizer, tuple[float, list[float]]] = {
        SGD(0.5): (0.0, []),
        Adagrad(0.5, eps=0.0, initial_accumulator=12.0): (0.75, [16]),  # sqrt(12 + 4) = 4
        RowwiseAdagrad(0.5, eps=0.0, initial_accumulator=12.0): (0.75, [16]),
        Adam(0.5, eps=0.0, beta1=0.5, beta2=0.75): (0.5, [1, 1, 1]),  # 0.5 * sqrt(.25) / .5 * 1 / sqrt(1)
    }
    row_updates = np.array([0, 1]), np.zeros(1, np.int32), np.zeros(0, np.float32), np.array([[2]], np.float32)
    for optimizer, (weight, state) in expected.items():
        rows = Rows(optimizer, 1)
        rows.arrays[0].fill(1)
        norms = rows.update(np.array([2]), *row_updates)
        assert_same_bits(rows.arrays[0], [[1], [1], [weight]])
        assert_same_bits(rows.arrays[1][2], state)
        assert_same_bits(norms, [1 - weight])


def test_an_empty_update_changes_nothing() -> None:
    assert_equals_twin(SGD(), 5, np.zeros(0, np.int64), random_row_updates(np.random.default_rng(0), 5, []))


def test_a_row_of_a_tier_that_was_not_given_is_never_written() -> None:
    if triton_setup.INTERPRETED:
        rows, row_updates = Rows(SGD(), 1), random_row_updates(np.random.default_rng(0), 1, [1])
        tail = (SGD.kind, settings_of(SGD()), SGD().corrections(), np.zeros(1, np.float32))
        with pytest.raises(AssertionError):
            run(triton_setup.update, *rows.arrays[:2], None, None, np.array([~0]), *row_updates, *tail)


# --- against the twin ---------------------------------------------------------------------------------------------


@every_optimizer
@pytest.mark.parametrize("dim", [1, 3, 16, 17, 64, 100])
def test_every_width_equals_the_twin(optimizer: RowOptimizer, dim: int) -> None:
    rng = np.random.default_rng(dim)
    row_updates = random_row_updates(rng, dim, [1, 1, 9, 2, 1, 1], scaled=dim % 2 == 1)
    assert_equals_twin(optimizer, dim, np.array([2, ~3, 0, ~1, ~0, 1]), row_updates)


@every_optimizer
def test_the_widest_row_equals_the_twin(optimizer: RowOptimizer) -> None:
    dim = 1024 if isinstance(optimizer, RowwiseAdagrad) else 130  # interpreting a sum of squares takes its time
    row_updates = random_row_updates(np.random.default_rng(1), dim, [2])
    assert_equals_twin(optimizer, dim, np.array([1]), row_updates, times=1)


@settings(max_examples=6, deadline=None)
@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    dim=st.sampled_from([1, 3, 16, 40]),
    locations=st.permutations(range(-4, 3)),
    sizes=st.lists(st.sampled_from([1, 2, 3, 50]), min_size=1, max_size=7),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_update_equals_the_twin(
    optimizer: RowOptimizer, dim: int, locations: list[int], sizes: list[int], scaled: bool, seed: int
) -> None:
    row_updates = random_row_updates(np.random.default_rng(seed), dim, sizes, scaled)
    assert_equals_twin(optimizer, dim, np.array(locations[: len(sizes)]), row_updates)


@every_optimizer
def test_gradients_that_are_not_finite_equal_the_twin(optimizer: RowOptimizer) -> None:
    """NaN and infinities, squares that overflow (1e30) or vanish (1e-30), numbers below 2**-126."""
    segments, vectors, scales, gradients = random_row_updates(np.random.default_rng(0), 3, [1, 1, 1, 1, 2, 2])
    gradients[:5, 1] = (np.nan, np.inf, 1e30, 1e-30, -np.inf)
    gradients[5] = 1e-41
    vectors[:] = (0, 1, 2, 3, 1, 4, 5, 5)
    assert_equals_twin(optimizer, 3, np.array([0, 1, 2, ~0, ~1, ~2]), (segments, vectors, scales, gradients))


def test_programs_take_several_tiles_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch is used again, by rows in another tile."""
    monkeypatch.setattr(adaptive.kernels.rows.gpu.update, "MAX_PROGRAMS", 2)
    row_updates = random_row_updates(np.random.default_rng(2), 130, [1, 2, 1, 1, 3, 1, 1])
    assert_equals_twin(RowwiseAdagrad(), 130, np.arange(-4, 3), row_updates, times=1)


# --- hot rows -----------------------------------------------------------------------------------------------------


def with_hot(optimizer: RowOptimizer, dim: int, row_updates: Any) -> Rows:
    """As `assert_equals_twin`, once, with the rows named that are hot."""
    rows, twin, hot = Rows(optimizer, dim), Rows(optimizer, dim), hot_rows(row_updates[0])
    locations = np.array([2, ~3, 0, ~1, ~0, 1])[: len(row_updates[0]) - 1]
    norms = rows.update(locations, *row_updates, hot=torch.from_numpy(hot).to(DEVICE))
    assert_same_bits(norms, twin.update_by_twin(locations, *row_updates))
    for found, expected in zip(rows.arrays, twin.arrays, strict=True):
        assert_same_bits(found, expected)
    return rows


def test_rows_with_more_than_64_look_ups_are_hot_the_longest_first() -> None:
    segments = np.cumsum([0, 64, 65, 1, 200, 65])
    assert hot_rows(segments).tolist() == [3, 1, 4]
    assert hot_rows(np.zeros(1, np.int64)).dtype == np.int32 and len(hot_rows(np.zeros(1, np.int64))) == 0


@every_optimizer
@pytest.mark.parametrize(("dim", "scaled"), [(1, True), (16, False), (33, True), (64, False)])
def test_hot_rows_equal_the_twin(optimizer: RowOptimizer, dim: int, scaled: bool) -> None:
    """Whole rounds, and what is left of one; rows that are not hot stand between them."""
    row_updates = random_row_updates(np.random.default_rng(dim), dim, [65, 3, 96, 64, 1, 137], scaled)
    with_hot(optimizer, dim, row_updates)


@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 63, 64, 65, 66, 127, 128, 129, 300]), min_size=1, max_size=6),
    dim=st.sampled_from([1, 3, 40]),
    scaled=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_hot_rows_wherever_they_start_have_a_sum_of_their_own(
    sizes: list[int], dim: int, scaled: bool, seed: int
) -> None:
    with_hot(SGD(0.3), dim, random_row_updates(np.random.default_rng(seed), dim, sizes, scaled))


def test_sums_of_hot_rows_keep_the_sign_of_zero() -> None:
    """-0.0 + -0.0 is -0.0; with any +0.0 it is 0.0. Weights of -0.0 show it: -0.0 - 1 * 0.0 is -0.0."""
    for gradient in (-0.0, 0.0):
        segments, vectors = np.array([0, 70, 170]), np.zeros(170, np.int32)
        gradients = np.full((1, 3), gradient, np.float32)
        rows = with_hot(SGD(1.0), 3, (segments, vectors, np.zeros(0, np.float32), gradients))
        assert not np.isnan(rows.arrays[0]).any()


def test_without_a_name_a_hot_row_is_summed_like_any_other() -> None:
    row_updates = random_row_updates(np.random.default_rng(4), 5, [80, 1])
    assert_equals_twin(SGD(0.3), 5, np.array([0, 1]), row_updates, times=1)


# --- chunks -------------------------------------------------------------------------------------------------------


def sum_by_chunks(terms: Floats) -> Floats:
    """By 32s, these again by 32s, the rest in order; see `kernels.rows.gpu.sums`."""
    for _ in range(2):
        if len(terms) > 32:
            terms = np.stack([reference.weighted_sum(terms[p : p + 32]) for p in range(0, len(terms), 32)])
    return reference.weighted_sum(terms)


def summed(row_updates: Any) -> Floats:
    """(U, D) sums of gradients by chunks: SGD with a rate of 1 takes them from rows of zeros."""
    num = len(row_updates[0]) - 1
    rows = Rows(SGD(1.0), row_updates[3].shape[1], num, 1)
    rows.arrays[0].fill(0)
    rows.update(np.arange(num), *row_updates, exact=False)
    return -rows.arrays[0]


def terms_of(row_updates: Any) -> list[Floats]:
    """For each row (n, D) what is summed."""
    segments, vectors, scales, gradients = row_updates
    terms = gradients[vectors] * (scales[:, None] if len(scales) else np.float32(1))
    return np.split(terms, segments[1:-1])


def assert_sums_by_chunks(row_updates: Any) -> None:
    expected = np.stack([sum_by_chunks(terms) for terms in terms_of(row_updates)])
    np.testing.assert_array_equal(summed(row_updates), expected)


@pytest.mark.parametrize("dim", [2, 17])
def test_long_rows_are_summed_by_chunks_that_start_with_the_row(dim: int) -> None:
    """Rows that end before, at and after the end of a chunk, and start anywhere in a cell."""
    sizes = [1, 32, 33, 1, 30, 64, 65, 3, 31, 100, 95, 1, 33, 34, 1024, 2]
    assert_sums_by_chunks(random_row_updates(np.random.default_rng(dim), dim, sizes, scaled=dim == 17))


def test_very_long_rows_are_summed_by_chunks_of_chunks() -> None:
    sizes = [5, 1025, 1024, 1, 2200, 40, 2048, 1023]
    assert_sums_by_chunks(random_row_updates(np.random.default_rng(3), 2, sizes))


@settings(max_examples=6, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 2, 31, 32, 33, 63, 64, 65, 200, 1100]), min_size=1, max_size=9),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_rows_are_summed_by_chunks(sizes: list[int], seed: int) -> None:
    assert_sums_by_chunks(random_row_updates(np.random.default_rng(seed), 1, sizes))


def test_a_row_is_summed_alike_whatever_stands_before_it() -> None:
    segments, vectors, scales, gradients = random_row_updates(np.random.default_rng(4), 3, [70])
    (expected,) = summed((segments, vectors, scales, gradients))
    for before in ([1], [40, 7], [32], [1500]):
        other = np.zeros(sum(before), np.int32)
        moved = np.concatenate([[0], np.cumsum([*before, 70])]), np.concatenate([other, vectors]), scales, gradients
        assert_same_bits(summed(moved)[-1], expected)


def test_chunks_stay_within_the_documented_bound_of_the_order_of_the_cpu() -> None:
    """|difference| <= 2 n 2**-24 sum|term|; and it is a difference: the order is another one."""
    row_updates = random_row_updates(np.random.default_rng(5), 4, [70, 1500, 500], scaled=True)
    for terms, found in zip(terms_of(row_updates), summed(row_updates), strict=True):
        expected = reference.weighted_sum(terms)
        bound = 2 * len(terms) * 2.0**-24 * np.abs(terms).astype(np.float64).sum(axis=0)
        assert (np.abs(expected.astype(np.float64) - found) <= bound).all()
        assert (expected != found).any()


@every_optimizer
def test_short_rows_have_the_bits_of_the_exact_order(optimizer: RowOptimizer) -> None:
    row_updates = random_row_updates(np.random.default_rng(6), 5, [32, 1, 32])
    rows, twin, locations = Rows(optimizer, 5), Rows(optimizer, 5), np.array([0, ~2, 1])
    norms = rows.update(locations, *row_updates, exact=False)
    assert_same_bits(norms, twin.update_by_twin(locations, *row_updates))
    for found, expected in zip(rows.arrays, twin.arrays, strict=True):
        assert_same_bits(found, expected)


# --- narrow rows --------------------------------------------------------------------------------------------------


@every_optimizer
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_narrow_rows_are_stepped_in_float32_and_rounded(optimizer: RowOptimizer, kind: torch.dtype) -> None:
    twin = Rows(optimizer, 6)
    narrow = torch.from_numpy(twin.arrays[0]).to(kind)
    twin.arrays[0], state = narrow.float().numpy(), torch.from_numpy(twin.arrays[1].copy()).to(DEVICE)
    narrow, row_updates = narrow.to(DEVICE), random_row_updates(np.random.default_rng(7), 6, [1, 3])
    expected = twin.update_by_twin(np.array([2, 0]), *row_updates)
    norms = torch.empty(2, device=DEVICE)
    tensors = [torch.from_numpy(array).to(DEVICE) for array in (np.array([2, 0]), *row_updates)]
    corrections = torch.from_numpy(optimizer.corrections()).to(DEVICE)
    with ready():
        triton_setup.update(
            narrow, state, None, None, *tensors, optimizer.kind, settings_of(optimizer), corrections, norms
        )
    assert_same_bits(narrow.float().cpu().numpy(), torch.from_numpy(twin.arrays[0]).to(kind).float().numpy())
    assert_same_bits(state.cpu().numpy(), twin.arrays[1])
    assert_same_bits(norms.cpu().numpy(), expected)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_rows_are_rounded_to_nearest_even(kind: torch.dtype) -> None:
    """Ties, overflow to infinity, subnormal numbers, NaN: as torch rounds."""
    bits = np.random.default_rng(8).integers(0, 2**32, (4, 64), np.uint32)
    bits[1] = bits[1] & 0xFFFF8000  # ties of bfloat16
    bits[2] = (bits[2] & 0x80FFF000) + 0x38000000  # ties of float16
    bits[3, :4] = (0x7F7FFFFF, 0x477FF000, 0x7F800001, 0x00008000)
    values = bits.view(np.float32)
    weights, vectors = torch.zeros(4, 64, dtype=kind, device=DEVICE), torch.arange(4, device=DEVICE)
    none, norms = torch.zeros(0, device=DEVICE), torch.empty(4, device=DEVICE)
    with ready():
        triton_setup.update(
            weights, torch.zeros(4, 0, device=DEVICE), None, None, vectors, torch.arange(5, device=DEVICE), vectors,
            none, torch.from_numpy(-values).to(DEVICE), SGD.kind, settings_of(SGD(1.0)), none, norms,
        )  # fmt: skip
    assert_same_bits(weights.float().cpu().numpy(), (0 - torch.from_numpy(-values)).to(kind).float().numpy())


@pytest.mark.parametrize("look_ups", [33, 64, 65, 96, 1025])
def test_sums_of_chunks_start_where_triton_needs_no_other_kernel(look_ups: int) -> None:
    """At multiples of 16 bytes, whatever the width."""
    rows, vectors = torch.tensor([0, look_ups], device=DEVICE), torch.zeros(look_ups, dtype=torch.int32, device=DEVICE)
    gradients = torch.ones(1, 1, device=DEVICE)
    with ready():
        sums, num_places = adaptive.kernels.rows.gpu.sums.chunk_sums(rows, vectors, gradients[0, :0], gradients)
    assert num_places % 4 == 0 and num_places >= 2 * -(-look_ups // 32)
    assert len(sums) == num_places + 2 * -(-look_ups // 1024)
