"""What the runs of a simulation found, as `adaptive-train simulate --json` prints it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from adaptive.counters import Counter
from adaptive.embeddings.planning.policy_calls.caller import PolicyCaller
from adaptive.embeddings.planning.sizing import row_bytes
from adaptive.studies.simulate.machine import Machine, Traffic, expected_ms, step_ms
from adaptive.studies.simulate.run import Setup, SimulatedRun
from adaptive.studies.simulate.stream import SharedTrace, least_device_rows

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
        "step_ms": step_ms(traffic, machine, staged=run.staged, plan_ms=plan_ms),
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
