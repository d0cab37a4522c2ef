"""`Run`: what is done in a run directory, from the beginning or from a checkpoint on: train, save, evaluate, report."""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError, InputError, RanksError
from adaptive.models.tasks import tasks_of
from adaptive.policy import inputs_of
from adaptive.storage.checkpoint import Checkpoint
from adaptive.storage.run_directory import RunDirectory
from adaptive.storage.scores import write_scores
from adaptive.system import StopRequest, stop_request
from adaptive.training.build import Components, set_rates
from adaptive.training.evaluation import Evaluation, evaluate
from adaptive.training.guard.fork import RunLoop
from adaptive.training.guard.guard import Guard
from adaptive.training.runs.distributed import agreed_stop, checkpoints_of, ranks_summary
from adaptive.training.runs.goals import best_evaluation, best_summary, is_out_of_patience, is_reached, target_summary
from adaptive.training.runs.loop import DataPosition, Loop
from adaptive.training.runs.next_commands import how_to_resume, model_hint, next_commands, resume_command, steps_hint
from adaptive.training.runs.state import SavedProgress, content, is_guarded, restore_recorder
from adaptive.training.telemetry.formatting import policy_text
from adaptive.training.telemetry.jsonl import MetricsFile
from adaptive.training.telemetry.loggers import make_loggers
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.record import EvalRecord, ResumeRecord, RunRecord
from adaptive.training.telemetry.recorder import Recorder, Sink
from adaptive.training.telemetry.report import run_summary, summary_text
from adaptive.training.telemetry.tensorboard import TensorBoardView
from adaptive.training.trainer import Trainer


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint from which a run is resumed, and how far the run had come."""

    where: Path  # the checkpoint
    checkpoint: Checkpoint
    reached: SavedProgress
    dropped: int  # records of batches that are trained again
    damaged: Mapping[Path, str]  # newer checkpoints that could not be read, and why


class Run:
    """One training run in its directory. `components` are new, or restored from the checkpoint in `left`."""

    def __init__(
        self,
        config: TrainConfig,
        directory: RunDirectory,
        dataset: Dataset,
        components: Components,
        stream: TextIO | None,
        left: ResumePoint | None = None,
        *,
        keep_scores: bool = False,
    ) -> None:
        self._keep = partial(write_scores, directory.path) if keep_scores else None
        self.config, self.directory, self.dataset, self.components = config, directory, dataset, components
        self.left, self.ranks = left, components.embeddings.ranks
        self._where = Path(self.ranks.gather_facts(str(directory.path))[0])
        self._seen_before = dataset.out_of_range()
        self.guard: Guard | None = None
        self._reached: Evaluation | None = None  # the evaluation that ended training
        tasks = tasks_of(components.model)
        self.recorder = Recorder(components.embeddings, log_every=config.log_every, tasks=tasks)
        if left:
            again = left.reached.place.is_evaluated_next(config.steps)
            restore_recorder(self.recorder, left.reached, left.checkpoint, left.where, again=again)
        self._stream = stream
        self.recorder.sinks = self._sinks(stream)
        self.trainer = Trainer(
            components.embeddings,
            components.model,
            components.optimizer,
            recorder=self.recorder,
            set_rates=partial(set_rates, config, components),
        )
        self.checkpoints = checkpoints_of(
            directory.path, self.ranks, keep=config.keep_checkpoints, damaged=left.damaged if left else ()
        )

    def train(self) -> dict[str, Any]:
        """Train, save, evaluate; the summary."""
        group_feature(self.config.eval_by, [feature.name for feature in self.dataset.features])
        self._tell_policy()
        try:
            found = self._train()
        except SystemExit:
            self._tell_stopped()
            raise
        except RanksError as error:
            raise RanksError(f"{error}; {how_to_resume(self._where, self.config)}") from error
        summary = self._summary(found)
        self.directory.finish(summary)
        text = summary_text(summary, self.recorder.totals, table_rows=table_rows(self.components))
        if hint := steps_hint(self.config, summary["samples"]):
            text += f"\n{hint}\n"
        path = self.directory.path
        commands = next_commands(path, self.config, has_evaluation=found is not None)
        return {**summary, "table": f"{text}\nrun directory: {path}\nnext:{commands}"}

    def _train(self) -> Evaluation | None:
        with contextlib.closing(self.recorder), stop_request(agreed_stop(self.ranks)) as stop:
            self._write_beginning()
            self.guard = self._make_guard()
            self.loop = self._make_loop(stop)
            with contextlib.closing(self.guard) if self.guard else contextlib.nullcontext():
                self.loop.run(stop)
                if self.guard:
                    self.guard.finish()
            if not (stop or self.recorder.steps):
                raise InputError(f"data {self.config.data}: no training samples")
            if self.config.save:
                self.checkpoints.finish(self.loop.place.total, self._content())
            stop.raise_exit()
            found = self._reached or self._evaluate(stop)
            stop.raise_exit()
        return found

    def _tell_policy(self) -> None:
        """The first line: under what the run trains."""
        embeddings = self.components.embeddings
        text = policy_text(
            self.config.policy, embeddings.policy, defers=embeddings.defers, drops_updates=embeddings.drops_updates
        )
        self._tell(text)
        names = [feature.name for feature in self.dataset.features]
        if hint := model_hint(self.config, names, self.dataset.num_dense):
            self._tell(hint)

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if self._stream is not None:
                self._stream.write(text + "\n")

    def _tell_stopped(self) -> None:
        """Say what is left of a stopped run and how to resume it, once the progress line is gone."""
        path = self.directory.path
        if not self.config.save:
            kept = "nothing was saved, as save=false says"
        elif is_guarded(self.config, self.components):
            kept = f"weights are saved in {path}; a guarded run cannot be resumed"
        else:
            kept = f"saved; go on with: {resume_command(path, self.config)}"
        self._tell(f"stopped after step {self.recorder.steps}: {kept}")

    def _write_beginning(self) -> None:
        if self.left is None or not self.directory.metrics.exists():
            text = json.dumps(self.config.model_dump(mode="json"), indent=1)
            rows = table_rows(self.components)
            self.recorder.write(RunRecord(policy=self.config.policy, table_rows=rows, config=text))
        if self.left:
            self.recorder.write(ResumeRecord(step=self.recorder.steps, dropped=self.left.dropped))

    def _make_guard(self) -> Guard | None:
        if self.config.guard is None:
            return None
        total = total_steps(self.config, self.dataset)
        return Guard(self.config.guard, self.config, RunLoop(self.components), self.recorder, total)

    def _make_loop(self, stop: StopRequest) -> Loop:
        loop = Loop(
            self.config,
            self.dataset,
            self.trainer,
            self.left.reached.place if self.left else DataPosition(),
            guard=self.guard,
            save=self._save,
            evaluate=lambda: self._reaches_target(stop),
        )
        if self.left:
            loop.file_bytes |= self.left.reached.file_bytes
        return loop

    def _save(self) -> None:
        self.checkpoints.add(self.loop.place.total, self._content())

    def _content(self) -> dict[str, Any]:
        return content(self.components, self.recorder, self.loop, self.guard)

    def _reaches_target(self, stop: StopRequest) -> bool | None:
        """None if a signal has cut the evaluation short."""
        found = self._evaluate(stop)
        if found is None and stop:
            return None
        ended = is_out_of_patience(self.config, self.recorder.evaluations)
        if found is not None and (ended or is_reached(self.config.stop_at, found)):
            self._reached = found
        return self._reached is not None

    def _evaluate(self, stop: StopRequest) -> Evaluation | None:
        """None if there is no evaluation part, or the run is to stop."""
        batches = takewhile(lambda _: not stop, self.dataset.evaluation(self.config.eval_batch_size))
        by = group_feature(self.config.eval_by, [feature.name for feature in self.dataset.features])
        found = evaluate(self.components.embeddings, self.components.model, batches, by=by, keep=self._keep)
        if stop or not found.samples:
            return None
        self.recorder.write_evaluation(found)
        self._keep_if_best()
        return found

    def _keep_if_best(self) -> None:
        best = best_evaluation(self.config, self.recorder.evaluations)
        if self.config.save == "best" and best is not None and best.step == self.recorder.steps:
            self.checkpoints.keep_best(self.loop.place.total, self._content())

    def _summary(self, found: Evaluation | None) -> dict[str, Any]:
        seen, dropped = inputs_of(self.components.embeddings.policy)
        auc, log_loss = self.recorder.auc.value(), self.recorder.log_loss.value()
        accuracy = self.recorder.auc.accuracy()
        so_far = {"auc": auc, "log_loss": log_loss, "accuracy": accuracy}
        quality: dict[str, Any] = {"auc_of": "training", **so_far, "eval_samples": 0}
        if found is not None:
            quality = quality_numbers(found)
        elif self.recorder.each.streams:
            quality["labels"] = {name: asdict(one) for name, one in self.recorder.each.quality().items()}
        return {
            **run_summary(self.config.policy, self.recorder.totals, auc=auc, log_loss=log_loss),
            **quality,
            "evaluations": [_point(record) for record in self.recorder.evaluations],
            **target_summary(self.config.stop_at, self.recorder),
            **best_summary(self.config, self.recorder.evaluations),
            **(self.guard.summary() if self.guard else {}),
            **self._file_traffic(),
            **ranks_summary(
                self.ranks, self.recorder.totals, full=self.components.embeddings.statistics.hot_set_is_full
            ),
            "skipped_input_share": dropped / seen if dropped else 0.0,
            "device_rows": self.components.embeddings.runtime.view.device_rows,
            "seed": self.config.seed,
            "rejected_lines": self.dataset.rejects(),
            "out_of_range_ids": self._out_of_range(),
            "run_dir": str(self.directory.path),
        }

    def _out_of_range(self) -> dict[str, int]:
        """Without those that calibration saw, which are read again in training."""
        found = {name: count - self._seen_before.get(name, 0) for name, count in self.dataset.out_of_range().items()}
        return {name: count for name, count in found.items() if count}

    def _file_traffic(self) -> dict[str, int]:
        """Bytes of files read and written. Nothing if no rows lie in files, or if they are used in place: then what the
        system reads is not known, and 0 would be wrong."""
        if self.config.tier.host == "memory" or self.components.embeddings.policy.misses == "host":
            return {}
        return {f"host_{name}": size for name, size in self.loop.file_bytes.items()}

    def _sinks(self, stream: TextIO | None) -> list[Sink]:
        if not self.ranks.is_first:
            return []
        sinks: list[Sink] = [MetricsFile(self.directory.metrics)]
        steps, samples = self.recorder.steps, self.recorder.samples
        if self.config.tensorboard:
            rows, directory = table_rows(self.components), self.directory.tensorboard
            if self.left:
                sinks.append(TensorBoardView.resumed(directory, rows, self.directory.metrics, steps))
            else:
                sinks.append(TensorBoardView(directory, list(rows), list(rows.values())))
        sinks += make_loggers(self.config.log_to, self.directory.path, self.config.model_dump(mode="json"))
        if stream is not None:
            total = total_steps(self.config, self.dataset)
            sinks.append(Progress(stream, total, first_step=steps, first_samples=samples))
        return sinks


def total_steps(config: TrainConfig, dataset: Dataset) -> int | None:
    """Steps of the whole run, or None if they are not known before the data are read."""
    samples = dataset.num_train_samples()
    if samples is None:
        return config.steps
    return min(config.epochs * -(-samples // config.batch_size), config.steps or sys.maxsize)


def quality_numbers(found: Evaluation) -> dict[str, Any]:
    numbers = asdict(found)
    if found.gauc_groups is None:  # nobody asked
        del numbers["gauc"], numbers["gauc_groups"]
    if not found.labels:
        del numbers["labels"]
    return {"auc_of": "evaluation", "eval_samples": numbers.pop("samples"), **numbers}


def group_feature(name: str | None, features: Sequence[str], setting: str = "eval_by=") -> int | None:
    """Position of the feature by which samples are grouped for GAUC.

    Raises:
        ConfigError: if there is none of that name.
    """
    if name is not None and name not in features:
        raise ConfigError(f"{setting}{name}: the data have no such feature; there are: {', '.join(features)}")
    return None if name is None else features.index(name)


def _point(record: EvalRecord) -> dict[str, Any]:
    """A point of the curves of quality over steps."""
    return {name: getattr(record, name) for name in ("step", "samples", "auc", "log_loss", "accuracy")}


def table_rows(components: Components) -> dict[str, int]:
    return {table.name: table.num_embeddings for table in components.tables}
