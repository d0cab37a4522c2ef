"""`Run`: train, save, evaluate and report in a run directory."""

import contextlib
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TextIO

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.data.open import BUILT_IN
from adaptive.data.rows.followed_folder import FollowedFolder
from adaptive.distributed.sharded_embedding_bag import ShardedEmbeddingBag
from adaptive.errors import ConfigError, InputError, RanksError
from adaptive.plugins import code_flags
from adaptive.policy import InputRule, SkipRule, inputs_of
from adaptive.storage.checkpoint import Checkpoint
from adaptive.storage.run_directory import RunDirectory, newest_first
from adaptive.system import StopRequest, stop_request
from adaptive.training.components import Components, set_rates, total_samples
from adaptive.training.evaluation import Evaluation, evaluate
from adaptive.training.runs.distributed import AgreedStop, checkpoints_of, path_of_first, require_shared_directory
from adaptive.training.runs.following import MOST_JUDGED, FollowLoop, quality_of_files
from adaptive.training.runs.loop import DataPosition, Loop
from adaptive.training.runs.state import SavedProgress, content, restore_recorder
from adaptive.training.sharded_trainer import ShardedTrainer
from adaptive.training.telemetry.formatting import policy_text
from adaptive.training.telemetry.jsonl import MetricsFile
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.record import EvalRecord, ResumeRecord, RunRecord
from adaptive.training.telemetry.recorder import Recorder, Sink
from adaptive.training.telemetry.report import RunSummary, details_text, run_text
from adaptive.training.telemetry.tensorboard_view import TensorBoardView
from adaptive.training.trainer import Trainer

FEW_STEPS: Final = 50  # in an epoch: a warning
ENOUGH_STEPS: Final = 100  # in an epoch: the batch size that the warning suggests
LEAST_BATCH: Final = 16
QUALITY_OF: Final = ("step", "samples", "auc", "log_loss", "accuracy")  # of an evaluation, in the summary
WORK_OF: Final = ("step", "samples_read", "seconds", "cpu_seconds")


def code_of(config: TrainConfig) -> dict[str, str | None]:
    """The settings that may name code: key -> value."""
    return {"policy": config.policy, "skip.rule": config.skip.rule if config.skip else None, "model": config.model}


def resume_command(directory: Path, config: TrainConfig) -> str:
    """The command that resumes the run, with its custom code named again."""
    return f"adaptive-train run --resume {shlex.quote(str(directory))}{code_flags(code_of(config))}"


def how_to_resume(directory: Path, config: TrainConfig) -> str:
    """Advice after a failure of a run on several ranks."""
    checkpoints = [path for path in newest_first(directory) if path.exists()] if directory.is_dir() else []
    if checkpoints:
        resume = resume_command(directory, config)
        return f"{checkpoints[0]} is complete. Resume from it on any number of ranks: {resume} --ranks N"
    return f"{directory} has no checkpoint yet (save_every={config.save_every}). Start the run again"


def steps_hint(config: TrainConfig, samples: int) -> str:
    """A warning if an epoch of file data has few steps; else an empty text.

    Args:
        samples: trained in all epochs.
    """
    cut_short = config.steps is not None or config.patience is not None or config.follow
    in_epoch = samples // config.epochs
    steps = -(-in_epoch // config.batch_size)
    wanted = 2 ** max(in_epoch // ENOUGH_STEPS, 1).bit_length() // 2
    if config.data in BUILT_IN or cut_short or steps >= FEW_STEPS or not LEAST_BATCH <= wanted < config.batch_size:
        return ""
    return (
        f"warning: an epoch has only {steps} steps ({in_epoch:,} samples, batch size {config.batch_size:,}), so the "
        f"AUC depends strongly on --seed. Try --batch-size {wanted} or more --epochs"
    )


def model_hint(config: TrainConfig, features: Sequence[str], num_dense: int) -> str:
    """A warning if one dot product is the only input of DLRM's top MLP; else an empty text."""
    options = config.model_options
    is_dot = options.get("interaction", "dot") == "dot"
    if config.model != "dlrm" or not is_dot or num_dense or len(features) != 2:
        return ""
    return (
        f"warning: without dense inputs, the model dlrm reduces {' and '.join(features)} to one number: the dot "
        "product of their vectors. Try --model deepfm or --model dcn"
    )


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from, and the progress it holds."""

    where: Path  # the checkpoint
    checkpoint: Checkpoint
    reached: SavedProgress
    dropped: int  # records removed from metrics.jsonl: their batches are trained again
    damaged: Mapping[Path, str]  # newer checkpoints that could not be read -> reason


class Run:
    """A training run in its directory; `left` is the checkpoint of a resumed run."""

    def __init__(
        self,
        config: TrainConfig,
        directory: RunDirectory,
        dataset: Dataset,
        components: Components,
        stream: TextIO | None,
        left: ResumePoint | None = None,
    ) -> None:
        self.config, self.directory, self.dataset, self.components = config, directory, dataset, components
        self.left, self._stream, embeddings = left, stream, components.embeddings
        self._peers = embeddings.peers if isinstance(embeddings, ShardedEmbeddingBag) else None
        self._where = directory.path if self._peers is None else path_of_first(directory.path, self._peers)
        if self._peers is not None and config.save:
            require_shared_directory(self._where, self._peers)
        self._seen_before = dataset.out_of_range(), dataset.truncated()
        self._reached: Evaluation | None = None  # the evaluation that ended training
        self._total_samples = total_samples(config, dataset)
        self._table_rows = {table.name: table.num_embeddings for table in components.tables}
        self.recorder = Recorder(components.embeddings, log_every=config.log_every)
        if left:
            repeats = left.reached.place.is_evaluated_next(config.steps)
            restore_recorder(self.recorder, left.reached, left.checkpoint, left.where, repeats_evaluation=repeats)
        self.recorder.sinks = self._sinks()
        options: dict[str, Any] = {
            "recorder": self.recorder,
            "set_rates": partial(set_rates, config, components),
        }
        self.trainer: Trainer
        if isinstance(embeddings, ShardedEmbeddingBag):
            self.trainer = ShardedTrainer(embeddings, components.model, components.optimizer, **options)
        else:
            self.trainer = Trainer(embeddings, components.model, components.optimizer, **options)
        damaged = left.damaged if left else ()
        self.checkpoints = checkpoints_of(self._where, self._peers, keep=config.keep_checkpoints, damaged=damaged)

    def train(self, *, compile_s: float = 0.0) -> dict[str, Any]:
        """Train, save and evaluate; return the summary, with its texts `table` and `details`.

        `compile_s`: seconds in which kernels were compiled before.
        """
        features, path = [feature.name for feature in self.dataset.features], self.directory.path
        self._by = group_feature(self.config.eval_by, features)
        self._print(policy_text(self.config.policy, self.components.embeddings.policy, self.components.embeddings.rule))
        self._print(model_hint(self.config, features, self.dataset.num_dense))
        try:
            evaluation = self._train()
        except SystemExit:
            self._print_stopped()
            raise
        except RanksError as error:
            raise RanksError(f"{error}. {how_to_resume(self._where, self.config)}") from error
        summary = self._summary(evaluation)
        self.directory.finish(summary.to_json())
        summary.compile_s = compile_s  # no fact about the run
        totals, run = self.recorder.totals, shlex.quote(str(path))
        rows, misses = sum(self._table_rows.values()), self.components.embeddings.policy.misses
        text = run_text(summary, totals, rows=rows, misses=misses, run=run)
        if hint := steps_hint(self.config, summary.samples):
            text += f"\n{hint}\n"
        curves = f"   curves: tensorboard --logdir {shlex.quote(str(path.parent))}" if self.config.tensorboard else ""
        text += f"\n{path}{curves}\nmore: adaptive-train run ... --verbose (stages, tables, traffic)"
        return {**summary.to_json(), "table": text, "details": details_text(summary, totals, self._table_rows)}

    def _train(self) -> Evaluation | None:
        agreed = None if self._peers is None else AgreedStop(self._peers)
        with contextlib.closing(self.recorder), stop_request(agreed) as stop:
            if self.left is None or not self.directory.metrics.exists():
                text = json.dumps(self.config.model_dump(mode="json"), indent=1)
                self.recorder.write(RunRecord(policy=self.config.policy, table_rows=self._table_rows, config=text))
            if self.left:
                self.recorder.write(ResumeRecord(step=self.recorder.steps, dropped=self.left.dropped))
            place = self.left.reached.place if self.left else DataPosition()
            if isinstance(self.dataset, FollowedFolder):
                self.loop: Loop = FollowLoop(self.config, self.dataset, self.trainer, place)
            else:
                self.loop = Loop(self.config, self.dataset, self.trainer, place)
            if self.left:
                self.loop.file_bytes |= self.left.reached.file_bytes
            self.loop.run(stop, save=self._save, evaluate=lambda: self._ends_training(stop))
            if not (stop or self.recorder.steps):
                raise InputError(
                    f"expected training samples, got none (data {self.config.data}). Check the files and data.holdout."
                )
            if self.config.save:
                self.checkpoints.finish(self.loop.place.total, self._content())
            stop.raise_exit()
            evaluation = self._reached or (None if self.config.follow else self._evaluate(stop))
            stop.raise_exit()
        return evaluation

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):
            if self._stream is not None and text:
                self._stream.write(text + "\n")

    def _print_stopped(self) -> None:
        """Print how to resume a stopped run, below the progress line."""
        path = self.directory.path
        advice = f"saved; resume with: {resume_command(path, self.config)}"
        if not self.config.save:
            advice = "nothing was saved because save=false"
        self._print(f"stopped after step {self.recorder.steps}: {advice}")

    def _save(self) -> None:
        self.checkpoints.add(self.loop.place.total, self._content())

    def _content(self) -> Checkpoint:
        return content(self.components, self.recorder, self.loop)

    def _ends_training(self, stop: StopRequest) -> bool | None:
        """True if the evaluation ends training. None: a signal interrupted the evaluation."""
        evaluation = self._evaluate(stop)
        if evaluation is None:
            return None if stop else self._reached is not None
        if is_out_of_patience(self.config, self.recorder.evaluations):
            self._reached = evaluation
        return self._reached is not None

    def _evaluate(self, stop: StopRequest) -> Evaluation | None:
        """Return None if there is no evaluation part, or a signal stops the run."""
        batches = takewhile(lambda _: not stop, self.dataset.evaluation(self.config.eval_batch_size))
        evaluation = evaluate(
            self.components.embeddings,
            self.components.model,
            batches,
            by=self._by,
            keep_negatives=self.dataset.keep_negatives,
        )
        if stop or not evaluation.samples:
            return None
        if evaluation.auc is None and not any(record.auc is None for record in self.recorder.evaluations):
            does_nothing = f", and {goals} cannot compare evaluations" if (goals := _goals(self.config)) else ""
            self._print(f"warning: {one_class_text(evaluation)}, so there is no AUC{does_nothing}. Use other data.")
        self.recorder.write_evaluation(evaluation, file=self.loop.place.file_name)
        if self.config.follow:
            del self.recorder.evaluations[:-MOST_JUDGED]
        best = best_evaluation(self.recorder.evaluations)
        if self.config.save == "best" and best is not None and best.step == self.recorder.steps:
            self.checkpoints.keep_best(self.loop.place.total, self._content())
        return evaluation

    def _summary(self, evaluation: Evaluation | None) -> RunSummary:
        recorder, embeddings = self.recorder, self.components.embeddings
        seen, dropped = inputs_of(embeddings.rule)
        # Calibration reads ids that training reads again: they count once.
        read = self.dataset.out_of_range(), self.dataset.truncated()
        out_of_range, truncated = (
            {name: more for name, count in now.items() if (more := count - earlier.get(name, 0))}
            for now, earlier in zip(read, self._seen_before, strict=True)
        )
        # Files that a policy uses in place (misses=host) are read by the system: the bytes are unknown.
        counts_files = self.config.tier.host != "memory" and embeddings.policy.misses != "host"
        files = {f"host_{name}": self.loop.file_bytes[name] for name in ("bytes_read", "bytes_written")}
        quality = quality_of_training(recorder) if evaluation is None else quality_numbers(evaluation)
        fields: Sequence[str] = QUALITY_OF
        if self.config.follow:
            quality, fields = quality_of_files(recorder.evaluations), (*QUALITY_OF, "calibration", "file")
        return RunSummary.of(
            self.config.policy,
            recorder.totals,
            quality,
            evaluations=[_fields(record, *fields) for record in recorder.evaluations],
            evaluation_work=[_fields(record, *WORK_OF) for record in recorder.evaluations],
            skipped_input_share=dropped / seen if dropped else 0.0,
            **_weighted(recorder.totals.samples, seen, embeddings.rule),
            device_rows=embeddings.runtime.view.device_rows,
            seed=self.config.seed,
            rejected_lines=self.dataset.rejects(),
            out_of_range_ids=out_of_range,
            truncated_sequences=truncated,
            run_dir=str(self.directory.path),
            best=best_summary(self.config, recorder.evaluations),
            **(files if counts_files else {}),
            ranks=None if self._peers is None else self._peers.size,
            files=self.loop.place.epoch if self.config.follow else None,
        )

    def _sinks(self) -> list[Sink]:
        if not (self._peers is None or self._peers.is_first):
            return []
        sinks: list[Sink] = [MetricsFile(self.directory.metrics)]
        if self.config.tensorboard:
            tables, skips = (self.directory.tensorboard, self._table_rows), self.components.embeddings.rule is not None
            if self.left:
                metrics, step = self.directory.metrics, self.recorder.steps
                sinks.append(TensorBoardView.resumed(*tables, metrics, step, skips=skips))
            else:
                sinks.append(TensorBoardView(*tables, skips=skips))
        if self._stream is not None:
            sinks.append(Progress(self._stream, self._total_samples, self.recorder.totals))
        return sinks


def quality_numbers(evaluation: Evaluation) -> dict[str, Any]:
    """The evaluation as a part of the summary; GAUC only if it was evaluated."""
    numbers = asdict(evaluation)
    samples = numbers.pop("samples")
    if evaluation.gauc_groups is None:
        del numbers["gauc"], numbers["gauc_groups"]
    return {"auc_of": "evaluation", "eval_samples": samples, **numbers}


def one_class_text(evaluation: Evaluation) -> str:
    """Say that all evaluated samples have one label."""
    label = 0 if evaluation.calibration is None else 1
    return f"all {evaluation.samples:,} evaluated samples have label {label}"


def quality_of_training(recorder: Recorder) -> dict[str, Any]:
    """Quality on training batches, predicted before they were trained."""
    return {
        "auc_of": "training",
        "auc": recorder.auc.value(),
        "log_loss": recorder.log_loss.value(),
        "accuracy": recorder.auc.accuracy(),
        "eval_samples": 0,
    }


def group_feature(name: str | None, features: Sequence[str], setting: str = "eval_by") -> int | None:
    """Position of the feature that groups samples for GAUC; ConfigError if unknown."""
    if name is not None and name not in features:
        raise ConfigError(f"expected one of the features {', '.join(features)}, got {name} ({setting})")
    return None if name is None else features.index(name)


def _weighted(samples: int, seen: int, rule: SkipRule | None) -> dict[str, Any]:
    """Samples read, and what those trained are worth by their weights."""
    effective_share = rule.effective_share if isinstance(rule, InputRule) else 1.0
    return {
        "samples_read": seen or samples,
        "effective_samples": round(samples * effective_share),
        "weight_spread": math.sqrt(max(1 / effective_share - 1, 0.0)),
    }


def _fields(record: EvalRecord, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


# --- goals -----------------------------------------------------------------------------------------------------------


def best_evaluation(evaluations: Sequence[EvalRecord]) -> EvalRecord | None:
    """The first best evaluation by AUC; None without one."""
    return max((e for e in evaluations if e.auc is not None), key=lambda e: e.auc or 0.0, default=None)


def is_out_of_patience(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> bool:
    """True if at least `patience` evaluations came after the best one."""
    best = best_evaluation(evaluations)
    if config.patience is None or best is None:
        return False
    return sum(record.step > best.step for record in evaluations) >= config.patience


def best_summary(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> dict[str, Any] | None:
    """The best evaluation for the run's summary; None without `save=best` or `patience`."""
    best = best_evaluation(evaluations)
    if (config.save != "best" and config.patience is None) or best is None:
        return None
    return {
        "metric": "auc",
        "value": best.auc,
        "step": best.step,
        "saved": config.save == "best",  # the weights of this evaluation are
        "ended_by_patience": is_out_of_patience(config, evaluations),
    }


def _goals(config: TrainConfig) -> str:
    """The settings that compare evaluations: `save=best and patience=3`."""
    goals = [f"save={config.save}"] if config.save == "best" else []
    return " and ".join(goals + ([] if config.patience is None else [f"patience={config.patience}"]))


def refuse_unreachable(config: TrainConfig, dataset: Dataset) -> None:
    """Raise ConfigError for goals without evaluation data."""
    goals = _goals(config)
    if goals and next(dataset.evaluation(config.eval_batch_size), None) is None:
        raise ConfigError(
            f"expected data with an evaluation part, got {config.data} ({goals}). Set data.holdout, data.eval_data or "
            "data.time_split, or data.synthetic.num_eval for the built-in stream"
        )
