"""Optimizer state in bfloat16: no placement, look-ahead, resume or number of ranks changes a bit; half the bytes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.deferral_twin import Defer, DeferOnHost
from support.helpers import LFU, LFUOnHost, Scattered, Trained, Trainee, random_batches, train, train_more, train_slowly
from support.rank_cases import TABLES as RANK_TABLES
from support.rank_cases import Case, assert_equal_on

from adaptive.config import OptimizerConfig, SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError, ConfigError
from adaptive.kernels.vector.bfloat16 import narrow, widen
from adaptive.optim import Adagrad, Adam, RowOptimizer, row_optimizer
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

OPTIMIZERS = [Adagrad(lr=0.1, initial_accumulator=0.1, state_dtype="bfloat16"),
              Adam(lr=0.01, weight_decay=0.1, state_dtype="bfloat16")]  # fmt: skip
TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=5, features=("x", "y"), dtype="bfloat16"),
    TableConfig(name="b", num_embeddings=20, embedding_dim=5, rounding="nearest"),
    TableConfig(name="c", num_embeddings=30, embedding_dim=16, pooling="mean"),
    TableConfig(name="d", num_embeddings=25, embedding_dim=1),
)
BATCHES = random_batches(TABLES, 14, seed=4, samples=5)
both = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)


def build(
    optimizer: RowOptimizer = OPTIMIZERS[1], policy: type[Policy] = LFU, skip: SkipConfig | None = None,
    tables: Any = TABLES, **tier: Any,
) -> TieredEmbeddingBag:  # fmt: skip
    settings = TierConfig(**{"device_rows": "90%", "poison": True, "when_full": "reduce_lookahead"} | tier)
    return TieredEmbeddingBag(tables, settings, policy=policy, optimizer=optimizer, skip=skip)


@both
def test_training_is_that_of_the_twin_in_any_tiers(optimizer: RowOptimizer, tmp_path: Path) -> None:
    """Rows in float32 and bfloat16, both roundings, odd widths in files."""
    expected = train_slowly(TABLES, BATCHES, optimizer)
    cases = [(LRU, {"device_rows": "100%"}, 0), (LFU, {}, 3), (LFUOnHost, {"device_rows": "20%"}, 2),
             (Scattered, {"host": f"mmap:{tmp_path}"}, 2),
             (LFUOnHost, {"host": f"mmap:{tmp_path}", "device_rows": "10%"}, 4),
             (LFU, {"device": "cpu-torch", "transfer": "direct"}, 3),
             (LFUOnHost, {"device": "cpu-torch", "device_rows": "20%"}, 2),
             (Scattered, {"device": "cpu-torch", "host": f"mmap:{tmp_path}"}, 2)]  # fmt: skip
    for policy, tier, depth in cases:
        train(build(optimizer, policy, **tier), TABLES, BATCHES, depth).assert_equals(expected)
    for name, state in expected.state.items():
        moments = state[:, : -optimizer.counts] if optimizer.counts else state
        assert np.array_equal(widen(narrow(moments)), moments) and len(np.unique(moments)) > 4, name
    assert optimizer.counts == 0 or expected.state["d"][:, -1].max() > 2


def test_rounding_of_state_matters() -> None:
    """Stochastic, nearest and float32 differ, and only a little."""
    results, tables = [], [TABLES[2]]
    batches = random_batches(tables, 6, seed=1, samples=5)
    for options, dtype in (({}, "float32"), ({}, "bfloat16"), ({"rounding": "nearest"}, "bfloat16")):
        of_run = [tables[0].model_copy(update=options)]
        embeddings = build(Adagrad(lr=0.1, initial_accumulator=0.1, state_dtype=dtype), tables=of_run)
        results.append(train(embeddings, of_run, batches, 1).weights["c"])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(results[one], results[other])
        np.testing.assert_allclose(results[one], results[other], atol=0.01)


# --- saving ----------------------------------------------------------------------------------------------------------


def resumed(first: TieredEmbeddingBag, second: TieredEmbeddingBag, stop: int, *, by_torch: bool) -> Trained:
    trainee = Trainee(TABLES)
    train_more(first, trainee, BATCHES[:stop], 3)
    if by_torch:
        tensors = first.state_dict()
        assert tensors["rows0.state"].dtype == torch.bfloat16
        second.load_state_dict(tensors)
    else:
        second.rows.load_state_arrays(first.rows.state_arrays())
    return train_more(second, trainee, BATCHES[stop:], 1)


@pytest.mark.parametrize("by_torch", [False, True])
@both
def test_a_resumed_training_rounds_as_one_that_was_not_stopped(optimizer: RowOptimizer, by_torch: bool) -> None:
    expected = train(build(optimizer, LRU), TABLES, BATCHES, 2)
    for first, second in (("cpu", "cpu"), ("cpu-torch", "cpu"), ("cpu", "cpu-torch")):
        loading = build(optimizer, LFUOnHost, device_rows="30%", device=second)
        resumed(build(optimizer, device=first), loading, 6, by_torch=by_torch).assert_equals(expected)


@both
def test_deferred_updates_round_when_they_are_applied(optimizer: RowOptimizer) -> None:
    """At any placement and look-ahead, and after a resume with sums in flight."""
    skip = SkipConfig(interval=4, min_visits=1, hot_rows="100%", min_accesses=3, feedback_delay=5)
    expected = train(build(optimizer, Defer, skip, device_rows="100%"), TABLES, BATCHES, 0)
    assert not np.array_equal(expected.weights["a"], train(build(optimizer), TABLES, BATCHES, 0).weights["a"])
    train(build(optimizer, DeferOnHost, skip, device_rows="20%"), TABLES, BATCHES, 4).assert_equals(expected)
    resumed(build(optimizer, Defer, skip), build(optimizer, Defer, skip), 7, by_torch=True).assert_equals(expected)


@both
def test_another_state_dtype_is_refused_and_changes_nothing(optimizer: RowOptimizer) -> None:
    floats = replace(optimizer, state_dtype="float32")
    for saved, loading, types in ((floats, optimizer, "uint16.*float32"), (optimizer, floats, "float32.*uint16")):
        one, other = build(saved), build(loading)
        train(one, TABLES, BATCHES[:3], 1)
        before = other.rows.table_weights("a")
        with pytest.raises(CheckpointError, match=rf"rows0\.state: expected {types}.*state_dtype"):
            other.rows.load_state_arrays(one.rows.state_arrays())
        np.testing.assert_array_equal(other.rows.table_weights("a"), before)


def test_damaged_state_is_found() -> None:
    """An infinite moment, a negative second moment, and half an update."""
    one = build()
    train(one, TABLES, BATCHES[:3], 1)
    whole = one.rows.state_arrays()
    half = np.array([0.5], np.float32).view(np.uint16)
    for places, bits, got in ((2, 0x7F80, "inf"), (7, 0xBF80, r"-1\.0"), (slice(10, 12), half, r"0\.5")):
        arrays = {name: array.copy() for name, array in whole.items()}
        arrays["rows0.state"][0, places] = bits
        with pytest.raises(CheckpointError, match=rf"rows0\.state: .*got {got}"):
            build().rows.load_state_arrays(arrays)


def test_loaded_vectors_and_larger_tables_start_with_rounded_state() -> None:
    """The accumulator begins with the bfloat16 next to 0.1."""
    embeddings = build(OPTIMIZERS[0])
    embeddings.rows.load_table("c", np.ones((3, 16), np.float32))
    arrays = embeddings.rows.state_arrays()
    number = next(n for n, lane in enumerate(embeddings.runtime.pipeline.lanes) if lane.group.tables[0].name == "c")
    np.testing.assert_array_equal(widen(arrays[f"rows{number}.state"]), np.float32(0.10009765625))
    larger = tuple(table.model_copy(update={"num_embeddings": 50, "init_bound": 0.1}) for table in TABLES)
    smaller = [table.model_copy(update={"init_bound": 0.1}) for table in TABLES]
    one, other = build(OPTIMIZERS[0], tables=smaller), build(OPTIMIZERS[0], tables=larger)
    trained = train(one, smaller, BATCHES[:3], 1)
    other.rows.load_state_arrays(one.rows.state_arrays(), grow=True)
    np.testing.assert_array_equal(other.rows.table_weights("a")[:40], trained.weights["a"])


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "device"), [("memory", "cpu"), ("mmap", "cpu"), ("memory", "cpu-torch")])
def test_state_takes_half_the_bytes_in_tiers_moves_and_checkpoints(host: str, device: str, tmp_path: Path) -> None:
    """Adam at width 64, rows in bfloat16: 128 bytes of values, 516 or 260 of state."""
    tables = [TableConfig(name="t", num_embeddings=3000, embedding_dim=64, dtype="bfloat16")]
    sizes = []
    for dtype in ("float32", "bfloat16"):
        place = {"host": "memory" if host == "memory" else f"mmap:{tmp_path}", "device": device}
        embeddings = build(Adam(state_dtype=dtype), LRU, tables=tables, device_rows="50%", **place)
        train(embeddings, tables, random_batches(tables, 12, seed=0, samples=200), 2)
        memory = embeddings.statistics.memory()
        checkpoint = embeddings.rows.state_arrays()
        counts = embeddings.statistics.take().counts.sum(0)
        tiers = [memory[f"{tier}_weights"] + memory[f"{tier}_state"] for tier in ("host", "device")]
        saved = checkpoint["rows0.weights"].nbytes + checkpoint["rows0.state"].nbytes
        sizes.append([*tiers, counts[Counter.BYTES_H2D], counts[Counter.BYTES_D2H], saved])
    floats, halves = (np.array(numbers) for numbers in sizes)
    if device != "cpu":  # plans cross, too
        floats, halves = np.delete(floats, [2, 3]), np.delete(halves, [2, 3])
    assert (floats > 0).all() and (halves * (128 + 516) == floats * (128 + 260)).all()


# --- ranks -----------------------------------------------------------------------------------------------------------


@both
def test_ranks_give_the_same_bits(optimizer: RowOptimizer) -> None:
    assert_equal_on([2, 3], 4, Case(tuple(random_batches(RANK_TABLES, 8, samples=11)), optimizer))


# --- what has no such state ------------------------------------------------------------------------------------------


def test_other_optimizers_are_refused() -> None:
    for name in ("sgd", "rowwise_adagrad", "ftrl"):
        with pytest.raises(
            ConfigError, match=rf"state_dtype=bfloat16: expected optimizer.name adagrad or adam, got {name}"
        ):
            row_optimizer(OptimizerConfig(name=name, state_dtype="bfloat16"))
    with pytest.raises(ConfigError, match="Adam: expected state_dtype float32 or bfloat16, got 'half'"):
        Adam(state_dtype="half")  # type: ignore[arg-type]
