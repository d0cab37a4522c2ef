"""`profile_step`: the measured time of a training step by stage, for each policy.

Each policy is trained twice on the same few batches. Without look-ahead, stages run one after another and each is
timed. With look-ahead, only the whole step can be timed; the difference is what look-ahead hides. The trainer is that
of a run with all its work: *check* is the test for finite loss and gradients, and quality is recorded. Times are
medians over blocks of a few steps.

`measured_machine` turns such profiles into the rates of this machine, for `simulate`. Rates come from
the halves without look-ahead, where stages do not disturb each other; the overlap comes from both halves. Bytes that
embeddings touch are those of `adaptive.studies.step_model`.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import chain
from typing import Final, NamedTuple

import torch

from adaptive.batch import Batch
from adaptive.config import TrainConfig, parse_size
from adaptive.counters import Counter, Stopwatch
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError
from adaptive.plugins import make_policy
from adaptive.studies.machines import HERE, MachineSpec, Measured
from adaptive.studies.profile import StepProfile
from adaptive.studies.profile.id_trace import OnProgress
from adaptive.studies.step_model import Traffic, hidden_share, vectors_of_tables
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

BLOCK: Final = 10  # steps that are timed together
TRAINING: Final = ("embedding", "mlp_forward", "mlp_backward", "check", "row_update", "dense_update")
NAMES: Final = {"backward": "check", "update": "dense_update"}  # what remains of the trainer's stages
COUNTS: Final = tuple(counter.name.lower() for counter in Counter)
LOOK_AHEAD: Final = ("read", "plan", "move")  # stages of look-ahead
Case = tuple[str, TrainConfig]  # the policy as the user wrote it, and its settings


@dataclass(frozen=True)
class StepLength:
    """Length of a measurement, in steps of each of its two halves."""

    warmup: int = 10
    steps: int = 50


def profile_step(
    cases: Sequence[Case],
    length: StepLength,
    *,
    dataset: Dataset | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    on_progress: OnProgress = lambda steps: None,
) -> list[StepProfile]:
    """Measure the step of every policy.

    Args:
        cases: policies on the same data.
        length: of each measurement.
        dataset: that of the settings, if it is open already: opening may read all files.
        is_stopped: asked before each policy; the remaining policies are left out.
        on_progress: called with the number of trained steps of all policies.

    Raises:
        AdaptiveError: for settings that cannot be trained.
    """
    steps: list[StepProfile] = []
    dataset = open_data(cases[0][1]) if dataset is None else dataset
    each = 2 * (length.warmup + length.steps)
    for number, (label, config) in enumerate(cases):
        if is_stopped():
            break
        steps.append(measure(label, config, length, dataset, on_progress=_after(number * each, on_progress)))
    return steps


def _after(steps: int, on_progress: OnProgress) -> OnProgress:
    return lambda more: on_progress(steps + more)


def measure(
    label: str,
    config: TrainConfig,
    length: StepLength,
    dataset: Dataset,
    *,
    on_progress: OnProgress = lambda steps: None,
) -> StepProfile:
    """Measure one policy: stages without look-ahead, the step with it."""
    components = build(config, dataset, first_batches(config, dataset))
    with components.embeddings as embeddings, torch_settings(config):
        embeddings.calibrate(prepare([embeddings.policy], config, dataset))
        batches = endless(config, dataset)
        serial = _Loop(config, components, on_progress).run(batches, 0, length)
        ahead = _Loop(config, components, _after(length.warmup + length.steps, on_progress))
        overlapped = ahead.run(batches, config.depth, length) if config.depth else serial
        dense_bytes = sum(weight.numel() * weight.element_size() for weight in components.model.parameters())
        training = {name: serial.ms.get(name, 0.0) for name in TRAINING}
        look_ahead = {
            "read": serial.ms.get("read", 0.0),
            "plan": serial.ms.get("plan", 0.0) + serial.ms.get("learn", 0.0),
            "move": serial.ms.get("fetch", 0.0) + serial.ms.get("write_back", 0.0),
        }
        whole, step = serial.ms["whole"], overlapped.ms["whole"]
        other = max(whole - sum(training.values()) - sum(look_ahead.values()), 0.0)
        train_ms, look_ms = sum(training.values()) + other, sum(look_ahead.values())
        lookups = overlapped.counts["lookups"]
        return StepProfile(
            policy=label,
            device=str(embeddings.device),
            misses=embeddings.policy.misses,
            device_rows=embeddings.runtime.view.device_rows,
            device_share=embeddings.runtime.view.device_rows / embeddings.runtime.view.num_rows,
            batch_size=config.batch_size,
            depth=config.depth,
            training_ms=training,
            look_ahead_ms=look_ahead,
            other_ms=other,
            serial_ms=whole,
            step_ms=step,
            wait_ms=overlapped.ms.get("wait", 0.0),
            counts=serial.counts,
            vectors=serial.vectors,
            hit_rate=overlapped.counts["lookup_hits"] / lookups if lookups else None,
            bytes_h2d=overlapped.counts["bytes_h2d"],
            bytes_d2h=overlapped.counts["bytes_d2h"],
            flops_per_sample=model_flops(components.model, dataset.steps),
            dense_bytes=dense_bytes,
            hidden_share=hidden_share(train_ms=train_ms, look_ms=look_ms, hidden_ms=whole - step),
        )


def endless(config: TrainConfig, dataset: Dataset) -> Iterator[Batch]:
    """Repeat the whole batches of the training part forever, so that little data are enough."""
    epochs = iter(int, 1)
    batches = chain.from_iterable(dataset.train(config.batch_size, epoch=0) for _ in epochs)
    first = next(dataset.train(config.batch_size), None)
    if first is None:
        raise InputError(f"data {config.data}: expected training samples to time a step with, got none")
    return (batch for batch in batches if batch.num_samples == first.num_samples)


class _Means(NamedTuple):
    """Milliseconds per step by stage (medians of blocks), and counts per step."""

    ms: dict[str, float]
    counts: dict[str, float]
    vectors: float


class _Stages(Recorder):
    """A recorder whose stages end when the device has finished them.

    Attributes:
        latest: record of the latest interval.
    """

    def __init__(self, embeddings: TieredEmbeddingBag) -> None:
        self.latest: IntervalRecord | None = None
        self.watch = Stopwatch()
        super().__init__(embeddings, [self])

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        with self.watch.stage(NAMES.get(stage, stage)):
            yield
            if self._embeddings.device.type == "cuda":
                torch.cuda.synchronize(self._embeddings.device)

    def write(self, record: Record) -> None:
        assert isinstance(record, IntervalRecord), "a profile evaluates nothing"
        self.latest = record


class StagedTrainer(Trainer):
    """The trainer of a run, with separate times for the embeddings in both passes."""

    def _forward_backward(self, part: Planned) -> tuple[torch.Tensor, torch.Tensor]:
        timed = self.recorder.timed
        with timed("embedding"):
            vectors = vectors_of(self.embeddings, self.model, part)
            tensors = [vectors] if isinstance(vectors, torch.Tensor) else [vectors.single, *vectors.steps]
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        with timed("mlp_forward"):
            if isinstance(vectors, torch.Tensor):
                logits, loss = self._forward(part, leaves[0])
            else:
                logits, loss = self._forward(part, vectors._replace(single=leaves[0], steps=leaves[1:]))
        with timed("mlp_backward"):
            loss.backward()  # type: ignore[no-untyped-call]
            torch.autograd.backward(tensors, [leaf.grad for leaf in leaves])
        return loss.detach(), logits.detach()


class _Loop:
    """Trains batches as a run does, in blocks."""

    def __init__(self, config: TrainConfig, components: Components, on_progress: OnProgress) -> None:
        self._on_progress, self._tables = on_progress, components.tables
        self._stages = _Stages(components.embeddings)
        self._trainer = StagedTrainer(
            components.embeddings,
            components.model,
            components.optimizer,
            recorder=self._stages,
            set_rates=lambda step: set_rates(config, components, step),
        )

    def run(self, batches: Iterator[Batch], depth: int, length: StepLength) -> _Means:
        """Train the warm-up steps, then timed blocks."""
        blocks, counts, vectors = [], dict.fromkeys(COUNTS, 0), 0
        with closing(self._trainer.embeddings.look_ahead(batches, depth=depth)) as coming:
            self._block(coming, length.warmup)
            for first in range(0, length.steps, BLOCK):
                started = self._stages.samples
                blocks.append(self._block(coming, min(BLOCK, length.steps - first)))
                assert self._stages.latest is not None
                by_table = self._stages.latest.tables
                lookups = [by_table[table.name].lookups for table in self._tables]
                vectors += vectors_of_tables(self._tables, self._stages.samples - started, lookups)
                totals = sum_tables(list(by_table.values()))
                counts = {name: number + getattr(totals, name) for name, number in counts.items()}
        names = {name for block in blocks for name in block}
        return _Means(
            {name: statistics.median(block.get(name, 0.0) for block in blocks) for name in sorted(names)},
            {name: number / length.steps for name, number in counts.items()},
            vectors / length.steps,
        )

    def _block(self, coming: Iterator[Planned], steps: int) -> dict[str, float]:
        """Milliseconds per step by stage; ends with a record, as an interval of a run does."""
        stages = self._stages
        stages.watch = Stopwatch()
        started = time.perf_counter()
        for _ in range(steps):
            with stages.timed("wait"):
                planned = next(coming)
            self._trainer.step(planned)
            self._trainer.measure(planned)
            self._on_progress(stages.steps)
        stages.write_interval()
        whole = {"whole": 1e3 * (time.perf_counter() - started), **stages.watch.total_ms()}
        look_ahead = stages.latest.time_ms if stages.latest is not None else {}
        return {**look_ahead, **{name: ms / max(steps, 1) for name, ms in whole.items()}}


def measured_machine(
    policies: Sequence[StepProfile], *, value_bytes: int, row_bytes: int, plan_factor: float
) -> MachineSpec:
    """Return the rates of this machine.

    Args:
        policies: profiles of at least one policy that leaves misses on the host and has no device rows (`hybrid`), and
            one that prefetches them.
        value_bytes, row_bytes: bytes of a row's values, and of a row with its optimizer state.
        plan_factor: time of planning in training over that in a simulation.

    Raises:
        ConfigError: if one of the two kinds is missing.
    """
    served = [step for step in policies if step.misses == "host" and not step.device_rows]
    staged = [step for step in policies if step.misses == "prefetch"]
    _need_both(served=bool(served), staged=bool(staged))
    first = policies[0]
    moving = [step for step in staged if step.look_ahead_ms["move"] > 0 and _moved(step)]
    host = statistics.median(_rate(step, value_bytes, row_bytes) for step in served)
    device = statistics.median(_rate(step, value_bytes, row_bytes) for step in staged)
    move = (
        statistics.median(1e3 * _moved(step) * row_bytes / step.look_ahead_ms["move"] for step in moving)
        if moving
        else host
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


def check_measurable(cases: Sequence[Case]) -> None:
    """Check before any training that these policies would give the rates of a machine.

    Raises:
        ConfigError: if one of the two kinds that `measured_machine` needs is missing.
    """
    policies = [(make_policy(config.policy, config.policy_options), config.tier.device_rows) for _, config in cases]
    _need_both(
        served=any(policy.misses == "host" and _is_zero(policy.device_rows or size) for policy, size in policies),
        staged=any(policy.misses == "prefetch" for policy, _ in policies),
    )


def _is_zero(size: str) -> bool:
    return size != "auto" and parse_size(size, row_bytes=1, num_rows=1) == 0


def _need_both(*, served: bool, staged: bool) -> None:
    if not (served and staged):
        raise ConfigError(
            "--save: expected policies that measure both tiers. Give --policies hybrid and one that prefetches, such "
            "as lfu"
        )


def _dense_ms(step: StepProfile) -> float:
    stages = step.training_ms
    return float(stages["mlp_forward"] + stages["mlp_backward"] + stages["dense_update"] + step.other_ms)


def _moved(step: StepProfile) -> float:
    return step.counts["fetched"] + step.counts["written_back"]


def _rate(step: StepProfile, value_bytes: int, row_bytes: int) -> float:
    """Bytes per second for pooling and updating rows."""
    counts, stages = step.counts, step.training_ms
    traffic = Traffic(counts["lookups"], counts["unique_rows"], step.vectors, value_bytes, row_bytes)
    return traffic.rows_ms(1.0) / float(stages["embedding"] + stages["row_update"])
