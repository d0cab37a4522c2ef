"""`Recording`: write `metrics.jsonl` and TensorBoard files for a custom training loop."""

import contextlib
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from torch import Tensor

from adaptive.embeddings.planned_batch import LookAhead, Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.storage.run_directory import RunDirectory
from adaptive.training.evaluation import Evaluation
from adaptive.training.telemetry.jsonl import MetricsFile
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.record import RunRecord
from adaptive.training.telemetry.recorder import Recorder, Sink
from adaptive.training.telemetry.report import RunSummary, details_text, run_text
from adaptive.training.telemetry.tensorboard import TensorBoardView


class Recording:
    """Record a loop in a directory; a context manager.

        with Recording(embeddings, "runs/mine") as record:
            for planned in record.batches(embeddings.look_ahead(loader)):
                logits = model(planned)
                loss = loss_fn(logits, planned.labels)
                ...
                embeddings.step()
                record.step(planned, loss, logits)

    `run.json` marks the run as a custom loop; no command can resume or evaluate it.

    Args:
        embeddings: their statistics are recorded; nothing else may take them (`statistics.take`) meanwhile.
        directory: new or empty.
        log_every: batches per interval; each interval is one record.
        tensorboard: also write TensorBoard files.
        progress: stream for a line of progress, such as `sys.stderr`.
        overwrite: replace a run in the directory.

    Raises:
        OutputError: if the directory cannot be used, or is not empty.
        ConfigError: for `log_every` below 1.
    """

    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        directory: Path | str,
        *,
        log_every: int = 20,
        tensorboard: bool = True,
        progress: TextIO | None = None,
        overwrite: bool = False,
    ) -> None:
        if log_every < 1:
            raise ConfigError(f"log_every: expected a whole number above 0, got {log_every}")
        self._embeddings, self._name = embeddings, type(embeddings.policy).__name__.lower()
        self._recorder = Recorder(embeddings, log_every=log_every)
        self._directory = RunDirectory(Path(directory), overwrite=overwrite)
        rows = embeddings.statistics.table_rows()
        sinks: list[Sink] = [MetricsFile(self._directory.metrics)]
        if tensorboard:
            sinks.append(TensorBoardView(self._directory.tensorboard, list(rows), list(rows.values())))
        if progress is not None:
            sinks.append(Progress(progress, None))
        self._recorder.sinks = sinks
        self._rows = rows

    def __enter__(self) -> Self:
        self._directory.begin(own_loop=True, policy=self._name, device=str(self._embeddings.device))
        self._recorder.write(RunRecord(policy=self._name, table_rows=self._rows, config="a custom loop"))
        self._recorder.start()
        return self

    def batches(self, planned_batches: Iterable[Planned]) -> LookAhead:
        """Yield the batches of a look-ahead; times the waits and writes records in between."""
        return LookAhead(partial(self._batches, planned_batches), planned_batches)

    def _batches(self, planned_batches: Iterable[Planned]) -> Generator[Planned, None, None]:
        iterator = iter(planned_batches)
        self._recorder.start()
        with contextlib.closing(iterator) if isinstance(iterator, Generator) else contextlib.nullcontext():
            while True:
                with self._recorder.timed("wait"):
                    planned = next(iterator, None)
                if self._recorder.is_due:
                    self._recorder.write_interval()
                if planned is None:
                    break
                yield planned
        self._recorder.write_interval()

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Time a stage inside: `forward`, `backward`, `update` or `row_update`."""
        return self._recorder.timed(stage)

    def step(self, planned: Planned, loss: Tensor | float, logits: Tensor) -> None:
        """Record a trained batch: its mean loss and logits (B,) from before the update."""
        labels = planned.batch.labels
        if logits.shape != labels.shape:
            raise ConfigError(f"record.step: expected logits of shape ({len(labels)},), got {tuple(logits.shape)}")
        self._recorder.step(loss_value(loss), logits, labels)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Record the quality on other samples, from `adaptive.evaluate` or `quality_of`."""
        self._recorder.write_evaluation(evaluation)

    def summary(self) -> dict[str, Any]:
        """Summary of the recorded batches, as `adaptive-train run --json`; `table` is text."""
        self._recorder.write_interval()
        recorder, latest = self._recorder, next(reversed(self._recorder.evaluations), None)
        auc, log_loss, accuracy = recorder.auc.value(), recorder.log_loss.value(), recorder.auc.accuracy()
        if latest is not None:
            auc, log_loss, accuracy = latest.auc, latest.log_loss, latest.accuracy
        of, eval_samples = ("training", 0) if latest is None else ("evaluation", latest.samples)
        quality = {"auc": auc, "log_loss": log_loss, "accuracy": accuracy, "auc_of": of, "eval_samples": eval_samples}
        summary = RunSummary.of(self._name, recorder.totals, quality)
        rows, misses = sum(self._rows.values()), self._embeddings.policy.misses
        text = run_text(summary, recorder.totals, rows=rows, misses=misses)
        return {**summary.to_json(), "table": f"{text}\n{details_text(summary, recorder.totals, self._rows)}"}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._directory, contextlib.closing(self._recorder):
            if error is not None:
                self._directory.write(status="stopped", error=f"{type(error).__name__}: {error}")
                return
            self._directory.finish({name: value for name, value in self.summary().items() if name != "table"})


def loss_value(loss: Any) -> float:
    """Return the loss as a number."""
    return float(loss.detach() if isinstance(loss, Tensor) else loss)
