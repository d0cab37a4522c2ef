"""`simulate --ranks` counts the bytes and owners of a training on ranks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reference import asked_rows
from support.thread_ranks import on_ranks
from support.toy import SIZES, SMALL_DLRM, ToyData, toy_config

import adaptive.studies.simulate.rank_traffic
from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Changed, Dataset, by_table
from adaptive.embeddings import dense_step
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.errors import ConfigError, InputError
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from adaptive.studies.simulate.rank_traffic import simulate_rank_traffic
from adaptive.studies.simulate.simulation_report import rank_traffic_document
from adaptive.training.components import build
from adaptive.training.trainer import Trainer

DATA = by_table(ToyData(num_train=64 * 6 - 5))


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive.studies.simulate.rank_traffic, "open_data", lambda config: DATA)


def config(blocks: int | None = None, wire: str = "fp32", **changed: Any) -> TrainConfig:
    return toy_config(batch_size=64, ranks={"blocks": blocks, "wire": wire}, **changed)


def sent_by_training(size: int, settings: TrainConfig, data: Dataset = DATA) -> list[RankTraffic]:
    """Return the bytes that each rank sends; ranks are threads."""

    def work(ranks: Ranks) -> RankTraffic:
        made = build(settings.model_copy(update={"policy": "lfu"}), data, (), ranks)
        with made.embeddings as embeddings:
            trainer = Trainer(embeddings, made.model, made.optimizer)
            trainer.recorder.write_interval = lambda: None  # type: ignore[method-assign]
            trainer.train(data.train(64), depth=1)
        return ranks.traffic()

    return on_ranks(size, work, blocks=settings.ranks.blocks, wire=settings.ranks.wire, gradients="sum")


@pytest.mark.parametrize(
    ("size", "blocks", "wire", "spared"),
    [(2, None, "fp32", 0), (2, 3, "fp32", 1 << 20), (3, None, "fp32", 0), (3, None, "bf16", 1 << 20)],
)
def test_bytes_equal_those_of_a_training(
    size: int, blocks: int | None, wire: str, spared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind, to the byte; headers but for those of what ranks agree on between steps. Dense gradients cross
    whole, or by slices where that spares a byte."""
    monkeypatch.setattr(dense_step, "ROUND", spared)
    settings = config(blocks, wire)
    result = simulate_rank_traffic(settings, [size])
    (report,) = result.ranks
    sent = sent_by_training(size, settings)
    for kind, count in vars(report.bytes).items():
        mean = sum(getattr(rank, kind) for rank in sent) / result.batches / size
        assert count == pytest.approx(mean, rel=0.25 if kind == "headers" else 1e-9), kind


def test_weights_of_samples_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def weighted(batch: Batch) -> Batch:
        return replace(batch, extras={"weight": np.ones(batch.num_samples, np.float32)})

    data = Changed(DATA, weighted)
    monkeypatch.setattr(adaptive.studies.simulate.rank_traffic, "open_data", lambda config: data)
    (report,) = simulate_rank_traffic(config(), [2]).ranks
    sent = sent_by_training(2, config(), data)
    assert report.bytes.predictions == sum(rank.predictions for rank in sent) / 6 / 2


def test_rules_that_leave_inputs_out_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected no skip rule that leaves inputs out, got predicted: only a train"):
        simulate_rank_traffic(config(skip={"rule": "predicted"}), [2])
    with pytest.raises(ConfigError, match="expected no skip rule that leaves inputs out, got slipstream: only a train"):
        simulate_rank_traffic(config(policy="slipstream", skip={}), [2])
    assert simulate_rank_traffic(config(skip={"rule": "defer"}), [2]).batches == 6


@pytest.mark.parametrize("blocks", [None, 5])
def test_rows_and_owners_equal_the_slow_twin(blocks: int | None) -> None:
    result = simulate_rank_traffic(config(blocks), [2, 5])
    for forecast in result.ranks:
        size, batches = forecast.ranks, list(DATA.train(64))
        requests = [np.array(asked_rows(batch, list(SIZES), blocks or size, size)) for batch in batches]
        crossing = sum(int(counts.sum() - np.trace(counts)) for counts in requests)
        assert forecast.bytes.vectors == forecast.bytes.gradients
        assert forecast.bytes.vectors == pytest.approx(4 * 4 * crossing / len(batches) / size)
        assert forecast.distinct_rows_per_rank == pytest.approx(
            sum(int(counts.sum()) for counts in requests) / len(batches) / size
        )
        loads = [counts.sum(axis=0) for counts in requests]
        assert forecast.owner_load == pytest.approx(np.mean([load.max() / load.mean() for load in loads]))


def test_savings_by_saturation_and_cost_of_pooling() -> None:
    none, half = (simulate_rank_traffic(config(), [2], saturated=share).ranks[0] for share in (0.0, 0.5))
    assert none.bytes_in_all == none.bytes_saturated == half.bytes_in_all
    saved = half.bytes_in_all - half.bytes_saturated
    assert saved == pytest.approx(half.bytes.gradients / 2)
    samples = DATA.num_train_samples() / 6 / 2  # of a rank and step
    assert half.pooled_table_wise_bytes == pytest.approx(samples * 3 * 4 * 4)
    assert half.pooled_row_wise_bytes == pytest.approx(2 * samples * 3 * 4 * 4)


def test_the_text_says_when_whole_tables_save_bytes() -> None:
    result = simulate_rank_traffic(config(), [2, 4])
    text = rank_traffic_document(result).to_text()
    assert "50.0% saturated" in text and "379 samples" not in text
    assert rank_traffic_document(result).to_markdown().count("\n| ") == 4
    assert ("placement=whole" in text) == any(forecast.whole_tables_would_pay for forecast in result.ranks)
    paying = replace(result, ranks=[replace(result.ranks[0], whole_tables_would_pay=True)])
    assert "placement=whole" in rank_traffic_document(paying).to_text()


def test_invalid_rank_counts_are_refused() -> None:
    for blocks, size, message in (
        (None, 1, "expected 2 to 65,536 ranks, got 1"),
        (2, 3, r"expected 2 to 2 ranks \(ranks.blocks=2\), got 3"),
        (None, 400, "would own none"),
    ):
        with pytest.raises(ConfigError, match=message):
            simulate_rank_traffic(config(blocks), [size])


def test_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        adaptive.studies.simulate.rank_traffic, "open_data", lambda config: by_table(ToyData(num_train=0))
    )
    with pytest.raises(InputError, match="expected training samples, got none"):
        simulate_rank_traffic(config(), [2])


def test_dense_weights_equal_those_of_the_model() -> None:
    model = DLRM(DLRMConfig(**SMALL_DLRM), num_dense=2, num_features=3)
    assert simulate_rank_traffic(config(), [2]).dense_weights == sum(w.numel() for w in model.parameters())
