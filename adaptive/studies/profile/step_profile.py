"""`profile_step`: where the time of a training step goes, policy by policy, measured by training.

Each policy is trained twice over the same few batches' worth of data: without look-ahead, where one stage runs after
the other and each has its own time, and with it, where only the whole step can be told. What look-ahead hides is the
difference. The trainer is that of a run, with all it does in a step: *check* is whether loss and gradients are finite,
and quality so far is recorded. Times are medians over blocks of a few steps.

`measured_rates`: what profiling a step found out about this machine, as `simulate` and `placements` take it.

Rates come from the halves without look-ahead, in which stages do not disturb each other; what look-ahead hides from
both halves. Bytes that embeddings touch are those of `adaptive.studies.step_model`.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import date
from itertools import chain
from typing import Any, Final, NamedTuple

import torch

from adaptive.batch import Batch
from adaptive.config import TrainConfig, parse_size
from adaptive.counters import Counter, Stopwatch
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError
from adaptive.models.dense.layers import at_step
from adaptive.models.tasks import log_losses
from adaptive.plugins import make_policy
from adaptive.studies.machines import HERE, MachineSpec, Measured
from adaptive.studies.profile import StepProfile
from adaptive.studies.step_model import Traffic, hidden_share
from adaptive.system import usable_cores
from adaptive.training.components import (
    Components,
    build,
    first_batches,
    model_flops,
    open_data,
    prepare,
    set_rates,
    torch_settings,
)
from adaptive.training.evaluation import vectors_of
from adaptive.training.telemetry.record import IntervalRecord, Record, sum_tables
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.trainer import Trainer

BLOCK: Final = 10  # steps of which one time is taken
TRAINING: Final = ("embedding", "mlp_forward", "mlp_backward", "check", "row_update", "dense_update")
NAMES: Final = {"backward": "check", "update": "dense_update"}  # the trainer's stages, of which only that is left here
COUNTS: Final = tuple(counter.name.lower() for counter in Counter)
BESIDE: Final = ("read", "plan", "move")  # by look-ahead, if there is any
Case = tuple[str, TrainConfig]  # the policy as written, and the settings with it
Told = Callable[[int], None]  # how many steps have been trained


@dataclass(frozen=True)
class StepLength:
    """How long a measurement is, in steps of each of its two halves."""

    warmup: int = 10
    steps: int = 50


def profile_step(
    cases: Sequence[Case],
    length: StepLength,
    *,
    dataset: Dataset | None = None,
    stopped: Callable[[], bool] = lambda: False,
    told: Told = lambda steps: None,
) -> list[StepProfile]:
    """The step of every policy; those not reached when `stopped()` said so are left out.

    Args:
        cases: of the same data.
        length: of each.
        dataset: that of the settings, if it is open: opening may read all files.
        stopped: asked before each policy.
        told: how many steps of all policies have been trained.

    Raises:
        AdaptiveError: for settings that cannot be trained.
    """
    steps: list[StepProfile] = []
    dataset = open_data(cases[0][1]) if dataset is None else dataset
    each = 2 * (length.warmup + length.steps)
    for number, (label, config) in enumerate(cases):
        if stopped():
            break
        steps.append(measure(label, config, length, dataset, told=_after(number * each, told)))
    return steps


def _after(steps: int, told: Told) -> Told:
    return lambda more: told(steps + more)


def measure(
    label: str, config: TrainConfig, length: StepLength, dataset: Dataset, *, told: Told = lambda steps: None
) -> StepProfile:
    """One policy, as written: stages without look-ahead, the step with it. `dataset`: that of the settings."""
    components = build(config, dataset, first_batches(config, dataset))
    with components.embeddings as embeddings, torch_settings(config):
        embeddings.calibrate(prepare([embeddings.policy], config, dataset))
        batches = endless(config, dataset)
        serial = _Loop(config, components, told).run(batches, 0, length)
        ahead = _Loop(config, components, lambda steps: told(length.warmup + length.steps + steps))
        together = ahead.run(batches, config.depth, length) if config.depth else serial
        dense_bytes = sum(weight.numel() * weight.element_size() for weight in components.model.parameters())
        training = {name: serial.ms.get(name, 0.0) for name in TRAINING}
        look_ahead = {
            "read": serial.ms.get("read", 0.0),
            "plan": serial.ms.get("plan", 0.0) + serial.ms.get("learn", 0.0),
            "move": serial.ms.get("fetch", 0.0) + serial.ms.get("write_back", 0.0),
        }
        whole, step = serial.ms["whole"], together.ms["whole"]
        other = max(whole - sum(training.values()) - sum(look_ahead.values()), 0.0)
        train_ms, look_ms = sum(training.values()) + other, sum(look_ahead.values())
        lookups = together.counts["lookups"]
        return StepProfile(
            policy=label,
            device=str(embeddings.device),
            misses=embeddings.policy.misses,
            device_rows=embeddings.runtime.view.device_rows,
            device_share=embeddings.runtime.view.device_rows / embeddings.runtime.view.num_rows,
            batch_size=config.batch_size,
            depth=config.depth,
            training_ms=training,
            beside_ms=look_ahead,
            other_ms=other,
            serial_ms=whole,
            step_ms=step,
            wait_ms=together.ms.get("wait", 0.0),
            counts=serial.counts,
            hit_rate=together.counts["lookup_hits"] / lookups if lookups else None,
            bytes_h2d=together.counts["bytes_h2d"],
            bytes_d2h=together.counts["bytes_d2h"],
            flops_per_sample=model_flops(components.model, dataset.steps),
            dense_bytes=dense_bytes,
            hidden_share=hidden_share(train_ms=train_ms, look_ms=look_ms, hidden_ms=whole - step),
        )


def endless(config: TrainConfig, dataset: Dataset) -> Iterator[Batch]:
    """Whole batches of the training part, again and again: a few steps of little data are wanted, too."""
    epochs = iter(int, 1)
    batches = chain.from_iterable(dataset.train(config.batch_size, epoch=0) for _ in epochs)
    first = next(dataset.train(config.batch_size), None)
    if first is None:
        raise InputError(f"data {config.data}: no training samples to time a step with")
    return (batch for batch in batches if batch.num_samples == first.num_samples)


class _Means(NamedTuple):
    """Milliseconds of a step by stage, medians of blocks, and counts of a step."""

    ms: dict[str, float]
    counts: dict[str, float]


class _Stages(Recorder):
    """A recorder whose stages are told apart as a profile wants them, and end when the device has done them.

    Attributes:
        latest: the record of the latest interval.
    """

    def __init__(self, embeddings: TieredEmbeddingBag) -> None:
        self.latest: IntervalRecord | None = None
        self.watch = Stopwatch()
        super().__init__(embeddings, [self])

    def timed(self, stage: str) -> AbstractContextManager[None]:
        return _Synchronized(self.watch, NAMES.get(stage, stage), self._embeddings.device)

    def write(self, record: Record) -> None:
        assert isinstance(record, IntervalRecord), "nothing is evaluated here"
        self.latest = record


class _StagedTrainer(Trainer):
    """The trainer that runs have, with the embeddings' part of the passes timed apart."""

    def _forward_backward(self, part: Planned) -> tuple[torch.Tensor, torch.Tensor]:
        timed, samples = self.recorder.timed, part.num_samples_of_all
        with timed("embedding"):
            pooled = vectors_of(self.embeddings, self.model, part)
            leaf = pooled.detach().requires_grad_()
        with timed("mlp_forward"):
            at_step(self.model, self.recorder.steps, first=part.first, samples=part.num_samples, whole=samples)
            logits = self.model(part.dense, leaf)
            loss = log_losses(logits, self._labels(part), self._tasks, samples=samples)
        with timed("mlp_backward"):
            loss.backward()  # type: ignore[no-untyped-call]
            pooled.backward(leaf.grad)  # type: ignore[no-untyped-call]
        return loss.detach(), logits.detach()


class _Loop:
    """Trains batches as a run does, in blocks."""

    def __init__(self, config: TrainConfig, components: Components, told: Told) -> None:
        self._told = told
        self._stages = _Stages(components.embeddings)
        self._trainer = _StagedTrainer(
            components.embeddings,
            components.model,
            components.optimizer,
            recorder=self._stages,
            set_rates=lambda step: set_rates(config, components, step),
        )

    def run(self, batches: Iterator[Batch], depth: int, length: StepLength) -> _Means:
        """Of blocks; the first steps only warm up."""
        blocks, counts = [], dict.fromkeys(COUNTS, 0)
        with closing(self._trainer.embeddings.look_ahead(batches, depth=depth)) as coming:
            self._block(coming, length.warmup)
            for first in range(0, length.steps, BLOCK):
                blocks.append(self._block(coming, min(BLOCK, length.steps - first)))
                assert self._stages.latest is not None
                totals = sum_tables(list(self._stages.latest.tables.values()))
                counts = {name: number + getattr(totals, name) for name, number in counts.items()}
        names = {name for block in blocks for name in block}
        return _Means(
            {name: statistics.median(block.get(name, 0.0) for block in blocks) for name in sorted(names)},
            {name: number / length.steps for name, number in counts.items()},
        )

    def _block(self, coming: Iterator[Planned], steps: int) -> dict[str, float]:
        """Milliseconds a step by stage. It ends with a record, as every so many steps of a run do."""
        stages = self._stages
        stages.watch = Stopwatch()
        started = time.perf_counter()
        for _ in range(steps):
            with stages.timed("wait"):
                planned = next(coming)
            self._trainer.step(planned)
            self._trainer.measure(planned)
            self._told(stages.steps)
        stages.write_interval()
        whole = {"whole": 1e3 * (time.perf_counter() - started), **stages.watch.total_ms()}
        beside = stages.latest.time_ms if stages.latest is not None else {}
        return {**beside, **{name: ms / max(steps, 1) for name, ms in whole.items()}}


class _Synchronized(AbstractContextManager[None]):
    """A stage of the stopwatch that ends when the device has done what was asked of it."""

    def __init__(self, watch: Stopwatch, name: str, device: torch.device) -> None:
        self._stage, self._device = watch.stage(name), device

    def __enter__(self) -> None:
        self._stage.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._stage.__exit__(*error)


def measured_machine(
    policies: Sequence[StepProfile], *, value_bytes: int, row_bytes: int, features: int, plan_factor: float
) -> MachineSpec:
    """The machine file.

    Args:
        policies: from `profile_step`, at least one policy that leaves misses on the host and has nothing on the
            device (`hybrid`), and one that fetches them.
        value_bytes, row_bytes: of a row's values, and with its optimizer state.
        features: of a sample, each of which gives one vector.
        plan_factor: planning in training over planning in a simulation.

    Raises:
        ConfigError: if one of the two kinds is missing.
    """
    served = [one for one in policies if one.misses == "host" and not one.device_rows]
    staged = [one for one in policies if one.misses == "prefetch"]
    _need_both(served=bool(served), staged=bool(staged))
    first = policies[0]
    moving = [one for one in staged if one.beside_ms["move"] > 0 and _moved(one)]
    host = statistics.median(_rate(one, value_bytes, row_bytes, features) for one in served)
    device = statistics.median(_rate(one, value_bytes, row_bytes, features) for one in staged)
    move = (
        statistics.median(1e3 * _moved(one) * row_bytes / one.beside_ms["move"] for one in moving) if moving else host
    )
    return MachineSpec(
        name=HERE,
        source="measured by adaptive-train profile",
        measured=Measured(
            device=device,
            host=host,
            move=move,
            dense_ms=statistics.median(map(_dense_ms, policies)),
            flops_per_sample=first.flops_per_sample,
            batch_size=first.batch_size,
            overlap_staged=statistics.median(step.hidden_share for step in moving or staged),
            overlap_host=statistics.median(step.hidden_share for step in served),
            plan_factor=plan_factor,
            vectors_cross=first.device != "cpu",
            depth=first.depth,
            when=date.today().isoformat(),
            on=f"{first.device}, {usable_cores()} cores, torch {torch.__version__}, {platform.processor() or 'CPU'}",
        ),
    )


def check_measurable(cases: Sequence[tuple[str, TrainConfig]]) -> None:
    """Whether trainings of these policies, as written and with their settings, would give the rates of a machine: told
    before they begin.

    Raises:
        ConfigError: if one of the two kinds that `measured_machine` needs is missing.
    """
    policies = [(make_policy(config.policy, config.policy_options), config.tier.device_rows) for _, config in cases]
    _need_both(
        served=any(one.misses == "host" and _is_nothing(one.device_rows or rows) for one, rows in policies),
        staged=any(one.misses == "prefetch" for one, _ in policies),
    )


def _is_nothing(size: str) -> bool:
    return size != "auto" and parse_size(size, row_bytes=1, num_rows=1) == 0


def _need_both(*, served: bool, staged: bool) -> None:
    if not (served and staged):
        raise ConfigError(
            "--save needs rates of both tiers: give --policies at least hybrid and one that fetches rows, such as lfu"
        )


def _dense_ms(one: StepProfile) -> float:
    stages = one.training_ms
    return float(stages["mlp_forward"] + stages["mlp_backward"] + stages["dense_update"] + one.other_ms)


def _moved(one: StepProfile) -> float:
    return one.counts["fetched"] + one.counts["written_back"]


def _rate(one: StepProfile, value_bytes: int, row_bytes: int, features: int) -> float:
    """Bytes per second of pooling and updating rows."""
    counts, stages = one.counts, one.training_ms
    traffic = Traffic(counts["lookups"], counts["unique_rows"], features * one.batch_size, value_bytes, row_bytes)
    return traffic.rows_ms(1.0) / float(stages["embedding"] + stages["row_update"])
