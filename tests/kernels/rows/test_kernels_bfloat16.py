"""Kernels on rows in bfloat16: what they give on the same rows in float32, rounded with the keys of the rows."""

from typing import Any

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.row_kernels import Choose, Floats, TwoTiers, every_optimizer, random_rows
from support.variants import both

from adaptive.config import TableConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.kernels.rows.cpu import decay, deferred, initial, move, pool, update
from adaptive.kernels.vector.bfloat16 import NO_KEYS, narrow, widen
from adaptive.optim import SGD, RowOptimizer

Keys = NDArray[np.uint64]
NOTHING = np.zeros(0, np.float32)
LOCATIONS = np.array([2, ~0, 0, ~3, ~1])  # of five of the seven rows of `TwoTiers`
DIMS = st.sampled_from([1, 3, 16, 17, 40])


class Half(TwoTiers):
    """`TwoTiers` in bfloat16; `wide` has the same rows in float32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.device, self.host = narrow(self.device), narrow(self.host)  # type: ignore[assignment]
        self.wide = [widen(rows) if rows.dtype == np.uint16 else rows.copy() for rows in self.tables]

    def assert_rounded(self, locations: Any, keys: Keys) -> None:
        """Rows are those in `wide`, which the same kernel changed, rounded; states are equal."""
        for location, key in zip(locations, keys if len(keys) else np.zeros(len(locations), np.uint64), strict=True):
            tier = 0 if location >= 0 else 2
            place = max(location, ~location)
            self.wide[tier][place] = reference.as_bfloat16(self.wide[tier][place], int(key))
        for rows, expected in zip(self.tables, self.wide, strict=True):
            np.testing.assert_array_equal(widen(rows) if rows.dtype == np.uint16 else rows, expected)


def keys_of(number: int, seed: int, *, nearest: bool) -> Keys:
    return NO_KEYS if nearest else np.random.default_rng(seed).integers(1, 2**64, number, np.uint64)


@both
@every_optimizer
@settings(max_examples=10, deadline=None)
@given(dim=DIMS, seed=st.integers(0, 2**32 - 1), nearest=st.booleans(), num_chunks=st.integers(1, 3))
def test_updates_round_once_and_keep_state_in_float32(
    choose: Choose, optimizer: RowOptimizer, dim: int, seed: int, nearest: bool, num_chunks: int
) -> None:
    rng, rows, keys = np.random.default_rng(seed), Half(optimizer, dim), keys_of(5, seed, nearest=nearest)
    for _ in range(2):
        segments = np.concatenate([[0], np.cumsum(rng.choice([1, 2, 40], 5))])
        sums = segments, rng.integers(0, 6, segments[-1]).astype(np.int32), NOTHING, random_rows(rng, 6, dim)
        norms, wide_norms = np.full((2, 2, 5), np.nan, np.float32)
        for tables, kept, measured in ((rows.tables, keys, norms), (tuple(rows.wide), NO_KEYS, wide_norms)):
            choose(update.update)(
                (LOCATIONS, *sums), tables, rows.rule, (kept, measured), np.empty((num_chunks, dim), np.float32)
            )
        np.testing.assert_array_equal(norms, wide_norms)
        rows.assert_rounded(LOCATIONS, keys)


@both
@every_optimizer
@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("dim", [3, 17])
def test_deferred_sums_are_rounded_when_applied(
    choose: Choose, optimizer: RowOptimizer, dim: int, nearest: bool
) -> None:
    """Three visits of five rows, of which the fifth is updated each time; sums are applied after the others."""
    rng, rows, keys = np.random.default_rng(0), Half(optimizer, dim), keys_of(5, 1, nearest=nearest)
    segments, vectors, now = np.arange(6), np.arange(5, dtype=np.int32), np.array([4], np.int32)
    summed, entries = np.arange(4, dtype=np.int32), np.array([3, 1, 0, 2], np.int32)
    widths = dim, optimizer.squares_width(dim)
    states = [([np.zeros((5, width), np.float32) for width in widths], np.zeros(5, np.bool_)) for _ in range(2)]
    for applied in ([], [0, 1, 2, 3], [1, 3]):
        gradients, at, written = random_rows(rng, 5, dim), np.array(applied, np.int32), np.array([4, *applied])
        for tables, kept, (sums, pending) in zip(
            (rows.tables, tuple(rows.wide)), (keys[written] if len(keys) else keys, NO_KEYS), states, strict=True
        ):
            choose(deferred.defer)(
                (now, summed, entries, at), (LOCATIONS, segments, vectors, NOTHING, gradients), (*sums, pending),
                tables, rows.rule, (kept, np.empty((1, len(written)), np.float32)),
                np.empty((2 * deferred.BLOCK, dim + 1), np.float32),
            )  # fmt: skip
        rows.assert_rounded(LOCATIONS[written], keys[written] if len(keys) else keys)


@both
@pytest.mark.parametrize("nearest", [False, True])
def test_decay_rounds_with_keys_of_its_own(choose: Choose, nearest: bool) -> None:
    """Not with those of the update that follows: of the same key, both would round the same columns up."""
    rows, keys = Half(SGD(1.0), 17), keys_of(5, 2, nearest=nearest)
    for flip, tier in ((0, 0), (-1, 2)):
        choose(decay.decay)(flip, LOCATIONS, np.float32(0.9), keys, rows.tables[tier], 2)
        choose(decay.decay)(flip, LOCATIONS, np.float32(0.9), NO_KEYS, rows.wide[tier], 2)
    mixed = np.array([reference.mix(int(key)) for key in keys], np.uint64)
    rows.assert_rounded(LOCATIONS, mixed)


@both
@settings(max_examples=10, deadline=None)
@given(dim=DIMS, seed=st.integers(0, 2**32 - 1), host=st.sampled_from(["none", "some", "all"]), scaled=st.booleans())
def test_pooling_sums_the_same_float32_values(choose: Choose, dim: int, seed: int, host: str, scaled: bool) -> None:
    rng = np.random.default_rng(seed)
    device, far = (narrow(random_rows(rng, 9, dim)) for _ in range(2))
    starts = np.concatenate([[0], np.cumsum(rng.choice([0, 1, 2, 30], 6))])
    locations = rng.integers(0, 9, 8)
    locations[{"none": [], "some": [1, 4], "all": slice(None)}[host]] ^= -1
    inverse = rng.integers(0, 8, starts[-1]).astype(np.int32)
    scales = rng.normal(size=starts[-1] if scaled else 0).astype(np.float32)
    results = np.zeros((2, 6, dim), np.float32)
    for out, tables in zip(results, ((device, far), (widen(device), widen(far))), strict=True):
        choose(pool.pool)(out, (np.arange(6, dtype=np.int32), starts, inverse, locations, scales), *tables, 2)
    np.testing.assert_array_equal(results[0], results[1])


@both
def test_moves_keep_every_bit(choose: Choose) -> None:
    """NaN with any payload, infinities and denormals; states beside them."""
    source = np.arange(2**16, dtype=np.uint16).reshape(-1, 64)
    target, state = np.zeros_like(source), np.random.default_rng(0).random((len(source), 2), np.float32)
    to_state, order = np.zeros_like(state), np.random.default_rng(1).permutation(len(source))
    choose(move.copy_rows)(target, to_state, order, source, state, np.arange(len(source)))
    np.testing.assert_array_equal(to_state[order], state)
    if choose(move.copy_rows) is move.copy_rows:  # plain Python converts, which quiets a signaling NaN
        np.testing.assert_array_equal(target[order], source)
    same = target[order] == source
    assert (same | np.isnan(widen(source))).all()


@both
def test_initial_values_are_rounded_to_nearest(choose: Choose) -> None:
    table = TableConfig(name="a", num_embeddings=30, embedding_dim=5, dtype="bfloat16")
    (group,) = make_groups([table], 3)
    weights, state = np.zeros((30, 5), np.uint16), np.zeros((30, 1), np.float32)
    numbers = group.table_starts, group.table_keys, group.table_bounds, np.float32(0.5)
    choose(initial.initial_rows)(weights, state, np.arange(30), np.arange(30), *numbers)
    np.testing.assert_array_equal(widen(weights), reference.initial_table(table, 3))
    exact: Floats = reference.initial_table(table.model_copy(update={"dtype": "float32"}), 3)
    np.testing.assert_array_equal(weights, narrow(exact))
    assert (state == 0.5).all()
