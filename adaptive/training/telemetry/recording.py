"""`Recording`: records of a custom loop (docs/how-to/own-loop.md)."""

import contextlib
from collections.abc import Generator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from adaptive.embeddings.planned_batch import LookAhead, Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.storage.run_directory import RunDirectory
from adaptive.training.evaluation import Evaluation
from adaptive.training.telemetry.jsonl import MetricsFile
from adaptive.training.telemetry.record import RunRecord
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.telemetry.tensorboard_view import TensorBoardView


class Recording:
    """Record a loop in a directory, as `metrics.jsonl` and for TensorBoard; a context manager.

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
        overwrite: replace a run in the directory.

    Raises:
        OutputError: if the directory cannot be used, or is not empty.
        ConfigError: for `log_every` below 1.
    """

    def __init__(
        self, embeddings: TieredEmbeddingBag, directory: Path | str, *, log_every: int = 20, overwrite: bool = False
    ) -> None:
        if log_every < 1:
            raise ConfigError(f"log_every: expected a whole number above 0, got {log_every}")
        self._embeddings = embeddings
        self._recorder = Recorder(embeddings, log_every=log_every)
        self._directory = RunDirectory(Path(directory), overwrite=overwrite)

    def __enter__(self) -> Self:
        policy, rows = type(self._embeddings.policy).__name__.lower(), self._embeddings.statistics.table_rows()
        self._directory.begin(own_loop=True, policy=policy, device=str(self._embeddings.device))
        self._recorder.sinks = [
            MetricsFile(self._directory.metrics),
            TensorBoardView(self._directory.tensorboard, rows, skips=self._embeddings.rule is not None),
        ]
        self._recorder.write(RunRecord(policy=policy, table_rows=rows, config="a custom loop"))
        return self

    def batches(self, planned_batches: LookAhead) -> LookAhead:
        """Yield the batches of a look-ahead; times the waits and writes records in between."""
        return LookAhead(partial(self._batches, planned_batches), planned_batches)

    def _batches(self, planned_batches: LookAhead) -> Generator[Planned, None, None]:
        self._recorder.start()
        with contextlib.closing(iter(planned_batches)) as iterator:
            while True:
                with self._recorder.timed("wait"):
                    planned = next(iterator, None)
                if planned is None or self._recorder.is_due():
                    self._recorder.write_interval()
                if planned is None:
                    break
                yield planned

    def timed(self, stage: str) -> AbstractContextManager[None]:
        """Time a stage inside: `forward`, `backward`, `update` or `row_update`."""
        return self._recorder.timed(stage)

    def step(self, planned: Planned, loss: Tensor | float, logits: Tensor) -> None:
        """Record a trained batch: its mean loss and logits (B,) from before the update."""
        labels = planned.batch.labels
        if logits.shape != labels.shape:
            raise ConfigError(f"record.step: expected logits of shape ({len(labels)},), got {tuple(logits.shape)}")
        self._recorder.step(float(torch.as_tensor(loss).detach()), logits, labels)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Record the quality on other samples, from `adaptive.evaluate`."""
        self._recorder.write_evaluation(evaluation)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._directory, contextlib.closing(self._recorder):
            if error is not None:
                self._directory.write(status="stopped", error=f"{type(error).__name__}: {error}")
                return
            self._directory.finish({"steps": self._recorder.steps, "samples": self._recorder.samples})
