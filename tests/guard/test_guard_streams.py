"""The budget is held: on the built-in stream, constant and drifting, by policies that break it without a guard."""

import statistics
from pathlib import Path
from typing import Any

import pytest
from toy_runs import nothing_is_left_behind  # noqa: F401 (fixture)

from adaptive.config import TrainConfig
from adaptive.data.synthetic.config import SyntheticConfig
from adaptive.data.synthetic.stream import Synthetic
from adaptive.runs import train_run, training

BUDGET = 0.0005
MODEL = {"embedding_dim": 8, "bottom_mlp": (32, 8), "top_mlp": (1,)}
PLAIN: dict[str, Any] = {"policy": "lfu"}
DEFER: dict[str, Any] = {"policy": "slipstream"}
FREEZE: dict[str, Any] = {
    "policy": "slipstream",
    "policy_options": {"skip": "updates", "threshold": 1.0, "probe_every": 0},
}
SOME: dict[str, Any] = {"policy": "slipstream", "policy_options": {"skip": "updates", "threshold": 0.05}}
INPUTS: dict[str, Any] = {
    "policy": "slipstream",
    "policy_options": {"skip": "inputs", "threshold": 0.3, "drop_at": 0.75},
}
DROPPING = {"freeze": FREEZE, "some": SOME, "inputs": INPUTS}


class Setting:
    """Runs on one stream, each with the same data."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 0, **stream: Any) -> None:
        self.out, self.seed = out, seed
        self.plain: float | None = None  # AUC of skipping nothing
        self.latest: dict[str, Any] = {}
        self.data = Synthetic(SyntheticConfig(seed=seed, **stream))
        monkeypatch.setattr(training, "open_data", lambda *_: self.data)

    def train(self, guard: dict[str, Any] | None, **changed: Any) -> dict[str, Any]:
        given = {
            "model_options": MODEL,
            "batch_size": 512,
            "log_every": 100,
            "tensorboard": False,
            "save": False,
            "seed": self.seed,
            "tier": {"device_rows": "100%"},
            "optimizer": {"lr": 0.1},
            "guard": guard,
            "out": str(self.out),
        }
        return train_run(TrainConfig.model_validate(given | changed), overwrite=True)

    def cost(self, guard: dict[str, Any] | None, **changed: Any) -> float:
        """How much lower the AUC is than that of skipping nothing."""
        if self.plain is None:
            self.plain = self.train(None, **PLAIN)["auc"]
        self.latest = self.train(guard, **changed)
        return float(self.plain - self.latest["auc"])


@pytest.mark.parametrize("drift_at", [None, 0.6])
def test_a_short_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drift_at: float | None) -> None:
    """Batches of 512, 120 of them; the drift comes after the first check."""
    stream = Setting(tmp_path, monkeypatch, rows=100_000, num_train=61_440, num_eval=20_000, drift_at=drift_at)
    skip = {"interval": 8, "min_accesses": 8, "lag": 4}
    freeze = {**FREEZE, "policy_options": {**FREEZE["policy_options"], "warmup": 0, "min_accesses": 4}}
    guard = {"budget": BUDGET, "warmup": 16, "steps": 32, "holdout": 10_000}
    assert drift_at is None or stream.cost(None, skip=skip, **freeze) > 10 * BUDGET
    assert stream.cost(guard, skip=skip, **freeze) == 0


GUARD = {"budget": BUDGET, "warmup": 300, "steps": 300, "every": 1000}
LONG: dict[str, Any] = {"num_train": 1_024_000, "num_eval": 200_000}  # 2,000 batches


@pytest.mark.slow
@pytest.mark.parametrize("drift_at", [None, 0.5])
@pytest.mark.parametrize("setting", ["easy", "hard"])
def test_long_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, drift_at: float | None) -> None:
    """What is dropped costs no more than the budget, nor what is deferred, in the mean of three streams.

    The model has a single layer on top. With three, training itself is too rough a scale: on the hard stream with a
    drift two runs of 3,000 batches that skip nothing, and whose learning rates differ by 1 in 10^5, end 0.002 of AUC
    apart; with one, 0.00001.
    """
    deferred = []
    for seed in range(3):
        stream = Setting(tmp_path, monkeypatch, seed=seed, setting=setting, drift_at=drift_at, **LONG)
        deferred.append(stream.cost(GUARD, **DEFER))
        assert stream.latest["skipped_update_share"] > (0.35 if drift_at is None else 0.2)
        if not seed:
            assert stream.cost(None, **FREEZE) > 10 * BUDGET
            costs = {name: stream.cost(GUARD, **policy) for name, policy in DROPPING.items()}
    assert {name: cost for name, cost in costs.items() if cost > BUDGET} == {}
    assert statistics.fmean(deferred) <= BUDGET, deferred
