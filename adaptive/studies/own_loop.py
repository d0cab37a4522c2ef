"""Records, comparisons and simulations of a custom loop and custom batches (docs/how-to/own-loop.md).

They call the functions behind the commands with the parts of the loop.
"""

import contextlib
import hashlib
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from adaptive.batch import Batch, as_batch, in_order
from adaptive.config import OptimizerConfig, SkipConfig, TableConfig, TrainConfig
from adaptive.data.dataset import Dataset, Feature
from adaptive.embeddings.planned_batch import LookAhead, Planned
from adaptive.embeddings.planning.layout import feature_order, make_groups_without_keys
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.plugins import parse_policy
from adaptive.policy import arranges, inputs_of
from adaptive.storage.run_directory import RunDirectory
from adaptive.studies.compare.comparison_report import comparison_document
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.verdicts import judge
from adaptive.studies.simulation import simulate_group, simulation_document
from adaptive.training.evaluation import Evaluation
from adaptive.training.quality import StreamingAUC, StreamingLogLoss, exact_auc
from adaptive.training.telemetry.jsonl import MetricsFile
from adaptive.training.telemetry.progress import Progress
from adaptive.training.telemetry.record import RunRecord, RunTotals, table_counts
from adaptive.training.telemetry.recorder import Recorder, Sink
from adaptive.training.telemetry.report import RunSummary, details_text, run_text
from adaptive.training.telemetry.tensorboard import TensorBoardView

Trained = tuple[TieredEmbeddingBag, ArrayLike, ArrayLike]
Batches = Sequence[Batch] | Callable[[], Iterable[Batch]]


def compare_policies(
    train: Callable[..., Trained],
    policies: Sequence[str] | Mapping[str, Mapping[str, Any]],
    *,
    seeds: int = 3,
    first_seed: int = 0,
    auc_budget: float = 0.0005,
    on_progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train with each policy and seed, and compare the policies.

    Verdicts are those of `adaptive-train compare`. Policies that skip nothing must train the same rows, bit for bit.
    For the others, the difference is the cost of skipping, with a confidence interval over seeds.

    Args:
        train: called as `train(seed=0, policy="lfu")`, and with `skip="defer"` if there is a rule; the arguments are
            those of `TieredEmbeddingBag`. For one seed it must train on the same data. It returns (embeddings, logits
            (n,), labels (n,)); logits and labels are of the same samples for all policies. The embeddings are closed
            afterwards.
        policies: names, with a skip rule as in `lfu+skip=defer`; or label -> arguments of `train`. The first that skips
            nothing is the control.
        seeds: training runs per policy.
        first_seed: seed of the first run.
        auc_budget: AUC that a policy may lose.
        on_progress: called with a line before each training.

    Returns:
        The object that `adaptive-train compare --json` prints; `table` is its text.

    Raises:
        ConfigError: without policies or seeds. An error of `train` ends only that run and is listed in `problems`.
    """
    if not policies or seeds < 1:
        raise ConfigError(f"compare_policies: expected policies and seeds, got {len(policies)} and {seeds}")
    named = policies if isinstance(policies, Mapping) else {label: _arguments_of(label) for label in policies}
    outcomes = []
    for seed in range(first_seed, first_seed + seeds):
        for label, arguments in named.items():
            on_progress(f"seed {seed}, {label}")
            outcomes.append(_outcome(train, label, seed, arguments))
    comparison = judge(outcomes, auc_budget=auc_budget)
    return {**asdict(comparison), "table": comparison_document(comparison).to_text()}


def _arguments_of(label: str) -> dict[str, str]:
    """Return arguments of `TieredEmbeddingBag`: `lfu+skip=defer` -> policy and skip."""
    policy, parameters, rule = parse_policy(label)
    policy = "+".join([policy, *(f"{name}={value}" for name, value in parameters.items())])
    return {"policy": policy} if rule is None else {"policy": policy, "skip": rule}


def _outcome(train: Callable[..., Trained], label: str, seed: int, arguments: Mapping[str, object]) -> Outcome:
    started = time.perf_counter()
    try:
        embeddings, logits, labels = train(seed=seed, **arguments)
        with embeddings:
            scores = np.stack([np.asarray(logits, np.float32), np.asarray(labels, np.float32)])
            return Outcome(
                label,
                seed,
                run_dir="",
                arranges=arranges(embeddings.policy),
                summary=_summary(label, embeddings, scores, time.perf_counter() - started),
                bits=_digest(embeddings, scores[0]),
            )
    except Exception as error:  # any error ends only this run
        traceback.clear_frames(error.__traceback__)
        return Outcome(label, seed, "", error=error)


def _summary(label: str, embeddings: TieredEmbeddingBag, scores: np.ndarray, seconds: float) -> dict[str, Any]:
    """Return the summary of a run with these logits and labels, (2, n)."""
    bins, log_loss, totals, statistics = StreamingAUC(), StreamingLogLoss(), RunTotals(), embeddings.statistics
    bins.update(*scores)
    log_loss.update(*scores)
    totals.tables = table_counts(["all"], statistics.counts()[None, :])
    totals.steps, totals.samples, totals.seconds = statistics.batches_trained, scores.shape[1], seconds
    inputs, dropped = inputs_of(embeddings.rule)
    quality = {"auc": exact_auc(*scores), "log_loss": log_loss.value(), "accuracy": bins.accuracy()}
    return RunSummary.of(
        label,
        totals,
        {**quality, "auc_of": "evaluation", "eval_samples": scores.shape[1]},
        samples=inputs,
        samples_per_s=None,
        samples_per_s_later=None,
        time_ms={"training and scoring": 1000 * seconds / max(statistics.batches_trained, 1)},
        skipped_input_share=dropped / inputs if dropped else 0.0,
    ).to_json()


def _digest(embeddings: TieredEmbeddingBag, logits: np.ndarray) -> str:
    """Digest of all rows and predictions; equal exactly if two runs agree bit for bit."""
    digest = hashlib.sha256(logits.tobytes())
    for name in sorted(embeddings.table_names):
        for block in embeddings.rows.table_blocks(name):
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def simulate_policies(
    batches: Batches,
    tables: Sequence[TableConfig],
    policies: Sequence[str] = ("lru", "lfu"),
    device_rows: Sequence[str] = ("1%", "5%", "10%", "20%"),
    *,
    depth: int = 4,
    optimizer: str = "adagrad",
) -> dict[str, Any]:
    """Predict hit rates, traffic and Belady's bound, without row values.

    Args:
        batches: read several times in the same order: a list, or a function that returns them from the start.
        tables: of one width and one `lr_scale`; simulate others separately.
        policies: names, with a skip rule as in `lfu+skip=defer`.
        device_rows: as in `TierConfig.device_rows`.
        depth: batches of look-ahead.
        optimizer: `sgd`, `adagrad`, `rowwise_adagrad`, `adam` or `ftrl`; determines the size of a row with its state.

    Returns:
        The object that `adaptive-train simulate --json` prints; `table` is its text.

    Raises:
        ConfigError: for tables of several widths, or batches that can be read only once.
    """
    groups = make_groups_without_keys(tables, 0)
    if len(groups) != 1:
        widths = ", ".join(f"{group.embedding_dim} (lr_scale {group.lr_scale:g})" for group in groups)
        raise ConfigError(f"simulate_policies: expected tables of one width, got {widths}. Simulate each alone")
    dataset = _CustomBatches(batches, tables)
    rows = OptimizerConfig.model_validate({"name": optimizer})
    cases = []
    for label in policies:
        policy, parameters, rule = parse_policy(label)
        skip = None if rule is None else SkipConfig(rule=rule)
        options = TrainConfig(policy=policy, policy_options=parameters, skip=skip, depth=depth, optimizer=rows)
        cases.append((label, options))
    simulation = simulate_group(cases, list(device_rows), (dataset, groups[0]))
    return {**asdict(simulation), "table": simulation_document(simulation).to_text()}


class _CustomBatches(Dataset):
    """Batches as a data set without evaluation samples."""

    def __init__(self, batches: Batches, tables: Sequence[TableConfig]) -> None:
        if not callable(batches) and isinstance(batches, Iterator):
            raise ConfigError(
                "simulate_policies: expected a list of batches, or a function that returns them from the start, got an "
                "iterator. They are read several times"
            )
        rows = {name: table.num_embeddings for table in tables for name in table.feature_names}
        self._batches, self._order = batches, feature_order(tables)
        self.features = tuple(Feature(name, rows[name]) for name in self._order)
        self.num_dense = 0

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        batches = self._batches() if callable(self._batches) else self._batches
        return (as_batch(in_order(batch, self._order)).unshared() for batch in batches)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return iter(())

    def num_train_samples(self) -> int | None:
        return None

    def fingerprint(self) -> dict[str, object]:
        return {"kind": "custom batches"}


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
                if self._recorder.is_due():
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
