"""`profile_step`: where the time of a training step goes, policy by policy, measured by training.

Each policy is trained twice over the same few batches' worth of data: without look-ahead, where one stage runs after
the other and each has its own time, and with it, where only the whole step can be told. What look-ahead hides is the
difference. Times are medians over blocks of a few steps.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import torch

from adaptive.batch import Batch
from adaptive.build import Components, build, first_batches, model_flops, open_data, prepare, set_rates, torch_settings
from adaptive.config import TrainConfig
from adaptive.counters import Counter, Stopwatch
from adaptive.data.dataset import Dataset
from adaptive.embedding import TieredEmbeddingBag
from adaptive.errors import InputError
from adaptive.evaluation import vectors_of
from adaptive.models.dropout import at_step
from adaptive.models.tasks import labels_of, log_losses, tasks_of
from adaptive.planned import Planned

BLOCK: Final = 5  # steps of which one time is taken
TRAINING: Final = ("embedding", "mlp_forward", "mlp_backward", "row_update", "dense_update")
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
    stopped: Callable[[], bool] = lambda: False,
    told: Told = lambda steps: None,
) -> list[dict[str, Any]]:
    """The step of every policy; those not reached when `stopped()` said so are left out.

    Raises:
        AdaptiveError: for settings that cannot be trained.
    """
    found: list[dict[str, Any]] = []
    each = 2 * (length.warmup + length.steps)
    for number, (label, config) in enumerate(cases):
        if stopped():
            break
        found.append({"policy": label, **measure(config, length, told=_after(number * each, told))})
    return found


def _after(steps: int, told: Told) -> Told:
    return lambda more: told(steps + more)


def measure(config: TrainConfig, length: StepLength, *, told: Told = lambda steps: None) -> dict[str, Any]:
    """One policy: stages without look-ahead, the step with it."""
    dataset = open_data(config)
    components = build(config, dataset, first_batches(config, dataset))
    with components.embeddings as embeddings, torch_settings(config):
        embeddings.calibrate(prepare([embeddings.policy], config, dataset))
        batches = endless(config, dataset)
        serial = _Loop(config, components, told).run(batches, 0, length)
        ahead = _Loop(config, components, lambda steps: told(length.warmup + length.steps + steps))
        together = ahead.run(batches, config.depth, length) if config.depth else serial
        return {
            **_facts(config, embeddings, serial, together),
            "flops_per_sample": model_flops(components.model, dataset.steps),
            "dense_bytes": sum(weight.numel() * weight.element_size() for weight in components.model.parameters()),
        }


def endless(config: TrainConfig, dataset: Dataset) -> Iterator[Batch]:
    """Whole batches of the training part, again and again: a few steps of little data are wanted, too."""
    epochs = iter(int, 1)
    batches = chain.from_iterable(dataset.train(config.batch_size, epoch=0) for _ in epochs)
    first = next(dataset.train(config.batch_size), None)
    if first is None:
        raise InputError(f"data {config.data}: no training samples to time a step with")
    return (batch for batch in batches if batch.num_samples == first.num_samples)


class _Loop:
    """Trains batches as `adaptive.trainer` does, with the embeddings' part of the passes timed apart."""

    def __init__(self, config: TrainConfig, components: Components, told: Told) -> None:
        self._config, self._components, self._told = config, components, told
        self._watch = Stopwatch()
        self._tasks = tasks_of(components.model)
        self._trained = 0

    def run(self, batches: Iterator[Batch], depth: int, length: StepLength) -> dict[str, Any]:
        """Milliseconds a step by stage, medians of blocks, and counts a step."""
        embeddings = self._components.embeddings
        blocks: list[dict[str, float]] = []
        counts, steps = None, 0
        with closing(embeddings.look_ahead(batches, depth=depth)) as coming:
            for _ in range(length.warmup):
                self._step(coming)
            embeddings.take_statistics()
            while steps < length.steps:
                size = min(BLOCK, length.steps - steps)
                self._watch, started = Stopwatch(), time.perf_counter()
                for _ in range(size):
                    self._step(coming)
                seconds = time.perf_counter() - started
                found = embeddings.take_statistics()
                counts = found.counts.sum(0) if counts is None else counts + found.counts.sum(0)
                total = {**found.times_ms, **self._watch.total_ms(), "whole": 1e3 * seconds}
                blocks.append({name: ms / size for name, ms in total.items()})
                steps += size
        assert counts is not None
        names = {name for block in blocks for name in block}
        return {
            "ms": {name: statistics.median(block.get(name, 0.0) for block in blocks) for name in sorted(names)},
            "counts": {counter.name.lower(): int(counts[counter]) / steps for counter in Counter},
        }

    def _step(self, coming: Iterator[Planned]) -> None:
        embeddings, model = self._components.embeddings, self._components.model
        with self._stage("wait"):
            planned = next(coming)
        self._components.optimizer.zero_grad()
        for part in planned.parts():
            with self._stage("embedding"):
                pooled = vectors_of(embeddings, model, part)
                leaf = pooled.detach().requires_grad_()
            with self._stage("mlp_forward"):
                whole = part.whole.num_samples
                at_step(model, self._trained, first=part.first, samples=part.num_samples, whole=whole)
                loss = log_losses(model(part.dense, leaf), self._labels(part), self._tasks, samples=whole)
            with self._stage("mlp_backward"):
                loss.backward()  # type: ignore[no-untyped-call]
                pooled.backward(leaf.grad)  # type: ignore[no-untyped-call]
        set_rates(self._config, self._components, self._trained)
        with self._stage("dense_update"):
            self._components.optimizer.step()
        with self._stage("row_update"):
            embeddings.step()
        self._trained += 1
        self._told(self._trained)

    def _labels(self, part: Planned) -> torch.Tensor:
        if self._tasks is None:
            return part.labels
        return torch.from_numpy(labels_of(part.batch, self._tasks)).to(part.labels.device)

    def _stage(self, name: str) -> "_Synchronized":
        return _Synchronized(self._watch, name, self._components.embeddings.device)


class _Synchronized:
    """A stage of the stopwatch that ends when the device has done what was asked of it."""

    def __init__(self, watch: Stopwatch, name: str, device: torch.device) -> None:
        self._stage, self._device = watch.stage(name), device

    def __enter__(self) -> None:
        self._stage.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._stage.__exit__(*error)


def _facts(
    config: TrainConfig, embeddings: TieredEmbeddingBag, serial: dict[str, Any], together: dict[str, Any]
) -> dict[str, Any]:
    ms = serial["ms"]
    stages = {name: ms.get(name, 0.0) for name in TRAINING}
    beside = {
        "read": ms.get("read", 0.0),
        "plan": ms.get("plan", 0.0) + ms.get("learn", 0.0),
        "move": ms.get("fetch", 0.0) + ms.get("write_back", 0.0),
    }
    counts = together["counts"]
    return {
        "device": str(embeddings.device),
        "misses": embeddings.policy.misses,
        "device_rows": embeddings.view.device_rows,
        "device_share": embeddings.view.device_rows / embeddings.view.num_rows,
        "batch_size": config.batch_size,
        "depth": config.depth,
        "training_ms": stages,
        "beside_ms": beside,
        "other_ms": max(ms["whole"] - sum(stages.values()) - sum(beside.values()), 0.0),
        "serial_ms": ms["whole"],
        "step_ms": together["ms"]["whole"],
        "wait_ms": together["ms"].get("wait", 0.0),
        "counts": serial["counts"],
        "hit_rate": counts["lookup_hits"] / counts["lookups"] if counts["lookups"] else None,
        "bytes_h2d": counts["bytes_h2d"],
        "bytes_d2h": counts["bytes_d2h"],
    }
