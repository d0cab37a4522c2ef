"""A simulation, or the skew of ids, as a document."""

from collections.abc import Callable, Sequence
from typing import Final

from adaptive.studies.simulate.simulation import PolicyForecast, Simulation, SizedPolicy
from adaptive.training.telemetry.document import Document, Items, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

LEGEND: Final = (
    "lookup hits: lookups whose row was on the device when their batch was planned. row hits: the same for each "
    "batch's distinct rows. row hits, Belady: upper bound of row hits (not of lookup hits) for any policy. popular: "
    "inputs all of whose rows were on the device. to device, to host: bytes per batch. deferred: updates that are not "
    "written because they wait for a later one."
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
    causes: dict[str, list[str]] = {}
    for failed in result.failed:
        causes.setdefault(failed.error, []).append(f"{failed.policy} with {failed.size}")
    notes = [
        *stop_lines(result),
        *(f"{', '.join(runs)} device rows: {error}" for error, runs in causes.items()),
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
        ("deferred", _deferred),
    ]


def _deferred(run: PolicyForecast) -> str:
    if run.skips_unknown:
        return "unknown"
    return percent_text(run.deferred_update_share)


def stop_lines(result: Simulation) -> list[str]:
    """For a stopped simulation: its batches, what is missing, and how to get it."""
    if not result.was_stopped:
        return []
    sizes = _sizes_by_policy(result.missing)
    left_out = "; ".join(f"{policy} with {', '.join(missing)}" for policy, missing in sizes.items())
    if result.batches == result.total_batches:
        listed = ",".join(dict.fromkeys(run.size for run in result.missing))
        flags = f"--policies {','.join(sizes)} --device-rows {listed}"
        return [f"stopped before {left_out}. Run the same command with {flags} for these"]
    missing = f"{left_out} are missing. " if left_out else ""
    total = "" if result.total_batches is None else f" of {count_text(result.total_batches)}"
    batches = f"{count_text(result.batches)}{total} batches"
    return [f"stopped after {batches}: all numbers are of these. {missing}Run the same command again for all"]


def _sizes_by_policy(runs: Sequence[SizedPolicy]) -> dict[str, list[str]]:
    sizes: dict[str, list[str]] = {}
    for run in runs:
        sizes.setdefault(run.policy, []).append(run.size)
    return sizes


def _advice(result: Simulation) -> list[str]:
    """The smallest device tier that works."""
    least = result.least_device_rows
    if least is None:
        return []
    return [
        f"least device rows for policies that prefetch misses: {count_text(least)} "
        f"({percent_text(least / result.rows)}), which batches in flight hold at depth {result.depth}"
    ]
