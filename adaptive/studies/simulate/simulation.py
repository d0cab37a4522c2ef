"""`simulate`: policies and device sizes side by side over the ids of a data set.

The data are read once for all policies that take batches as they come; a policy that arranges its inputs has a
stream of its own. What is in memory at a time: a chunk of batches, the records and slots of every run, and the trace
for Belady's bound.

What the runs of a simulation found, as `adaptive-train simulate --json` prints it.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from adaptive.config import TierConfig, TrainConfig
from adaptive.counters import Counter
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.embeddings.planning.policy_calls.caller import PolicyCaller
from adaptive.embeddings.planning.sizing import held_rows, row_bytes
from adaptive.errors import ConfigError, DeviceMemoryError
from adaptive.optim import row_optimizer
from adaptive.plugins import make_policy, with_rule
from adaptive.studies.simulate.simulated_run import Setup, SharedTrace, SimulatedRun, Told, least_device_rows
from adaptive.studies.step_model import Machine, Traffic, expected_ms, step_ms
from adaptive.system import StopRequest, stop_request
from adaptive.training.build import build_tables, dense_flops, first_batches, open_data, prepare

MachineOf = Callable[[float, int], Machine]
Case = tuple[str, TrainConfig]  # the policy as the user wrote it, and the settings with that policy


def simulate(
    cases: Sequence[Case],
    sizes: Sequence[str],
    machine: Machine | MachineOf,
    *,
    embedding_dim: int = 16,
    told: Told | None = None,
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Hit rates, moved bytes, Belady's bound and modelled step times of every policy at every device size.

    Args:
        cases: settings that differ in the policy only.
        sizes: device rows, as in `tier.device_rows`; a policy that fixes its size is run at that one.
        machine: for the modelled times; or a function that gives it, of the operations of the model's dense part for a
            sample and the batch size.
        embedding_dim: width of a row.
        told: called now and then.
        stop: signals set it while batches are planned. What is read by then is planned; policies that arrange their
            inputs, and so have batches of their own, are among the runs only if they saw all of these.

    Returns:
        What `adaptive-train simulate --json` prints.

    Raises:
        AdaptiveError: for bad settings or data, or if no run came to its end. What stops one run is told as its
            `error`.
    """
    _check(cases, sizes)
    config = cases[0][1]
    dataset = open_data(config)
    (group,) = make_groups(build_tables(dataset, embedding_dim), config.seed)
    known = machine if isinstance(machine, Machine) else machine(dense_flops(config, dataset), config.batch_size)
    return simulate_group(cases, sizes, known, dataset, group, told=told, stop=stop)


def simulate_group(
    cases: Sequence[Case],
    sizes: Sequence[str],
    machine: Machine,
    dataset: Dataset,
    group: Group,
    *,
    told: Told | None = None,
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """`simulate` over data that are open, for the tables of `group`, in whose features' order batches come."""
    _check(cases, sizes)
    config = cases[0][1]
    first = first_batches(config, dataset)
    held = config.tier.held_rows or held_rows(first, config.depth)
    tier = config.tier.model_copy(update={"held_rows": held})
    setup = Setup(group, row_optimizer(config.optimizer), tier, config.depth)
    streams = _streams(setup, cases, sizes)
    sample = prepare([run.policy for stream in streams for _, _, run in stream.runs], config, dataset)
    with nullcontext(StopRequest()) if stop is None else stop_request(stop) as stopped:
        for stream in streams:
            if stopped and streams[0].batches:
                break
            with ExitStack() as listening:
                for _, _, run in stream.runs:
                    run.calibrate(sample)
                    if run.error is None:
                        listening.enter_context(run.policy_caller.listening())
                stream.read(dataset, config, told or (lambda batches, total: None), stopped)
    # A later stream that was cut short would stand beside numbers of other batches
    kept = [streams[0], *(stream for stream in streams[1:] if stream.is_done)]
    _refuse_failure(kept)
    return simulation_result(setup, kept, machine, missing=[stream for stream in streams[1:] if not stream.is_done])


def _check(cases: Sequence[Case], sizes: Sequence[str]) -> None:
    if not cases or not sizes:
        raise ConfigError("simulate: needed at least one policy and one device size")
    for size in sizes:
        try:
            TierConfig.model_validate({"device_rows": size})
        except ValidationError as error:
            raise ConfigError(f"device rows: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _streams(setup: Setup, cases: Sequence[Case], sizes: Sequence[str]) -> list[SharedTrace]:
    runs = [(label, size, _run(setup, config, size)) for label, config in cases for size in _sizes_for(config, sizes)]
    shared = [entry for entry in runs if not entry[2].arranges]
    own = [SharedTrace([entry], setup) for entry in runs if entry[2].arranges]
    return [SharedTrace(shared, setup), *own] if shared else own


def _run(setup: Setup, config: TrainConfig, size: str) -> SimulatedRun:
    policy = make_policy(config.policy, config.policy_options)
    skip = with_rule(policy, config.skip)
    return SimulatedRun(setup, policy, size, skip)


def _sizes_for(config: TrainConfig, sizes: Sequence[str]) -> Sequence[str]:
    fixed = make_policy(config.policy, config.policy_options).device_rows
    return sizes if fixed is None else [fixed]


def _refuse_failure(streams: Sequence[SharedTrace]) -> None:
    entries = [entry for stream in streams for entry in stream.runs]
    if any(run.error is None for _, _, run in entries):
        return
    label, size, largest = max(entries, key=lambda entry: entry[2].num_slots)
    assert largest.error is not None
    text = str(largest.error).rstrip(".") if isinstance(largest.error, DeviceMemoryError) else str(largest.error)
    least = least_device_rows(streams)
    enough = "" if least is None else f"; {least:,} device rows are enough for all batches"
    if len(entries) == 1:
        raise type(largest.error)(f"{text}{enough}") from largest.error
    raise type(largest.error)(
        f"none of the {len(entries)} runs came to its end; the one with the most device rows, {label} with {size}: "
        f"{text}{enough}"
    ) from largest.error


SCHEMA: Final = 1
AS_FAST: Final = 1.01  # a step that takes no longer than this many of those with all rows on the device
_FOUND: Final = (
    *("hit_rate", "row_hit_rate", "belady_row_hit_rate", "popular_input_share", "fetched_rows"),
    *("written_back_rows", "bytes_h2d", "bytes_d2h", "skipped_update_share", "deferred_update_share", "skips_unknown"),
    "skips_at_most",
    "policy_numbers",
    *("lookups_per_s", "plan_ms", "read_ms", "step_ms", "expected_ms"),
)


def simulation_result(
    setup: Setup, streams: Sequence[SharedTrace], machine: Machine, *, missing: Sequence[SharedTrace] = ()
) -> dict[str, Any]:
    """Facts of the data, the described machine and every run.

    Args:
        setup: of all runs.
        streams: what was planned; the first one may have been stopped on the way.
        machine: for the modelled times.
        missing: what is not among them because of a stop.
    """
    runs = [run for stream in streams for _, _, run in stream.runs]
    planned = sum(int(run.tally[:, Counter.LOOKUPS].sum()) for run in runs)
    seconds = sum(stream.seconds for stream in streams) + sum(run.seconds for run in runs)
    size = row_bytes(setup.group, setup.optimizer)
    facts = [
        _run_facts(setup, stream, label, size_text, run, machine)
        for stream in streams
        for label, size_text, run in stream.runs
    ]
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
            "link_bytes_per_s": machine.link if math.isfinite(machine.link) else None,  # nothing crosses one
            "device_bytes_per_s": machine.device,
            "host_bytes_per_s": machine.host,
            "dense_ms": machine.dense_ms,
            "dense_bytes": machine.dense_bytes,
            "measured": None if machine.measured is None else machine.measured.when or "yes",
        },
        "least_device_rows": least_device_rows(streams),
        "recommended": _recommended(facts),
        "was_stopped": bool(missing) or not streams[0].is_done,
        "asked_batches": streams[0].batches if streams[0].is_done else streams[0].total,
        "missing": [{"policy": label, "size": size} for stream in missing for label, size, _ in stream.runs],
        "runs": facts,
    }


def _recommended(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The smallest device tier with which a modelled step is about as fast as with all rows there; None if none is."""
    finished = [run for run in runs if run["error"] is None]
    as_fast = [one for one in finished if one["step_ms"]["look_ahead"] <= AS_FAST * one["step_ms"]["device_only"]]
    if not as_fast:
        return None
    best = min(as_fast, key=lambda run: (run["device_rows"], -run["hit_rate"]))
    return {name: best[name] for name in ("policy", "size", "device_rows", "device_share")}


def _run_facts(
    setup: Setup, stream: SharedTrace, label: str, size_text: str, run: SimulatedRun, machine: Machine
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "policy": label,
        "size": size_text,
        "device_rows": run.num_slots,
        "device_share": run.num_slots / setup.group.num_rows,
        "device_bytes": run.num_slots * row_bytes(setup.group, setup.optimizer),
        "error": None if run.error is None else _without_policy(run),
    }
    if run.error is not None:
        return facts | dict.fromkeys(_FOUND)
    total = dict(zip(Counter, run.tally.sum(0).tolist(), strict=True))
    lookups, rows = total[Counter.LOOKUPS], total[Counter.UNIQUE_ROWS]
    bound = stream.trace.best_hit_rate(run.num_slots, bypass=not run.staged)
    plan_ms = 1e3 * (statistics.median(run.plan_seconds) + statistics.median(stream.find_seconds))
    read_ms = 1e3 * statistics.median(stream.read_seconds)
    traffic = _traffic(setup, run)
    return facts | {
        "hit_rate": total[Counter.LOOKUP_HITS] / lookups if lookups else None,
        "row_hit_rate": total[Counter.ROW_HITS] / rows if rows else None,
        "belady_row_hit_rate": bound,
        "popular_input_share": run.popular / run.samples if run.samples else None,
        "fetched_rows": total[Counter.FETCHED],
        "written_back_rows": total[Counter.WRITTEN_BACK],
        "bytes_h2d": total[Counter.BYTES_H2D],
        "bytes_d2h": total[Counter.BYTES_D2H],
        "skipped_update_share": _share(total[Counter.SKIPPED_UPDATES], rows, run),
        "deferred_update_share": _share(total[Counter.DEFERRED_UPDATES], rows, run),
        "skips_unknown": run.skips_unknown,
        "skips_at_most": run.skips_at_most,
        "policy_numbers": PolicyCaller(run.policy).reported(),
        "lookups_per_s": lookups / (run.seconds + stream.seconds),
        "plan_ms": plan_ms,
        "read_ms": read_ms,
        "step_ms": asdict(step_ms(traffic, machine, staged=run.staged, plan_ms=plan_ms)),
        "expected_ms": expected_ms(
            traffic, machine, staged=run.staged, plan_ms=plan_ms, read_ms=read_ms, depth=setup.depth
        ),
    }


def _share(count: int, rows: int, run: SimulatedRun) -> float | None:
    """Of the row updates; None where ids do not tell."""
    return None if run.skips_unknown or not rows else count / rows


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
