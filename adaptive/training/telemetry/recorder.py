"""Steps become records: every `log_every` steps one `IntervalRecord`, handed to the file, TensorBoard, the terminal."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.counters import Stopwatch
from adaptive.embeddings.engine.statistics import Statistics
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.tasks import Tasks
from adaptive.training.evaluation import Evaluation, PerLabel
from adaptive.training.quality import StreamingAUC, StreamingLogLoss
from adaptive.training.telemetry.jsonl import from_json, to_json
from adaptive.training.telemetry.record import (
    IN_PARTS,
    STAGES,
    WAITED,
    EvalRecord,
    Histogram,
    IntervalRecord,
    Record,
    RunTotals,
    TableCounts,
    sum_tables,
    table_counts,
)

AUC_COUNTS: Final = "auc_counts"


class Sink(Protocol):
    """Where records go: a file, TensorBoard, the terminal."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """Turns what a training loop tells it into records for its sinks, which it closes.

    Attributes:
        steps, samples: trained so far.
        loss: mean of the latest batch, predicted before it was learnt.
        totals: of all intervals written.
        each: of several labels each, as the next two of the first.
        auc (and accuracy), log_loss: of the predictions made in training, each before its batch was learnt.
        evaluations: their records so far.
        sinks: where records go.
    """

    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        sinks: Sequence[Sink] = (),
        *,
        log_every: int = 20,
        tasks: Tasks | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            embeddings: whose statistics are taken at the end of each interval.
            sinks: closed by `close`.
            log_every: steps of an interval.
            tasks: labels of the model, if it has several.
            now: seconds; tests give their own clock.
        """
        self.steps = 0
        self.samples = 0
        self.loss = math.nan
        self.totals = RunTotals()
        self.auc, self.log_loss, self.each = StreamingAUC(), StreamingLogLoss(), PerLabel(tasks)
        self.evaluations: list[EvalRecord] = []
        self.sinks = sinks
        self._embeddings, self._log_every, self._now = embeddings, log_every, now
        embeddings.statistics.policy_numbers()  # a wrong name is told now, not at the end of the first interval
        self.start()

    def start(self, at: float | None = None) -> None:
        """Begin an interval, now or at the given second. Time before that counts for no step."""
        self._losses: list[float] = []
        self._logits: list[Tensor] = []
        self._labels: list[NDArray[np.float32]] = []
        self._stopwatch = Stopwatch(self._now)
        self._started = self._now() if at is None else at

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Add the time spent inside to a stage of the training thread. On a GPU: the time to launch the work."""
        return self._stopwatch.stage(stage)

    def step(self, loss: float, logits: Tensor, labels: NDArray[np.float32]) -> None:
        """Record a trained batch: mean loss, logits (B,) and labels (B,), of several labels (B, T)."""
        self.steps += 1
        self.samples += len(labels)
        self.loss = loss
        self._losses.append(self.loss)
        self._logits.append(logits.detach())
        self._labels.append(labels)

    @property
    def is_due(self) -> bool:
        """The interval is full. Write it when the next batch has come: then the last one counts."""
        return len(self._losses) >= self._log_every

    def write_if_due(self) -> None:
        """Write a record if the interval is full."""
        if self.is_due:
            self.write_interval()

    def write_interval(self) -> None:
        """Write a record of the steps since the last one; nothing if there were none."""
        if not self._losses:
            return
        if self._embeddings.device.type == "cuda":
            torch.cuda.synchronize(self._embeddings.device)  # work launched is not work done
        ended = self._now()
        logits, labels = torch.cat(self._logits).float().cpu().numpy(), np.concatenate(self._labels)
        if logits.ndim > 1:
            self.each.update(logits, labels)
            logits, labels = logits[:, 0], labels[:, 0]
        self.auc.update(logits, labels)
        self.log_loss.update(logits, labels)
        record = self._interval(self._embeddings.statistics.take(), ended - self._started, len(labels))
        self.totals.add(record)
        self.write(record)
        self.start(ended)  # recording is part of the next interval

    def write_evaluation(self, found: Evaluation) -> None:
        """Record an evaluation. Its time is no interval's."""
        self.evaluations.append(evaluation_record(found, self.steps))
        self.write(self.evaluations[-1])
        self.start()

    def state(self) -> dict[str, Any]:
        """JSON values from which, with `auc.counts`, `restore` goes on. Call it between two intervals."""
        assert not self._losses
        so_far = self._record(
            loss=self.loss, samples_per_s=self.totals.samples_per_s or 0.0, time_ms=self.totals.time_ms,
            tables=self.totals.tables, policy=self.totals.policy, ranks=self.totals.ranks,
        )  # fmt: skip
        each = {name: vars(losses).copy() for name, (_, losses) in self.each.streams.items()}
        return {
            "so_far": to_json(so_far),
            "first": self.totals.first,
            "ranks_steps": self.totals.ranks_steps,
            "log_loss": vars(self.log_loss).copy(),
            **({"each": each} if each else {}),
        }

    def auc_counts(self) -> dict[str, NDArray[np.int64]]:
        """Arrays by name, which go with `state`."""
        each = {f"{AUC_COUNTS}.{name}": auc.counts for name, (auc, _) in self.each.streams.items()}
        return {AUC_COUNTS: self.auc.counts, **each}

    def restore(self, state: Mapping[str, Any], auc_counts: Mapping[str, NDArray[np.int64]]) -> None:
        """Go on from what `state` and `auc_counts` gave.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: if it is none.
        """
        so_far, losses = from_json(state["so_far"]), StreamingLogLoss()
        if not isinstance(so_far, IntervalRecord):
            raise ValueError("the record of all steps so far must be an interval")
        for name in vars(losses):
            setattr(losses, name, state["log_loss"][name])
        for name in self.each.streams:
            auc, losses_of_it = StreamingAUC(auc_counts[f"{AUC_COUNTS}.{name}"]), StreamingLogLoss()
            for field_name in vars(losses_of_it):
                setattr(losses_of_it, field_name, state["each"][name][field_name])
            self.each.streams[name] = auc, losses_of_it
        self.auc, self.log_loss, self.totals = StreamingAUC(auc_counts[AUC_COUNTS]), losses, RunTotals()
        self.steps, self.samples, self.loss = so_far.step, so_far.samples, so_far.loss
        self.totals.add(so_far)
        samples, seconds = state["first"] or (0, 0.0)
        self.totals.first = int(samples), float(seconds)
        self.totals.ranks_steps = int(state["ranks_steps"])

    def close(self) -> None:
        """Close every sink, whatever one of them raises."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.close)

    def _interval(self, found: Statistics, seconds: float, num_samples: int) -> IntervalRecord:
        tables = table_counts(
            self._embeddings.table_names,
            found.counts,
            resident_rows=found.resident_rows,
            watched_rows=found.watched_rows,
            judged_rows=found.judged_rows,
            saturated_rows=found.saturated_rows,
        )
        return self._record(
            loss=float(np.mean(self._losses)),
            samples_per_s=num_samples / seconds if seconds > 0 else 0.0,
            time_ms=self._time_ms(found, seconds),
            tables=tables,
            update_norms=_update_norms(found),
            device_rows=found.device_rows,
            ranks=[asdict(one) for one in found.ranks],
            policy=_policy_numbers(found),
        )

    def _record(self, *, tables: dict[str, TableCounts], **facts: Any) -> IntervalRecord:
        whole = sum_tables(list(tables.values()))
        return IntervalRecord(
            step=self.steps,
            samples=self.samples,
            auc=self.auc.value(),
            accuracy=self.auc.accuracy(),
            log_loss=self.log_loss.value(),
            labels={name: asdict(quality) for name, quality in self.each.quality().items()},
            hit_rate=whole.hit_rate,
            row_hit_rate=whole.row_hit_rate,
            tables=tables,
            **facts,
        )

    def _time_ms(self, found: Statistics, seconds: float) -> dict[str, float]:
        """Mean per step. The training thread's stages and `other` add up to the step; the rest runs beside it."""
        own = self._stopwatch.total_ms()
        total = {**found.times_ms, **own}
        total["other"] = max(1000 * seconds - sum(own.values()), 0.0)
        return {stage: total[stage] / len(self._losses) for stage in (*STAGES, "policy") if stage in total}

    def write(self, record: Record) -> None:
        """Hand a record to every sink."""
        for sink in self.sinks:
            sink.write(record)


def evaluation_record(found: Evaluation, step: int) -> EvalRecord:
    """An evaluation after so many batches."""
    names = ("samples", "auc", "log_loss", "accuracy", "calibration", "gauc")
    labels = {name: asdict(quality) for name, quality in found.labels.items()}
    return EvalRecord(step=step, labels=labels, **{name: getattr(found, name) for name in names})


def _policy_numbers(found: Statistics) -> dict[str, float]:
    numbers = dict(found.policy)
    if found.batches_in_parts:
        numbers[IN_PARTS] = found.batches_in_parts / found.batches
        numbers[WAITED] = found.batches_waited / found.batches_in_parts
    return numbers


def _update_norms(found: Statistics) -> Histogram | None:
    if not found.update_norm_counts.any():
        return None
    middles = (found.update_norm_edges[1:] + found.update_norm_edges[:-1]) / 2
    return Histogram(
        found.update_norm_edges,
        found.update_norm_counts,
        found.update_norm_sum,
        float(found.update_norm_counts @ middles**2),  # as exact as bins allow
    )
