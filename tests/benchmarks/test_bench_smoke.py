"""Every benchmark at its smallest size: equal results, ratios, and the document."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import (
    bench_memory,
    bench_plan,
    bench_reader,
    bench_rules,
    bench_startup,
    bench_step,
    bench_turns,
    harness,
    whole_step,
)
from benchmarks.harness import NotEqual
from benchmarks.peers_torch import EmbeddingBags
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import Case, Ours, Setup


@pytest.fixture
def one_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only peers that are always installed."""
    monkeypatch.setattr(bench_step, "PEERS", {"torch": EmbeddingBags})


def test_step(one_peer: None) -> None:
    settings = bench_step.SETTINGS["smoke"]
    report = bench_step.run(settings)
    for case in settings.cases:
        assert report.ratios[f"embedding_vs_torch_{case.suffix}"] > 0
        assert report.ratios[f"embedding_with_planning_vs_best_{case.suffix}"] > 0


def test_a_peer_that_learns_differently_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slower(EmbeddingBags):
        def __init__(self, setup: Setup) -> None:
            super().__init__(setup)
            self._optimizer.param_groups[0]["lr"] *= 0.99

    monkeypatch.setattr(bench_step, "PEERS", {"torch": Slower})
    with pytest.raises(NotEqual, match="results differ"):
        bench_step.bench_embeddings(Case(32, 4, "sgd"), bench_step.SETTINGS["smoke"])


def test_a_missing_optimizer_is_absent(one_peer: None) -> None:
    report = bench_step.bench_embeddings(Case(32, 4, "rowwise_adagrad"), bench_step.SETTINGS["smoke"])
    assert "rowwise_adagrad" in report.absent["embedding_vs_torch_rowwise_adagrad_d4_b32"]


def test_plan() -> None:
    report = bench_plan.run(bench_plan.SETTINGS["smoke"])
    assert report.figures["plan_million_lookups_per_s_lru_10pct_b64"] > 0
    assert report.figures["plan_ms_2_threads_b64"] > 0
    assert report.figures["plan_ms_enough_threads_b64"] > 0
    assert report.figures["look_ahead_for_gpu_ms_none_b64"] > 0 and "look_ahead_for_gpu_ms_defer_b64" in report.figures
    assert report.figures["plan_million_lookups_per_s_lru_10pct_b4_multihot"] > 0
    assert report.ratios["plan_serial_share_b4_multihot"] > 0
    assert report.ratios["plan_keys_vs_rows_b4_multihot"] > 0 < report.ratios["plan_known_keys_vs_rows_b4_multihot"]


def test_turns() -> None:
    """Each turn starts and ends with an empty look-ahead: it plans its own batches and no others."""
    planned: list[int] = []
    report = bench_turns.run(bench_turns.SETTINGS["smoke"])
    assert report.ratios["turns_10pct_lru_vs_single_sgd_b64_multihot_small"] > 0
    assert report.ratios["turns_over_dense_alone_sgd_b64_multihot_small"] > 0
    setup = Setup(kaggle_tables(2000, 16), "sgd")
    ours = Ours(setup, depth=4)
    whole = whole_step.our_model("ours", ours, Case(16, 16, "sgd"), small=True)
    for size in (2, 3):
        bench_turns.turn(whole, make_batches(setup.tables, size, 16))
        planned.append(ours.bag.runtime.pipeline.next_number)
        assert not ours.bag.runtime.pipeline.running and not ours.bag.runtime.pipeline.in_flight()
    whole.close()
    assert planned == [2, 5]


@pytest.mark.parametrize("read", ["drawn", "made"])
def test_rules(read: str) -> None:
    """A tenth of the samples is dropped at random, and what fills no batch at the end of a turn."""
    settings = replace(bench_rules.SETTINGS["smoke"], read=read)
    report = bench_rules.run(settings)
    assert report.ratios["rule_time_lru_vs_lru"] == 1 and report.ratios["rule_time_random_drop_vs_lru"] > 0
    control, dropped = report.tables[0].rows
    assert control[-1] == "0.0%" and 10 <= float(dropped[-1].rstrip("%")) < 10 + 100 / settings.batches


def test_reader() -> None:
    report = bench_reader.run(bench_reader.SETTINGS["smoke"])
    assert report.figures["reader_mb_per_s"] > 0 and report.ratios["reader_prepared_vs_text"] > 0
    assert "reader_vs_polars_per_core" in report.ratios or "polars" in report.absent["reader_vs_polars_per_core"]


def test_memory() -> None:
    report = bench_memory.run(bench_memory.SETTINGS["smoke"])
    assert 0.9 < report.ratios["peak_memory_ratio"] < 2
    case = replace(bench_memory.CASES[-1], device_rows="100%")
    measured = bench_memory.measure(case, 40_000_000)
    assert 8 < measured["key_bytes"] <= 24 and measured["made_s"] > 0


@pytest.mark.nightly  # compiles every kernel again
def test_startup() -> None:
    report = bench_startup.run(bench_startup.SETTINGS["smoke"])
    assert {"startup_cold_first_step_s", "startup_warm_first_step_s", "startup_help_s"} <= set(report.figures)


# --- harness and document ------------------------------------------------------------------------------------------


def test_turns_alternate_and_warm_up_is_dropped() -> None:
    order: list[str] = []

    def case(name: str) -> float:
        order.append(name)
        return float(len(order))

    times = harness.take_turns({"a": lambda: case("a"), "b": lambda: case("b")}, rounds=2, warm_up=1)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert times == {"a": [4.0, 5.0], "b": [3.0, 6.0]}
    assert harness.paired(times["a"], times["b"]) == pytest.approx((4 / 3 + 5 / 6) / 2)


def test_nothing_changed_is_not_equal() -> None:
    same = np.ones(3)
    with pytest.raises(NotEqual):
        harness.check_equal("x", same, same, before=same, tolerance=1.0)
