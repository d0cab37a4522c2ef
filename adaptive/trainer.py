"""The training loop, and what is done with it: train a run, say what it would take, evaluate it again.

for planned in embeddings.look_ahead(batches, depth=depth):       read, plan, write back, fetch; wait
    loss = log_loss(model(planned.dense, embeddings.stack(planned)), planned.labels)       forward
    optimizer.zero_grad(); loss.backward()                                                 backward
    optimizer.step(); embeddings.step()                                                    update
"""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TextIO

import torch
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.batch import Batch
from adaptive.build import Parts, build, first_batches, open_data
from adaptive.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.embedding import TieredEmbeddingBag
from adaptive.errors import CheckpointError, InputError
from adaptive.evaluation import Evaluation, evaluate
from adaptive.finite import bad_parameters, explain_gradients, explain_loss
from adaptive.planned import Planned
from adaptive.recorder import Recorder, Sink
from adaptive.rundir import RunDirectory, read_record
from adaptive.signals import StopRequest, stop_request
from adaptive.telemetry.jsonl import MetricsFile, plain
from adaptive.telemetry.progress import Progress
from adaptive.telemetry.record import EvalRecord, RunRecord
from adaptive.telemetry.report import SCHEMA, run_summary, summary_text
from adaptive.telemetry.tensorboard import TensorBoardView


class Trainer:
    """Trains `model(dense, pooled) -> logits (B,)` and its embeddings on click labels, by mean log loss."""

    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        recorder: Recorder | None = None,
    ) -> None:
        """
        Args:
            embeddings: all features pooled and of one width.
            model: on `embeddings.device`.
            optimizer: of the model's parameters; rows have their own.
            recorder: told of each step; default: one that writes nowhere.
        """
        self.embeddings, self.model, self.optimizer = embeddings, model, optimizer
        self.recorder = Recorder(embeddings) if recorder is None else recorder

    def train(self, batches: Iterable[Batch], *, depth: int = 4, stopped: Callable[[], bool] = lambda: False) -> int:
        """Train on the batches, or until `stopped()` after a step; returns the number of steps.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite; nothing of its batch was updated.
        """
        self.model.train()
        before = self.recorder.steps
        self.recorder.start()
        with contextlib.closing(self.embeddings.look_ahead(batches, depth=depth)) as coming:
            while (planned := self._next(coming)) is not None:
                self.step(planned)
                if stopped():
                    break
        self.recorder.write_interval()
        return self.recorder.steps - before

    def step(self, planned: Planned) -> None:
        """Train one batch. Whether the numbers are finite is known before anything is updated."""
        name, timed = f"step {self.recorder.steps + 1}", self.recorder.timed
        with timed("forward"):
            pooled = self.embeddings.stack(planned)
            logits = self.model(planned.dense, pooled)
            loss = binary_cross_entropy_with_logits(logits, planned.labels)
            value = float(loss.detach())
        if not math.isfinite(value):
            what = f"{name}: the loss is {value}"
            raise explain_loss(what, planned.batch, logits=logits, pooled=pooled, model=self.model)
        with timed("backward"):
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        with timed("update"):
            parameters, features = bad_parameters(self.model), self.embeddings.bad_gradients()
            if parameters or features:
                raise explain_gradients(name, planned.batch, parameters=parameters, features=features)
            self.optimizer.step()
            self.embeddings.step()
        self.recorder.step(value, logits, planned.batch.labels)

    def _next(self, coming: Iterator[Planned]) -> Planned | None:
        with self.recorder.timed("wait"):
            planned = next(coming, None)
        self.recorder.write_if_due()  # only now does the last batch count as trained
        return planned


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
    with _run_directory(config, overwrite) as directory, _torch_settings(config):
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
            "steps": _total_steps(config, dataset),
        }


def evaluate_run(run_directory: Path | str, *, stream: TextIO | None = None) -> dict[str, Any]:
    """Evaluate the saved weights of a run on its evaluation data: the numbers its summary has, to the last digit.

    Raises:
        CheckpointError: if the run or its weights are missing or damaged.
        InputError: if the data are not those of the run, or have no evaluation part.
    """
    path = Path(run_directory)
    record = read_record(path)
    try:
        config = TrainConfig.model_validate(record.get("config"))
    except ValidationError as error:
        raise CheckpointError(f"{path / 'run.json'}: config: {error.errors()[0]['msg']}") from error
    checkpoint = load_checkpoint(path / "weights")
    dataset = open_data(_with_vocabulary(config, path / "vocabulary"))
    _check_same_data(path, record.get("data"), plain(dataset.fingerprint()))
    with _torch_settings(config):
        parts = build(_for_reading(config), dataset)
        with parts.embeddings:
            _restore(parts, checkpoint, where=path / "weights")
            batches = dataset.evaluation(config.eval_batch_size)
            found = evaluate(parts.embeddings, parts.model, batches)
    if not found.samples:
        raise InputError(f"the data of {path} ({config.data}) have no evaluation part")
    steps = checkpoint.meta["steps"]
    if stream is not None:
        with contextlib.closing(Progress(stream, steps)) as progress:
            progress.write(EvalRecord(step=steps, samples=found.samples, auc=found.auc, log_loss=found.log_loss))
    return {"schema": SCHEMA, "run_dir": str(path), "policy": config.policy, "steps": steps, **_quality(found)}


class _Run:
    """One training run in its directory."""

    def __init__(
        self, config: TrainConfig, directory: RunDirectory, dataset: Dataset, parts: Parts, stream: TextIO | None
    ) -> None:
        self.config, self.directory, self.dataset, self.parts = config, directory, dataset, parts
        self.recorder = Recorder(parts.embeddings, self._sinks(stream), log_every=config.log_every)
        self.trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, recorder=self.recorder)

    def train(self) -> dict[str, Any]:
        """Train, save, evaluate."""
        with contextlib.closing(self.recorder), stop_request() as stop:
            self.recorder.write(self._run_record())
            self._train_epochs(stop)
            if self.config.save:
                self._save()
            stop.raise_exit()
            found = self._evaluate(stop)
            stop.raise_exit()
        summary = self._summary(found)
        self.directory.finish(summary)
        text = summary_text(summary, self.recorder.totals, table_rows=_table_rows(self.parts))
        return {**summary, "table": f"{text}\nrun directory: {self.directory.path}"}

    def _train_epochs(self, stop: StopRequest) -> None:
        left = self.config.steps
        for epoch in range(self.config.epochs):
            if epoch and left != 0:
                self._evaluate(stop)
            if stop or left == 0:
                break
            batches = islice(self.dataset.train(self.config.batch_size, epoch=epoch), left)
            steps = self.trainer.train(batches, depth=self.config.depth, stopped=lambda: bool(stop))
            left = None if left is None else max(left - steps, 0)
        if not self.recorder.steps:
            raise InputError(f"data {self.config.data}: no training samples")

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
            meta={"steps": self.recorder.steps, "samples": self.recorder.samples, "tables": _table_facts(self.parts)},
        )

    def _summary(self, found: Evaluation | None) -> dict[str, Any]:
        policy = self.parts.embeddings.policy
        auc, log_loss = self.recorder.auc.value(), self.recorder.log_loss.value()
        quality = {"auc_of": "training", "auc": auc, "log_loss": log_loss, "eval_samples": 0}
        if found is not None:
            quality = _quality(found)
        return {
            **run_summary(self.config.policy, self.recorder.totals, auc=auc, log_loss=log_loss),
            **quality,
            "skipped_input_share": policy.dropped_inputs / policy.seen_inputs if policy.dropped_inputs else 0.0,
            "device_rows": self.parts.embeddings.view.device_rows,
            "seed": self.config.seed,
            "rejected_lines": self.dataset.rejects(),
            "out_of_range_ids": self.dataset.out_of_range(),
            "run_dir": str(self.directory.path),
        }

    def _run_record(self) -> RunRecord:
        text = json.dumps(self.config.model_dump(mode="json"), indent=1)
        return RunRecord(policy=self.config.policy, table_rows=_table_rows(self.parts), config=text)

    def _sinks(self, stream: TextIO | None) -> list[Sink]:
        sinks: list[Sink] = [MetricsFile(self.directory.metrics)]
        if self.config.tensorboard:
            rows = _table_rows(self.parts)
            sinks.append(TensorBoardView(self.directory.tensorboard, list(rows), list(rows.values())))
        if stream is not None:
            sinks.append(Progress(stream, _total_steps(self.config, self.dataset)))
        return sinks


def _run_directory(config: TrainConfig, overwrite: bool) -> RunDirectory:
    if config.out is None:
        return RunDirectory.named_after(config.policy)
    return RunDirectory(Path(config.out), overwrite=overwrite)


@contextlib.contextmanager
def _torch_settings(config: TrainConfig) -> Iterator[None]:
    """Seed and deterministic switch for the time of a run; the caller's are back afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(config.seed)
        try:
            if config.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
                torch.use_deterministic_algorithms(True)
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _total_steps(config: TrainConfig, dataset: Dataset) -> int | None:
    """Steps of the whole run, or None where nobody knows before reading the data."""
    samples = dataset.num_train_samples()
    if samples is None:
        return config.steps
    return min(config.epochs * -(-samples // config.batch_size), config.steps or sys.maxsize)


def _quality(found: Evaluation) -> dict[str, Any]:
    numbers = asdict(found)
    return {"auc_of": "evaluation", "eval_samples": numbers.pop("samples"), **numbers}


def _table_rows(parts: Parts) -> dict[str, int]:
    return {table.name: table.num_embeddings for table in parts.tables}


def _table_facts(parts: Parts) -> list[dict[str, Any]]:
    """What must be equal for saved rows to fit."""
    return [
        {"name": t.name, "num_embeddings": t.num_embeddings, "embedding_dim": t.embedding_dim} for t in parts.tables
    ]


def _restore(parts: Parts, checkpoint: Checkpoint, *, where: Path) -> None:
    if not isinstance(checkpoint.meta.get("steps"), int):
        raise CheckpointError(f"{where}: expected the number of steps trained, found {checkpoint.meta.get('steps')!r}")
    needed, found = _table_facts(parts), checkpoint.meta.get("tables")
    if found != needed:
        raise CheckpointError(f"{where}: saved for other tables: expected {needed}, found {found}")
    try:
        parts.embeddings.load_state_arrays(checkpoint.rows)
        parts.model.load_state_dict(checkpoint.dense)
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:  # torch: RuntimeError for shapes
        raise CheckpointError(f"{where}: saved for another model or optimizer: {error}") from error


def _with_vocabulary(config: TrainConfig, folder: Path) -> TrainConfig:
    """Categories are mapped as in the run, not fitted anew, if the run had a fitted vocabulary of its own."""
    if not folder.is_dir():
        return config
    return config.model_copy(update={"data_options": {"vocabulary_path": folder, **config.data_options}})


def _for_reading(config: TrainConfig) -> TrainConfig:
    """The settings with which rows are only read: all on the host, and no plug-in that a file names is run."""
    tier = config.tier.model_copy(update={"device_rows": "auto", "host": "memory"})
    return config.model_copy(update={"policy": "hybrid", "policy_options": {}, "skip": None, "tier": tier})


def _check_same_data(path: Path, recorded: Any, found: Any) -> None:
    if recorded == found:
        return
    recorded = recorded if isinstance(recorded, dict) else {}
    names = sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))
    differences = "; ".join(f"{name}: expected {recorded.get(name)}, found {found.get(name)}" for name in names)
    raise InputError(f"the data are not those of {path}: {differences}")
