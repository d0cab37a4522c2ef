"""`simulate`: policies and device sizes side by side over the ids of a data set.

The data are read once for all policies that take batches as they come; a policy that arranges its inputs has a
stream of its own. What is in memory at a time: `CHUNK` batches, the records and slots of every run, and the trace
for Belady's bound.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from adaptive.batch import Batch
from adaptive.build import build_tables, first_batches, open_data
from adaptive.config import TierConfig, TrainConfig
from adaptive.counters import Counter
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError, InputError, PolicyError
from adaptive.policy import make_policy
from adaptive.rows.optim import row_optimizer
from adaptive.simulate.machine import Machine, Traffic, step_ms
from adaptive.simulate.run import Setup, SimulatedRun, checked
from adaptive.simulate.trace import Trace
from adaptive.tiers.distinct import DistinctFinder
from adaptive.tiers.layout import make_groups
from adaptive.tiers.sizing import held_rows, row_bytes

SCHEMA: Final = 1
CHUNK: Final = 32  # batches that one run plans before the next run does: its books stay in the processor's cache

Case = tuple[str, TrainConfig]  # the policy as the user wrote it, and the settings with that policy
Told = Callable[[int], None]  # how many batches have been planned


@dataclass
class Stream:
    """Runs that see the same batches, and the trace of those."""

    runs: list[tuple[str, str, SimulatedRun]]  # policy and device size as written
    setup: Setup
    trace: Trace = field(init=False)
    lookups: int = 0
    batches: int = 0
    seconds: float = 0.0  # spent on distinct rows and the trace

    def __post_init__(self) -> None:
        self.trace = Trace(self.setup.group.num_rows)
        self._finder = DistinctFinder(self.setup.group)

    def read(self, dataset: Dataset, config: TrainConfig, told: Told) -> None:
        """Plan the batches that training with `config` would train."""
        for epoch in range(config.epochs):
            left = None if config.steps is None else config.steps - self.batches
            if left == 0 or self.is_over:
                break
            self._read_epoch(islice(dataset.train(config.batch_size, epoch=epoch), left), told)
            for _, _, run in self.runs:
                run.end_epoch()
        if not self.batches and not self.is_over:
            raise InputError(f"data {config.data}: no training samples")

    @property
    def is_over(self) -> bool:
        """No run can go on."""
        return all(run.error for _, _, run in self.runs)

    def _read_epoch(self, batches: Iterator[Batch], told: Told) -> None:
        (_, _, first), size = self.runs[0], CHUNK
        if first.arranges:  # it may ask where rows lie now, so it must not be ahead of the plan
            batches, size = first.arranged(batches), 1
        while not self.is_over:
            try:
                chunk = list(islice(batches, size))
            except PolicyError as error:  # of `arrange`, so of the only run of this stream
                first.error = error
                break
            if not chunk:
                break
            self._plan(chunk)
            told(self.batches)

    def _plan(self, chunk: Sequence[Batch]) -> None:
        started = time.perf_counter()
        found = [self._finder.find(checked(batch, self.setup.group)) for batch in chunk]
        for distinct in found:
            self.trace.add(distinct.rows)
            self.lookups += len(distinct.inverse)
        self.batches += len(chunk)
        self.seconds += time.perf_counter() - started
        for _, _, run in self.runs:
            for batch, distinct in zip(chunk, found, strict=True):
                run.add(batch, distinct)


def simulate(
    cases: Sequence[Case], sizes: Sequence[str], machine: Machine, *, embedding_dim: int = 16, told: Told | None = None
) -> dict[str, Any]:
    """Hit rates, moved bytes, Belady's bound and modelled step times of every policy at every device size.

    Args:
        cases: settings that differ in the policy only.
        sizes: device rows, as in `tier.device_rows`; a policy that fixes its size is run at that one.
        machine: for the modelled times.
        embedding_dim: width of a row.
        told: called now and then.

    Returns:
        What `adaptive-train simulate --json` prints.

    Raises:
        AdaptiveError: for bad settings or data, or if no run came to its end. What stops one run is told as its
            `error`.
    """
    _check(cases, sizes)
    config = cases[0][1]
    dataset = open_data(config)
    sample = first_batches(config, dataset)
    (group,) = make_groups(build_tables(dataset, embedding_dim), config.seed)
    held = config.tier.held_rows or held_rows(sample, config.depth)
    tier = config.tier.model_copy(update={"held_rows": held})
    setup = Setup(group, row_optimizer(config.optimizer), tier, config.depth)
    streams = _streams(setup, cases, sizes)
    for stream in streams:
        with ExitStack() as listening:
            for _, _, run in stream.runs:
                run.calibrate(sample[: config.calibration_batches])
                if run.error is None:
                    listening.enter_context(run.referee.listening())
            stream.read(dataset, config, told or (lambda batches: None))
    _refuse_failure(streams)
    return _result(setup, streams, machine)


def _check(cases: Sequence[Case], sizes: Sequence[str]) -> None:
    if not cases or not sizes:
        raise ConfigError("simulate: needed at least one policy and one device size")
    for size in sizes:
        try:
            TierConfig(device_rows=size)
        except ValidationError as error:
            raise ConfigError(f"device rows: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _streams(setup: Setup, cases: Sequence[Case], sizes: Sequence[str]) -> list[Stream]:
    runs = [
        (label, size, SimulatedRun(setup, make_policy(config.policy, config.policy_options), size))
        for label, config in cases
        for size in _sizes_for(config, sizes)
    ]
    shared = [entry for entry in runs if not entry[2].arranges]
    own = [Stream([entry], setup) for entry in runs if entry[2].arranges]
    return [Stream(shared, setup), *own] if shared else own


def _sizes_for(config: TrainConfig, sizes: Sequence[str]) -> Sequence[str]:
    fixed = make_policy(config.policy, config.policy_options).device_rows
    return sizes if fixed is None else [fixed]


def _refuse_failure(streams: Sequence[Stream]) -> None:
    errors = [run.error for stream in streams for _, _, run in stream.runs]
    first = errors[0]
    if all(errors) and first is not None:
        raise first


def _result(setup: Setup, streams: Sequence[Stream], machine: Machine) -> dict[str, Any]:
    runs = [run for stream in streams for _, _, run in stream.runs]
    planned = sum(int(run.tally[:, Counter.LOOKUPS].sum()) for run in runs)
    seconds = sum(stream.seconds for stream in streams) + sum(run.seconds for run in runs)
    size = row_bytes(setup.group, setup.optimizer)
    return {
        "schema": SCHEMA,
        "lookups": streams[0].lookups,
        "distinct_rows": streams[0].trace.num_uses,
        "batches": streams[0].batches,
        "rows": setup.group.num_rows,
        "row_bytes": size,
        "table_bytes": size * setup.group.num_rows,
        "depth": setup.depth,
        "lookups_per_s": planned / seconds if seconds else None,
        "machine": {
            "link_bytes_per_s": machine.link,
            "device_bytes_per_s": machine.device,
            "host_bytes_per_s": machine.host,
            "dense_ms": machine.dense_ms,
        },
        "runs": [
            _run_facts(setup, stream, label, size_text, run, machine)
            for stream in streams
            for label, size_text, run in stream.runs
        ],
    }


def _run_facts(
    setup: Setup, stream: Stream, label: str, size_text: str, run: SimulatedRun, machine: Machine
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "policy": label,
        "size": size_text,
        "device_rows": run.num_slots,
        "device_share": run.num_slots / setup.group.num_rows,
        "device_bytes": run.num_slots * row_bytes(setup.group, setup.optimizer),
        "error": None if run.error is None else _without_policy(run),
    }
    names = (
        "hit_rate row_hit_rate belady_hit_rate popular_input_share fetched_rows written_back_rows bytes_h2d bytes_d2h "
        "lookups_per_s step_ms"
    )
    if run.error is not None:
        return facts | dict.fromkeys(names.split())
    total = dict(zip(Counter, run.tally.sum(0).tolist(), strict=True))
    lookups, rows = total[Counter.LOOKUPS], total[Counter.UNIQUE_ROWS]
    return facts | {
        "hit_rate": total[Counter.LOOKUP_HITS] / lookups if lookups else None,
        "row_hit_rate": total[Counter.ROW_HITS] / rows if rows else None,
        "belady_hit_rate": stream.trace.best_hit_rate(run.num_slots, bypass=not run.staged),
        "popular_input_share": run.popular / run.samples if run.samples else None,
        "fetched_rows": total[Counter.FETCHED],
        "written_back_rows": total[Counter.WRITTEN_BACK],
        "bytes_h2d": total[Counter.BYTES_H2D],
        "bytes_d2h": total[Counter.BYTES_D2H],
        "lookups_per_s": lookups / (run.seconds + stream.seconds),
        "step_ms": step_ms(_traffic(setup, run), machine, staged=run.staged),
    }


def _without_policy(run: SimulatedRun) -> str:
    """What stopped a run, in words that are the same for every policy that it would stop."""
    return str(run.error).replace(f" (policy {type(run.policy).__name__})", "")


def _traffic(setup: Setup, run: SimulatedRun) -> Traffic:
    sums = dict(zip(Counter, np.asarray(run.tally.sum(0) / run.batches).tolist(), strict=True))
    return Traffic(
        lookups=sums[Counter.LOOKUPS],
        lookup_hits=sums[Counter.LOOKUP_HITS],
        rows=sums[Counter.UNIQUE_ROWS],
        row_hits=sums[Counter.ROW_HITS],
        vectors=run.samples * len(setup.group.features) / run.batches,
        host_vectors=run.host_vectors / run.batches,
        fetched=sums[Counter.FETCHED],
        written_back=sums[Counter.WRITTEN_BACK],
        value_bytes=4 * setup.group.embedding_dim,
        row_bytes=row_bytes(setup.group, setup.optimizer),
    )
