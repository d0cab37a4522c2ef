"""Collect steps into records: an `IntervalRecord` per `log_every` steps."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from adaptive.counters import Stopwatch
from adaptive.distributed.sharded_embedding_bag import Embeddings
from adaptive.embeddings.engine.statistics import Statistics
from adaptive.embeddings.planning.policy_calls import OF_RULE
from adaptive.kernels.jit import compilation
from adaptive.policy import inputs_of
from adaptive.training.evaluation import Evaluation
from adaptive.training.quality import StreamingAUC, StreamingLogLoss
from adaptive.training.telemetry.record import (
    IN_PARTS,
    ROWS_NOW,
    STAGES,
    WAITED,
    EvalRecord,
    IntervalRecord,
    Record,
    RunTotals,
    sum_tables,
    table_counts,
)

AUC_COUNTS: Final = "auc_counts"

_ALL_1 = np.ones(0, np.float32)


class Sink(Protocol):
    """A destination of records: a file, TensorBoard, the terminal."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class RecorderState(BaseModel):
    """State of a `Recorder` between two intervals, in a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    loss: float | None
    totals: RunTotals
    log_loss: StreamingLogLoss


@dataclass(frozen=True)
class Cut:
    """The end of an interval: what was counted and measured until then."""

    taken: Statistics
    seconds: float
    cpu_seconds: float
    stages: dict[str, float]  # ms of the training thread's stages
    compiled: bool


class Recorder:
    """Collects the steps of a training loop into records for its sinks. For one thread.

    Attributes:
        steps, samples: trained so far.
        loss: weighted mean of the latest batch, predicted before it was trained.
        totals: sums over all written intervals.
        auc (and accuracy), log_loss: quality on training batches, each predicted before it was trained.
            Weighted, so with inputs dropped by a rule it estimates that of all inputs.
        evaluations: records of evaluations so far.
        sinks: destinations of records.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        sinks: Sequence[Sink] = (),
        *,
        log_every: int = 20,
        now: Callable[[], float] = time.perf_counter,
        cpu_now: Callable[[], float] = time.process_time,
    ) -> None:
        """
        Args:
            embeddings: its statistics are read at the end of each interval.
            sinks: closed by `close`.
            log_every: steps per interval.
            now, cpu_now: clock and processor time in seconds; tests pass their own.
        """
        self.steps = 0
        self.samples = 0
        self.loss = math.nan
        self.totals = RunTotals()
        self.auc, self.log_loss = StreamingAUC(), StreamingLogLoss()
        self.evaluations: list[EvalRecord] = []
        self.sinks = sinks
        self._embeddings, self._log_every, self._now, self._cpu_now = embeddings, log_every, now, cpu_now
        embeddings.statistics.policy_numbers()  # raises for a wrong name now, not after the first interval
        self.start()

    def start(self, at: tuple[float, float] | None = None) -> None:
        """Start an interval, now or at the given second and processor second. Earlier time counts for no step."""
        self._losses: list[float] = []
        self._logits: list[Tensor] = []
        self._labels: list[NDArray[np.float32]] = []
        self._weights: list[NDArray[np.float32]] = []
        self._begin(self.steps, at)

    def _begin(self, step: int, at: tuple[float, float] | None = None) -> None:
        self._first_step = step
        self._stopwatch = Stopwatch(self._now)
        self._started, self._cpu_started = at or (self._now(), self._cpu_now())
        self._compiled = compilation.count

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Add the time inside to a stage; on a GPU the time to launch the work."""
        return self._stopwatch.stage(stage)

    def step(
        self, loss: float, logits: Tensor, labels: NDArray[np.float32], weights: NDArray[np.float32] = _ALL_1
    ) -> None:
        """Record a trained batch.

        Args:
            loss: mean of the samples' losses times weights.
            logits, labels: (B,).
            weights: (B,), or (0,) if all are 1.
        """
        self.steps += 1
        self.samples += len(labels)
        weights = weights if len(weights) else np.ones(len(labels), np.float32)
        self.loss = loss / (float(weights.mean()) or 1.0)
        self._losses.append(self.loss)
        self._logits.append(logits.detach())
        self._labels.append(labels)
        self._weights.append(weights)

    def is_due(self, launched: int | None = None) -> bool:
        """True if the interval is full. Write it once the next batch is there.

        launched: number of the latest step, which may be recorded later; None: all are recorded.
        """
        return (self.steps if launched is None else launched) - self._first_step >= self._log_every

    def cut(self, launched: int | None = None) -> Cut:
        """End the interval with step `launched`, and begin the next one. Time to record belongs to that."""
        ended, cpu_ended = self._now(), self._cpu_now()
        taken, compiled = self._embeddings.statistics.take(), compilation.count > self._compiled
        times, stages = (ended - self._started, cpu_ended - self._cpu_started), self._stopwatch.total_ms()
        self._begin(self.steps if launched is None else launched, (ended, cpu_ended))
        return Cut(taken, *times, stages, compiled)

    def write_interval(self, cut: Cut | None = None) -> None:
        """Write a record of the steps since the last one, if there are any.

        cut: the end of the interval, whose steps are recorded now; None: the interval ends now.
        """
        if not self._losses:
            return
        logits, labels = torch.cat(self._logits).float().cpu().numpy(), np.concatenate(self._labels)
        cut = cut or self.cut()  # after a wait for the logits, so the time includes launched work
        weights = np.concatenate(self._weights)
        self.auc.update(logits, labels, weights)
        self.log_loss.update(logits, labels, weights)
        record = self._interval(cut)
        self.totals.add(record)
        self.write(record)
        self._losses, self._logits, self._labels, self._weights = [], [], [], []

    def write_evaluation(self, evaluation: Evaluation, file: str | None = None) -> None:
        """Record an evaluation, perhaps of a followed file. Its time belongs to no interval."""
        read, counted = inputs_of(self._embeddings.rule)[0] or self.samples, self.totals.counted
        work: dict[str, Any] = {"samples_read": read, "seconds": counted.seconds, "cpu_seconds": counted.cpu_seconds}
        self.evaluations.append(replace(evaluation_record(evaluation, self.steps), file=file, **work))
        self.write(self.evaluations[-1])
        self.start()

    def state(self) -> RecorderState:
        """Return the state that `restore` takes, with `auc_counts`. Call it between two intervals."""
        assert not self._losses
        loss = self.loss if math.isfinite(self.loss) else None
        return RecorderState(loss=loss, totals=self.totals, log_loss=self.log_loss)

    def auc_counts(self) -> dict[str, NDArray[np.int64]]:
        """Return the arrays that belong to `state`, by name."""
        return {AUC_COUNTS: self.auc.counts}

    def restore(self, state: RecorderState, auc_counts: Mapping[str, NDArray[np.int64]]) -> None:
        """Restore the results of `state` and `auc_counts`; invalid ones raise any error."""
        self.auc, self.log_loss, self.totals = StreamingAUC(auc_counts[AUC_COUNTS]), state.log_loss, state.totals
        self.steps, self.samples = self.totals.steps, self.totals.samples
        self.loss = math.nan if state.loss is None else state.loss

    def close(self) -> None:
        """Close every sink, even if one of them raises."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.close)

    def _interval(self, cut: Cut) -> IntervalRecord:
        taken = cut.taken
        rows_now = {name: getattr(taken, name) for name in ROWS_NOW}
        policy = dict(taken.policy)
        if taken.batches_in_parts:
            policy[IN_PARTS] = taken.batches_in_parts / taken.batches
            policy[WAITED] = taken.batches_waited / taken.batches_in_parts
        seen = policy.get(f"{OF_RULE}seen_inputs")
        read = self.samples if seen is None else int(seen)
        tables = table_counts(self._embeddings.table_names, taken.counts, **rows_now)
        whole = sum_tables(list(tables.values()))
        return IntervalRecord(
            step=self.steps,
            samples=self.samples,
            auc=self.auc.value(),
            accuracy=self.auc.accuracy(),
            log_loss=self.log_loss.value(),
            hit_rate=whole.hit_rate,
            row_hit_rate=whole.row_hit_rate,
            loss=float(np.mean(self._losses)),
            samples_per_s=(read - self.totals.read) / cut.seconds if cut.seconds > 0 else 0.0,
            cpu_seconds=cut.cpu_seconds,
            samples_read=read,
            compiled=cut.compiled,
            time_ms=self._time_ms(cut),
            tables=tables,
            device_rows=taken.device_rows,
            policy=policy,
        )

    def _time_ms(self, cut: Cut) -> dict[str, float]:
        """Mean ms per step; stages of the training thread and `other` add up to the step."""
        other = max(1000 * cut.seconds - sum(cut.stages.values()), 0.0)
        total = {**cut.taken.times_ms, **cut.stages, "other": other}
        return {stage: total[stage] / len(self._losses) for stage in (*STAGES, "policy") if stage in total}

    def write(self, record: Record) -> None:
        """Write a record to every sink."""
        for sink in self.sinks:
            sink.write(record)


def evaluation_record(evaluation: Evaluation, step: int) -> EvalRecord:
    """Return the record of an evaluation after `step` batches."""
    names = ("samples", "auc", "log_loss", "accuracy", "calibration", "gauc")
    return EvalRecord(step=step, **{name: getattr(evaluation, name) for name in names})
