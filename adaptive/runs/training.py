"""Train a run in its directory, or say what it would take."""

import contextlib
import json
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TextIO

from adaptive.batch import Batch
from adaptive.build import Parts, build, first_batches, open_data
from adaptive.checkpoint import save_checkpoint
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import InputError
from adaptive.evaluation import Evaluation, evaluate
from adaptive.guard.guard import Guard
from adaptive.recorder import Recorder, Sink
from adaptive.rundir import RunDirectory
from adaptive.runs.shared import quality_numbers, table_facts, table_rows, torch_settings, total_steps
from adaptive.signals import StopRequest, stop_request
from adaptive.telemetry.jsonl import MetricsFile
from adaptive.telemetry.progress import Progress
from adaptive.telemetry.record import RunRecord
from adaptive.telemetry.report import SCHEMA, run_summary, summary_text
from adaptive.telemetry.tensorboard import TensorBoardView
from adaptive.trainer import Trainer


def train_run(config: TrainConfig, *, overwrite: bool = False, stream: TextIO | None = None) -> dict[str, Any]:
    """Train as `config` says, in a run directory; returns the summary, and as `table` its text for people.

    On SIGTERM or SIGINT the step is finished, weights are saved, and `SystemExit` with 143 or 130 is raised.

    Args:
        config: the whole of it goes into `run.json`.
        overwrite: replace the run in a directory that is not empty.
        stream: where progress is shown, usually stderr.

    Raises:
        AdaptiveError: see the classes in `adaptive.errors`.
    """
    with _run_directory(config, overwrite) as directory, torch_settings(config):
        dataset = open_data(config, directory.path)
        sample = first_batches(config, dataset)
        parts = build(config, dataset, sample)
        with parts.embeddings:
            parts.embeddings.calibrate(sample[: config.calibration_batches])
            directory.begin(
                config=config.model_dump(mode="json"), data=dataset.fingerprint(), device=str(parts.embeddings.device)
            )
            return _Run(config, directory, dataset, parts, stream).train()


def plan_run(config: TrainConfig) -> dict[str, Any]:
    """What `train_run` would take: memory, device rows, steps. Writes nothing."""
    dataset = open_data(config)
    in_memory = config.model_copy(update={"tier": config.tier.model_copy(update={"host": "memory"})})
    parts = build(in_memory, dataset, first_batches(config, dataset))  # memory that is not touched is not taken
    with parts.embeddings as embeddings:
        return {
            "schema": SCHEMA,
            "dry_run": True,
            "policy": config.policy,
            "device": str(embeddings.device),
            "tables": len(parts.tables),
            "rows": embeddings.view.num_rows,
            "device_rows": embeddings.view.device_rows,
            "device_rows_why": embeddings.device_rows_text(),
            "memory_bytes": embeddings.memory(),
            "dense_parameters": sum(weight.numel() for weight in parts.model.parameters()),
            "samples": dataset.num_train_samples(),
            "steps": total_steps(config, dataset),
        }


class _Run:
    """One training run in its directory."""

    def __init__(
        self, config: TrainConfig, directory: RunDirectory, dataset: Dataset, parts: Parts, stream: TextIO | None
    ) -> None:
        self.config, self.directory, self.dataset, self.parts = config, directory, dataset, parts
        self.recorder = Recorder(parts.embeddings, self._sinks(stream), log_every=config.log_every)
        self.trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, recorder=self.recorder)
        self.file_bytes = dict.fromkeys(("bytes_read", "bytes_written"), 0)

    def train(self) -> dict[str, Any]:
        """Train, save, evaluate."""
        with contextlib.closing(self.recorder), stop_request() as stop:
            self.recorder.write(self._run_record())
            self.guard = self._make_guard()
            with contextlib.closing(self.guard) if self.guard else contextlib.nullcontext():
                self._train_epochs(stop)
            if self.config.save:
                self._save()
            stop.raise_exit()
            found = self._evaluate(stop)
            stop.raise_exit()
        summary = self._summary(found)
        self.directory.finish(summary)
        text = summary_text(summary, self.recorder.totals, table_rows=table_rows(self.parts))
        return {**summary, "table": f"{text}\nrun directory: {self.directory.path}"}

    def _train_epochs(self, stop: StopRequest) -> None:
        left = self.config.steps
        for epoch in range(self.config.epochs):
            if epoch and left != 0:
                self._evaluate(stop)
            if stop or left == 0:
                break
            batches: Iterator[Batch] = islice(self.dataset.train(self.config.batch_size, epoch=epoch), left)
            if self.guard:
                batches = self.guard.watch(batches)
            steps = self._train_batches(batches, stop)
            left = None if left is None else max(left - steps, 0)
        if self.guard:
            self.guard.finish()
        if not self.recorder.steps:
            raise InputError(f"data {self.config.data}: no training samples")

    def _train_batches(self, batches: Iterator[Batch], stop: StopRequest) -> int:
        """Returns the steps taken. What crosses between rows and their files is counted here: saving and evaluating
        read every row, whatever the policy, and would hide what it moves."""
        before = self.parts.embeddings.host_io()
        steps = self.trainer.train(batches, depth=self.config.depth, stopped=lambda: self._after_step(stop))
        after = self.parts.embeddings.host_io()
        self.file_bytes = {name: so_far + after[name] - before[name] for name, so_far in self.file_bytes.items()}
        return steps

    def _make_guard(self) -> Guard | None:
        if self.config.guard is None:
            return None
        total = total_steps(self.config, self.dataset)
        return Guard(self.config.guard, self.config, self.parts, self.recorder, total)

    def _after_step(self, stop: StopRequest) -> bool:
        """Whether training is to stop."""
        if self.guard:
            self.guard.after_step()
        return bool(stop)

    def _evaluate(self, stop: StopRequest) -> Evaluation | None:
        """None if there is no evaluation part, or not the time for it."""
        batches = takewhile(lambda _: not stop, self.dataset.evaluation(self.config.eval_batch_size))
        found = evaluate(self.parts.embeddings, self.parts.model, batches)
        if stop or not found.samples:
            return None
        self.recorder.write_evaluation(found)
        return found

    def _save(self) -> None:
        save_checkpoint(
            self.directory.weights,
            rows=self.parts.embeddings.state_arrays(),
            dense=self.parts.model.state_dict(),
            policy=self.parts.embeddings.policy.state_dict(),
            meta={
                "steps": self.recorder.steps,
                "samples": self.recorder.samples,
                "tables": table_facts(self.parts),
                **({"guard": self.guard.state()} if self.guard else {}),
            },
        )

    def _summary(self, found: Evaluation | None) -> dict[str, Any]:
        policy = self.parts.embeddings.policy
        auc, log_loss = self.recorder.auc.value(), self.recorder.log_loss.value()
        quality = {"auc_of": "training", "auc": auc, "log_loss": log_loss, "eval_samples": 0}
        if found is not None:
            quality = quality_numbers(found)
        return {
            **run_summary(self.config.policy, self.recorder.totals, auc=auc, log_loss=log_loss),
            **quality,
            **(self.guard.summary() if self.guard else {}),
            **self._file_traffic(),
            "skipped_input_share": policy.dropped_inputs / policy.seen_inputs if policy.dropped_inputs else 0.0,
            "device_rows": self.parts.embeddings.view.device_rows,
            "seed": self.config.seed,
            "rejected_lines": self.dataset.rejects(),
            "out_of_range_ids": self.dataset.out_of_range(),
            "run_dir": str(self.directory.path),
        }

    def _file_traffic(self) -> dict[str, int]:
        """Nothing where no rows lie in files, nor where they are used in place and nobody sees what the system reads:
        a number of 0 would be wrong."""
        if self.config.tier.host == "memory" or self.parts.embeddings.policy.misses == "host":
            return {}
        return {f"host_{name}": size for name, size in self.file_bytes.items()}

    def _run_record(self) -> RunRecord:
        text = json.dumps(self.config.model_dump(mode="json"), indent=1)
        return RunRecord(policy=self.config.policy, table_rows=table_rows(self.parts), config=text)

    def _sinks(self, stream: TextIO | None) -> list[Sink]:
        sinks: list[Sink] = [MetricsFile(self.directory.metrics)]
        if self.config.tensorboard:
            rows = table_rows(self.parts)
            sinks.append(TensorBoardView(self.directory.tensorboard, list(rows), list(rows.values())))
        if stream is not None:
            sinks.append(Progress(stream, total_steps(self.config, self.dataset)))
        return sinks


def _run_directory(config: TrainConfig, overwrite: bool) -> RunDirectory:
    if config.out is None:
        return RunDirectory.named_after(config.policy)
    return RunDirectory(Path(config.out), overwrite=overwrite)
