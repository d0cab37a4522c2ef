"""Tables in bfloat16: no placement, look-ahead or resume changes a bit; half the bytes everywhere."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.deferral_twin import Defer, DeferOnHost
from support.helpers import LFU, LFUOnHost, Scattered, Trained, Trainee, random_batches, train, train_more, train_slowly

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import InputError
from adaptive.kernels.vector.bfloat16 import narrow, widen
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

OPTIMIZERS = [SGD(lr=0.5, weight_decay=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1, weight_decay=0.5), Adam(lr=0.01)]
TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=5, features=("x", "y"), dtype="bfloat16"),
    TableConfig(name="b", num_embeddings=20, embedding_dim=5, dtype="bfloat16", rounding="nearest"),
    TableConfig(name="c", num_embeddings=30, embedding_dim=16, pooling="mean", dtype="bfloat16"),
    TableConfig(name="d", num_embeddings=25, embedding_dim=16),
)
BATCHES = random_batches(TABLES, 14, seed=4, samples=5)


def build(policy: type[Policy] = LFU, optimizer: RowOptimizer = OPTIMIZERS[2], tables: Sequence[TableConfig] = TABLES,
          skip: SkipConfig | None = None, **tier: Any) -> TieredEmbeddingBag:  # fmt: skip
    settings = TierConfig(**{"device_rows": "90%", "poison": True, "when_full": "reduce_lookahead"} | tier)
    return TieredEmbeddingBag(tables, settings, policy=policy, optimizer=optimizer, skip=skip)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_training_is_that_of_the_twin_in_any_tiers(optimizer: RowOptimizer, tmp_path: Path) -> None:
    """Tables of both dtypes and roundings side by side; decay is rounded, too."""
    expected = train_slowly(TABLES, BATCHES, optimizer)
    initial = build()
    assert all((expected.weights[name] != initial.rows.table_weights(name)).any() for name in "abc")
    cases = [(LRU, {"device_rows": "100%"}, 0), (LFU, {}, 3), (LFUOnHost, {"device_rows": "20%"}, 2),
             (Scattered, {"host": f"mmap:{tmp_path}"}, 2),
             (LFUOnHost, {"host": f"mmap:{tmp_path}", "device_rows": "10%"}, 4),
             (LFU, {"device": "cpu-torch", "transfer": "staged"}, 2),
             (LFUOnHost, {"device": "cpu-torch", "transfer": "direct", "device_rows": "30%"}, 3),
             (Scattered, {"device": "cpu-torch", "host": f"mmap:{tmp_path}"}, 0)]  # fmt: skip
    for policy, tier, depth in cases:
        train(build(policy, optimizer, **tier), TABLES, BATCHES, depth).assert_equals(expected)


def test_rounding_matters_and_does_not_depend_on_other_tables() -> None:
    """Stochastic, nearest and float32 differ; a table rounds alone as it does among others."""
    results = {}
    for options in ({"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "rounding": "nearest"}):
        tables = [TABLES[0].model_copy(update=options)]
        batches = random_batches(tables, 6, seed=1, samples=5)
        results[tuple(options.values())] = train(build(tables=tables), tables, batches, 1).weights["a"]
    stochastic, nearest = results["bfloat16",], results["bfloat16", "nearest"]
    assert not np.array_equal(stochastic, nearest) and not np.array_equal(stochastic, results["float32",])
    np.testing.assert_allclose(stochastic, results["float32",], atol=0.02)
    for values in (stochastic, nearest):
        np.testing.assert_array_equal(widen(narrow(values)), values)


# --- saving ----------------------------------------------------------------------------------------------------------


def resumed(first: TieredEmbeddingBag, second: TieredEmbeddingBag, stop: int, *, by_torch: bool) -> Trained:
    trainee = Trainee(TABLES)
    train_more(first, trainee, BATCHES[:stop], 3)
    if by_torch:
        state = first.state_dict()
        assert state["rows0.weights"].dtype == torch.bfloat16
        second.load_state_dict(state)
    else:
        arrays = first.rows.state_arrays()
        assert arrays["rows0.weights"].dtype == np.uint16 and arrays["rows0.state"].dtype == np.float32
        second.rows.load_state_arrays(arrays)
    return train_more(second, trainee, BATCHES[stop:], 1)


@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_a_resumed_training_rounds_as_one_that_was_not_stopped(optimizer: RowOptimizer, by_torch: bool) -> None:
    """Keys count batches, and the checkpoint has their number."""
    expected = train(build(LRU, optimizer), TABLES, BATCHES, 2)
    device = "cpu-torch" if by_torch else "cpu"
    loading = build(LFUOnHost, optimizer, device_rows="30%", device=device)
    resumed(build(LFU, optimizer, device=device), loading, 6, by_torch=by_torch).assert_equals(expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:2])
def test_a_checkpoint_inside_the_loop_counts_the_batch_that_was_stepped(optimizer: RowOptimizer) -> None:
    """Between `step()` and the next batch, with others in flight: the next batch rounds with its own number."""
    expected = train(build(LRU, optimizer), TABLES, BATCHES, 2)
    first, second, trainee = build(LFU, optimizer), build(LRU, optimizer, device_rows="80%"), Trainee(TABLES)
    with closing(first.look_ahead(BATCHES, depth=3)) as batches:
        for planned in batches:
            trainee.learn(first(planned), planned.batch)
            first.step()
            if planned.number == 6:
                second.load_state_dict(first.state_dict())
                break
    train_more(second, trainee, BATCHES[7:], 1).assert_equals(expected)


def test_deferred_updates_round_when_they_are_applied() -> None:
    """At any placement and look-ahead, and after a resume with sums in flight."""
    skip = SkipConfig(interval=4, hot_rows="100%", min_accesses=3, feedback_delay=5)
    expected = train(build(Defer, device_rows="100%", skip=skip), TABLES, BATCHES, 0)
    assert not np.array_equal(expected.weights["a"], train(build(), TABLES, BATCHES, 0).weights["a"])
    for device in ("cpu", "cpu-torch"):
        more = {"skip": skip, "device": device}
        train(build(DeferOnHost, device_rows="20%", **more), TABLES, BATCHES, 4).assert_equals(expected)
    resumed(build(Defer, skip=skip), build(Defer, skip=skip), 7, by_torch=True).assert_equals(expected)


def test_loaded_vectors_are_rounded_to_nearest() -> None:
    embeddings = build()
    values = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    embeddings.rows.load_table("a", values)
    table = embeddings.rows.table_weights("a")
    np.testing.assert_array_equal(table[:12], torch.from_numpy(values).to(torch.bfloat16).float().numpy())
    assert table.dtype == np.float32
    values[3, 1] = 3.4e38
    with pytest.raises(InputError, match=r"table 'a': vectors.*below 3\.39.*bfloat16"):
        embeddings.rows.load_table("a", values)
    np.testing.assert_array_equal(embeddings.rows.table_weights("a"), table)


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [SGD(), RowwiseAdagrad()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("host", ["memory", "mmap"])
def test_half_the_bytes_in_tiers_moves_and_checkpoints(optimizer: RowOptimizer, host: str, tmp_path: Path) -> None:
    sizes = []
    for dtype in ("float32", "bfloat16"):
        tables = [TableConfig(name="t", num_embeddings=3000, embedding_dim=64, dtype=dtype)]
        place = {"host": "memory" if host == "memory" else f"mmap:{tmp_path}"}
        embeddings = build(LRU, optimizer, tables, device_rows="50%", **place)
        train(embeddings, tables, random_batches(tables, 12, seed=0, samples=200), 2)
        memory = embeddings.statistics.memory()
        checkpoint = embeddings.rows.state_arrays()
        tiers = [memory[name] + memory[name.replace("weights", "state")] for name in ("host_weights", "device_weights")]
        counts = embeddings.statistics.take().counts.sum(0)
        sizes.append([*tiers, counts[Counter.BYTES_H2D], counts[Counter.BYTES_D2H],
                      checkpoint["rows0.weights"].nbytes + checkpoint["rows0.state"].nbytes])  # fmt: skip
    floats, halves = (np.array(numbers) for numbers in sizes)
    assert (floats > 0).all() and (halves <= 0.52 * floats).all()
