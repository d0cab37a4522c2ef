"""`simulate`: compare policies and device sizes over the ids of a data set.

The data are read once for all policies that take batches as they come. A policy that arranges its inputs gets a
separate stream. In memory at a time are a chunk of batches, the records and slots of every run, and the trace for
Belady's bound. Rows have no values, so nothing is skipped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from pydantic import ValidationError

from adaptive.batch import Batch
from adaptive.config import TierConfig, TrainConfig, explain
from adaptive.counters import Counter
from adaptive.data.dataset import Changed, Dataset, Feature, tables_of
from adaptive.data.rows.batcher import Fitted
from adaptive.data.rows.vocabularies import KeyCounter
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.planning.sizing import held_rows, row_bytes
from adaptive.errors import ConfigError
from adaptive.optim import row_optimizer
from adaptive.plugins import make_policy, with_rule
from adaptive.studies.simulated_run import OnProgress, Setup, SharedTrace, SimulatedRun, least_device_rows
from adaptive.training.components import first_batches, open_data, prepare, study_tables
from adaptive.training.telemetry.formatting import Document, Items, Note, Table, bytes_text, count_text, percent_text

SCHEMA: Final = 1
READ_AHEAD: Final = 2  # of the samples in `steps`: policies that leave inputs out read more than they train
Case = tuple[str, TrainConfig]  # the policy as the user wrote it, and its settings


@dataclass(frozen=True)
class FailedRun:
    """A run that did not finish; policy and size are as the user wrote them."""

    policy: str
    size: str
    device_rows: int
    error: str


@dataclass(frozen=True)
class PolicyForecast:
    """One policy with one device size, as the user wrote them; totals over all batches.

    Attributes:
        belady_row_hit_rate: upper bound for any policy.
        popular_input_share: share of samples that found all their rows on the device.
        skips_unknown: see `SimulatedRun`.
        policy_numbers: numbers that the policy reports.
    """

    policy: str
    size: str
    device_rows: int
    device_share: float
    device_bytes: int
    hit_rate: float | None
    row_hit_rate: float | None
    belady_row_hit_rate: float | None
    popular_input_share: float | None
    fetched_rows: int
    written_back_rows: int
    bytes_h2d: int
    bytes_d2h: int
    skips_unknown: bool
    policy_numbers: Mapping[str, float]
    lookups_per_s: float


@dataclass(frozen=True)
class Simulation:
    """The object that `adaptive-train simulate --json` prints.

    Attributes:
        least_device_rows: enough for all batches under policies that prefetch misses; None if unknown.
    """

    schema: int
    lookups: int
    distinct_rows: int
    batches: int
    rows: int
    row_bytes: int
    table_bytes: int
    depth: int
    lookups_per_s: float | None
    least_device_rows: int | None
    runs: Sequence[PolicyForecast]
    failed: Sequence[FailedRun]


def simulate(
    cases: Sequence[Case],
    sizes: Sequence[str],
    *,
    embedding_dim: int = 16,
    on_progress: OnProgress = lambda batches, total: None,
) -> Simulation:
    """Predict hit rates and traffic of every policy at every device size.

    Args:
        cases: settings that differ only in the policy.
        sizes: device rows, as in `tier.device_rows`; a policy with a fixed size gets that one.
        embedding_dim: width of a row.
        on_progress: called with planned batches and, if known, their total.

    Raises:
        AdaptiveError: for bad settings or data, or if no run finished.
    """
    _check(cases, sizes)
    config = cases[0][1]
    most = None if config.steps is None else READ_AHEAD * config.steps * config.batch_size
    dataset = number_keys(open_data(config), most)
    (group,) = make_groups(study_tables(config, dataset, embedding_dim), config.seed)
    held = config.tier.held_rows or held_rows(first_batches(config, dataset), config.depth)
    tier = config.tier.model_copy(update={"held_rows": held})
    setup = Setup(group, row_optimizer(config.optimizer), tier, config.depth)
    streams = _streams(setup, cases, sizes)
    sample = prepare([run.policy for stream in streams for _, _, run in stream.runs], config, dataset)
    for stream in streams:
        for _, _, run in stream.runs:
            run.calibrate(sample)
        stream.read(dataset, config, on_progress)
    _refuse_failure(streams)
    return _result(setup, streams)


def _check(cases: Sequence[Case], sizes: Sequence[str]) -> None:
    if not cases or not sizes:
        raise ConfigError(f"simulate: expected policies and device sizes, got {len(cases)} and {len(sizes)}")
    for size in sizes:
        try:
            TierConfig.model_validate({"device_rows": size})
        except ValidationError as error:
            raise ConfigError(explain(TierConfig, error)) from error


def _streams(setup: Setup, cases: Sequence[Case], sizes: Sequence[str]) -> list[SharedTrace]:
    runs = [(label, size, _run(setup, config, size)) for label, config in cases for size in _sizes_for(config, sizes)]
    shared = [entry for entry in runs if not entry[2].arranges]
    alone = [SharedTrace([entry], setup) for entry in runs if entry[2].arranges]
    return [SharedTrace(shared, setup), *alone] if shared else alone


def _run(setup: Setup, config: TrainConfig, size: str) -> SimulatedRun:
    policy = make_policy(config.policy, config.policy_options)
    skip = with_rule(policy, config.skip)
    return SimulatedRun(setup, policy, size, skip)


def _sizes_for(config: TrainConfig, sizes: Sequence[str]) -> Sequence[str]:
    fixed = make_policy(config.policy, config.policy_options).device_rows
    return sizes if fixed is None else [fixed]


def _refuse_failure(streams: Sequence[SharedTrace]) -> None:
    """Raise the error of the run with the most device rows if no run finished."""
    runs = [run for stream in streams for _, _, run in stream.runs]
    if any(run.error is None for run in runs):
        return
    error = max(runs, key=lambda run: run.num_slots).error
    assert error is not None
    least = least_device_rows(streams)
    enough = "" if least is None else f" {least:,} device rows are enough for all batches."
    raise type(error)(f"{error}{enough}") from error


def _result(setup: Setup, streams: Sequence[SharedTrace]) -> Simulation:
    entries = [(stream, *entry) for stream in streams for entry in stream.runs]
    planned = sum(int(run.tally[:, Counter.LOOKUPS].sum()) for _, _, _, run in entries)
    seconds = sum(stream.seconds for stream in streams) + sum(run.seconds for _, _, _, run in entries)
    size, first = row_bytes(setup.group, setup.optimizer), streams[0]
    return Simulation(
        schema=SCHEMA,
        lookups=first.lookups,
        distinct_rows=first.trace.num_uses,
        batches=first.batches,
        rows=setup.group.num_rows,
        row_bytes=size,
        table_bytes=size * setup.group.num_rows,
        depth=setup.depth,
        lookups_per_s=planned / seconds if seconds else None,
        least_device_rows=least_device_rows(streams),
        runs=[_forecast(setup, *entry) for entry in entries if entry[3].error is None],
        failed=[
            FailedRun(label, size, run.num_slots, str(run.error))
            for _, label, size, run in entries
            if run.error is not None
        ],
    )


def _forecast(setup: Setup, stream: SharedTrace, label: str, size: str, run: SimulatedRun) -> PolicyForecast:
    total = dict(zip(Counter, run.tally.sum(0).tolist(), strict=True))
    lookups, rows = total[Counter.LOOKUPS], total[Counter.UNIQUE_ROWS]

    return PolicyForecast(
        label,
        size,
        device_rows=run.num_slots,
        device_share=run.num_slots / setup.group.num_rows,
        device_bytes=run.num_slots * row_bytes(setup.group, setup.optimizer),
        hit_rate=total[Counter.LOOKUP_HITS] / lookups if lookups else None,
        row_hit_rate=total[Counter.ROW_HITS] / rows if rows else None,
        belady_row_hit_rate=stream.trace.best_hit_rate(run.num_slots, bypass=not run.staged),
        popular_input_share=run.popular / run.samples if run.samples else None,
        fetched_rows=total[Counter.FETCHED],
        written_back_rows=total[Counter.WRITTEN_BACK],
        bytes_h2d=total[Counter.BYTES_H2D],
        bytes_d2h=total[Counter.BYTES_D2H],
        skips_unknown=run.skips_unknown,
        policy_numbers=PolicyCaller(run.policy).reported(),
        lookups_per_s=lookups / (run.seconds + stream.seconds),
    )


READ_SAMPLES = 16_384


def number_keys(dataset: Dataset, most: int | None = None) -> Dataset:
    """Return the data set with a row for each key, the most frequent first; itself if it has no keys.

    Reads the training part once. Keys get their rows at once and never lose them, and any number of keys has rows.

    Args:
        most: samples to read, at least; keys that only later ones have share a row.
    """
    tables = tables_of(dataset)
    keyed = [(position, table) for position, table in enumerate(tables) if table in dataset.key_rules]
    if not keyed:
        return dataset
    counters, num_read = {table: KeyCounter() for _, table in keyed}, 0
    for batch in dataset.train(READ_SAMPLES):
        for position, table in keyed:
            keys = batch.ids[batch.feature_span(position)]
            counters[table].add(keys, np.ones(len(keys), np.bool_))
        num_read += batch.num_samples
        if most is not None and num_read >= most:
            break
    rows = {table: Fitted(counter.vocabulary(1)) for table, counter in counters.items()}

    def numbered(batch: Batch) -> Batch:
        ids = batch.ids.copy()
        for position, table in keyed:
            span = batch.feature_span(position)
            rows[table].fill(batch.ids[span], np.ones(span.stop - span.start, np.bool_), ids[span])
        return replace(batch, ids=ids).mark_unshared()

    result = Changed(dataset, numbered)
    result.features = tuple(
        Feature(feature.name, rows[table].num_embeddings) if table in rows else feature
        for feature, table in zip(dataset.features, tables, strict=True)
    )
    result.key_rules = {}
    return result


LEGEND: Final = (
    "lookup hits: lookups whose row was on the device when their batch was planned. row hits: the same for each "
    "batch's distinct rows. row hits, Belady: upper bound of row hits (not of lookup hits) for any policy. popular: "
    "inputs all of whose rows were on the device. to device, to host: bytes per batch."
)
UNKNOWN: Final = (
    "updates are skipped or deferred by their size, which ids do not show. The numbers are those of a run that skips "
    "nothing"
)
Column = tuple[str, Callable[[PolicyForecast], str]]


def simulation_document(result: Simulation) -> Document:
    """A line about the data, a table with a line per policy and device size, and remarks."""
    head = (
        f"{count_text(result.lookups)} lookups of {count_text(result.batches)} batches, "
        f"{count_text(result.rows)} rows of {result.row_bytes} bytes ({bytes_text(result.table_bytes)}), "
        f"depth {result.depth}; planned at {count_text(result.lookups_per_s)} lookups/s"
    )
    columns = _columns(result)
    rows = [[title for title, _ in columns], *([text(run) for _, text in columns] for run in result.runs)]
    table = [Table(rows, keys=2)] if result.runs else []
    moving = ", ".join(dict.fromkeys(run.policy for run in result.runs if run.skips_unknown))
    notes = [
        *(f"{failed.policy} with {failed.size} device rows: {failed.error}" for failed in result.failed),
        *([f"{moving}: {UNKNOWN}"] if moving else []),
        *_advice(result),
    ]
    return Document([Note(head), *table, Note(LEGEND), Items(notes)])


def _columns(result: Simulation) -> list[Column]:
    return [
        ("policy", lambda run: run.policy),
        ("device rows", lambda run: count_text(run.device_rows)),
        ("of rows", lambda run: percent_text(run.device_share)),
        ("lookup hits", lambda run: percent_text(run.hit_rate)),
        ("row hits", lambda run: percent_text(run.row_hit_rate)),
        ("row hits, Belady", lambda run: percent_text(run.belady_row_hit_rate)),
        ("popular", lambda run: percent_text(run.popular_input_share)),
        ("to device", lambda run: bytes_text(run.bytes_h2d / result.batches)),
        ("to host", lambda run: bytes_text(run.bytes_d2h / result.batches)),
    ]


def _advice(result: Simulation) -> list[str]:
    """The smallest device tier that works."""
    least = result.least_device_rows
    if least is None:
        return []
    return [
        f"least device rows for policies that prefetch misses: {count_text(least)} "
        f"({percent_text(least / result.rows)}), which batches in flight hold at depth {result.depth}"
    ]
