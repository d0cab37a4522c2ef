"""Data read per second under skip rules that drop samples: whole training steps in long turns, on the built-in stream.

    python -m benchmarks.bench_rules [--quick] [--set mlps=large positive_rate=0.03 read=made]

The first way is the control. All train the same samples with the default settings of `adaptive-train run`. A turn reads
so many batches in one look-ahead, from an empty one until the last batch is trained, so samples that fill no batch at
its end are dropped. `read=drawn`: the look-ahead draws the samples, which takes 0.6 us each of a core; `made`: they are
drawn before the turn.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.policy import inputs_of
from adaptive.training.components import build, open_data
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.trainer import Trainer
from benchmarks import harness
from benchmarks.harness import Report, median_ms, paired

MLPS = {"small": {}, "large": {"embedding_dim": 16, "bottom_mlp": "512-256-64-16", "top_mlp": "512-256-1"}}


@dataclass(frozen=True)
class Settings:
    ways: tuple[str, ...] = ("lfu", "lfu+skip=predicted", "lfu+skip=defer", "slipstream")  # policies, with a rule
    mlps: str = "small"  # those of the default model; large: RMC2's
    positive_rate: float = 0.25
    lookups: int = 1  # of a bag
    read: str = "drawn"  # or made
    batch: int = 2048
    warm_up: int = 160  # batches before the first turn; rules skip nothing in the first 100
    batches: int = 72  # of a turn
    rounds: int = 9
    plan_threads: str = "auto"


SETTINGS = {
    "full": Settings(),
    "quick": Settings(batches=40, rounds=4, warm_up=130),
    "smoke": Settings(ways=("lru", "random_drop"), batch=64, warm_up=3, batches=8, rounds=2),
}


class Way:
    """A policy in training, in an epoch as long as all turns."""

    def __init__(self, name: str, settings: Settings) -> None:
        policy, _, rule = name.partition("+skip=")
        samples = settings.batch * (settings.warm_up + settings.rounds * settings.batches)  # how rare rows are depends
        stream: dict[str, object] = {
            "num_train": samples, "num_eval": 1,
            "positive_rate": settings.positive_rate, "lookups": settings.lookups,
        }  # fmt: skip
        values: dict[str, object] = {
            "policy": policy, "batch_size": settings.batch, "model_options": MLPS[settings.mlps],
            "data_options": {"synthetic": stream}, "tier": {"plan_threads": settings.plan_threads},
        }  # fmt: skip
        config = TrainConfig.model_validate({**values, "skip": {"rule": rule}} if rule else values)
        torch.manual_seed(0)
        data = open_data(config)
        self._made, self._settings = build(config, data), settings
        recorder = Recorder(self._made.embeddings, log_every=10**9)  # an interval for each turn
        self._trainer = Trainer(self._made.embeddings, self._made.model, self._made.optimizer, recorder=recorder)
        self._stream = data.train(settings.batch)
        self.train(settings.warm_up)
        self._before = inputs_of(self._made.embeddings.policy.rule)

    def train(self, count: int) -> tuple[float, float]:
        """Train what is kept of `count` batches; return seconds and processor seconds."""
        batches: Iterator[Batch] = islice(self._stream, count)
        if self._settings.read == "made":
            batches = iter(list(batches))
        start, cpu_start = time.perf_counter(), time.process_time()
        self._trainer.train(batches)
        return time.perf_counter() - start, time.process_time() - cpu_start

    @property
    def skipped(self) -> float:
        """Share of the samples dropped since the warm-up."""
        seen, dropped = inputs_of(self._made.embeddings.policy.rule)
        return (dropped - self._before[1]) / max(seen - self._before[0], 1)

    def close(self) -> None:
        self._made.embeddings.close()


def run(settings: Settings) -> Report:
    report, cpu_times = Report(), dict[str, list[float]]()
    ways = {name: Way(name, settings) for name in settings.ways}

    def turn(name: str) -> float:
        seconds, cpu_seconds = ways[name].train(settings.batches)
        cpu_times.setdefault(name, []).append(cpu_seconds)
        return seconds

    cases: Any = {name: lambda name=name: turn(name) for name in ways}
    times = harness.take_turns(cases, rounds=settings.rounds, warm_up=0)
    control = settings.ways[0]
    table = report.table(
        f"skip rules: {settings.mlps} MLPs, {settings.positive_rate:.1%} positive, {settings.lookups} a bag, "
        f"batches of {settings.batch} {settings.read}, {settings.rounds} turns of {settings.batches}",
        "way", "ms a batch read", f"time over {control}", "processor time", "data per second", "skipped",
    )  # fmt: skip
    for name, way in ways.items():
        over = paired(times[name], times[control])
        cpu = paired(cpu_times[name], cpu_times[control])
        table.add(name, median_ms(times[name]) / settings.batches, over, cpu, 1 / over, f"{way.skipped:.1%}")
        report.ratios[f"rule_time_{name}_vs_{control}"] = over
        way.close()
    gc.collect()
    return report


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
