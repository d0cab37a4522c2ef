"""A simulation, or the traffic between ranks, as a document."""

from collections.abc import Callable, Sequence
from typing import Final

from adaptive.studies.simulate.rank_traffic import TrafficForecast
from adaptive.studies.simulate.simulation import PolicyForecast, Simulation, SizedPolicy
from adaptive.training.telemetry.document import Document, Items, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

LEGEND: Final = (
    "lookup hits: lookups whose row was on the device when their batch was planned. row hits: the same for each "
    "batch's distinct rows. row hits, Belady: upper bound of row hits (not of lookup hits) for any policy. popular: "
    "inputs all of whose rows were on the device. to device, to host: bytes per batch. deferred: updates that are not "
    "written because they wait for a later one. plan: milliseconds of planning a batch, measured here. The other times "
    "are modeled milliseconds of a step: look-ahead with perfect overlap, serial without overlap, both with planning."
)
UNKNOWN: Final = (
    "updates are skipped or deferred by movement, which ids do not show. The numbers are those of a run that skips "
    "nothing"
)
EXPECTED: Final = (
    "expected: milliseconds of a step on the measured machine, including reading, with the overlap measured there "
    "(modeled from measured rates)"
)
RANKS_LEGEND: Final = (
    "Bytes are what a rank sends in an average step. rows per rank: distinct rows that a rank requests from all "
    "owners, itself included. requests: which rows. vectors: the rows. gradients: one summed gradient per row. dense: "
    "slices of dense gradients and their sums. rest: predictions, losses, headers. saturated: the total if "
    "that share of the requests is for saturated rows, whose gradients are not sent. "
    "owners: requests to the busiest owner over the mean. pooled by table, by row: bytes if pooled vectors and their "
    "gradients were sent, with whole tables, or with a part of each table, on each rank."
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
        *([EXPECTED] if result.machine.measured else []),
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
        ("plan", lambda run: f"{run.plan_ms:.3f}"),
        ("look-ahead", lambda run: f"{run.step_ms.look_ahead:.3f}"),
        ("serial", lambda run: f"{run.step_ms.serial:.3f}"),
        ("hybrid", lambda run: f"{run.step_ms.hybrid:.3f}"),
        ("device only", lambda run: f"{run.step_ms.device_only:.3f}"),
        ("XDL", lambda run: f"{run.step_ms.xdl:.3f}"),
        *([("expected", lambda run: f"{run.expected_ms:.3f}")] if result.machine.measured else []),
    ]


def _deferred(run: PolicyForecast) -> str:
    if run.skips_unknown:
        return "unknown"
    share = percent_text(run.deferred_update_share)
    return f"<= {share}" if run.skips_at_most and run.deferred_update_share is not None else share


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
    batches = _batches_text(result.batches, result.total_batches)
    return [f"stopped after {batches}: all numbers are of these. {missing}Run the same command again for all"]


def _batches_text(batches: int, total: int | None) -> str:
    return f"{count_text(batches)}{'' if total is None else f' of {count_text(total)}'} batches"


def _sizes_by_policy(runs: Sequence[SizedPolicy]) -> dict[str, list[str]]:
    sizes: dict[str, list[str]] = {}
    for run in runs:
        sizes.setdefault(run.policy, []).append(run.size)
    return sizes


def _advice(result: Simulation) -> list[str]:
    """The smallest device tiers that work, and that are as fast as all rows on the device."""
    least, best = result.least_device_rows, result.recommended
    lines = []
    if least is not None:
        lines.append(
            f"least device rows for policies that prefetch misses: {count_text(least)} "
            f"({percent_text(least / result.rows)}), which batches in flight hold at depth {result.depth}"
        )
    modeled = "smallest of these sizes whose modeled step is within 1% of one with all rows on the device"
    if best is None:
        return [*lines, f"{modeled}: none; a step waits for the link or for planning"]
    rows, share = count_text(best.device_rows), percent_text(best.device_share)
    return [*lines, f"{modeled}: {best.size} ({rows} rows, {share}) under {best.policy}"]


def rank_traffic_document(result: TrafficForecast) -> Document:
    """A table with a line per number of ranks."""
    head = (
        f"{count_text(result.batches)} batches of {count_text(result.batch_size)} samples (all ranks), "
        f"{count_text(result.lookups)} lookups; {count_text(result.rows)} rows of width "
        f"{', '.join(map(str, dict.fromkeys(result.row_widths)))}, {count_text(result.distinct_rows)} distinct rows "
        f"per batch; {count_text(result.dense_weights)} dense weights"
    )
    titles = ["ranks", "samples", "rows per rank", "requests", "vectors", "gradients", "dense", "rest", "total"]
    titles += [f"{percent_text(result.saturated_share)} saturated", "owners", "pooled by table", "by row"]
    rows = [titles]
    for ranks in result.ranks:
        sent = ranks.bytes
        sizes = [sent.requests, sent.vectors, sent.gradients, sent.dense, sent.predictions + sent.headers]
        rows.append(
            [
                *map(count_text, (ranks.ranks, ranks.samples_per_rank, ranks.distinct_rows_per_rank)),
                *map(bytes_text, (*sizes, ranks.bytes_in_all, ranks.bytes_saturated)),
                f"{ranks.owner_load:.2f}",
                *map(bytes_text, (ranks.pooled_table_wise_bytes, ranks.pooled_row_wise_bytes)),
            ]
        )
    paying = ", ".join(str(ranks.ranks) for ranks in result.ranks if ranks.whole_tables_would_pay)
    advice = (
        f"bags are long: on {paying} ranks, whole tables that pool at their owner would send less than rows do "
        "(placement=whole, which this version does not have)"
    )
    notes = [*rank_stop_lines(result), *([advice] if paying else [])]
    return Document([Note(head), Table(rows), Note(RANKS_LEGEND), Items(notes)])


def rank_stop_lines(result: TrafficForecast) -> list[str]:
    """A line for a count that was stopped early."""
    batches = _batches_text(result.batches, result.total_batches)
    means = "means are over these. Run the same command again for all"
    return [f"stopped after {batches}: {means}"] if result.was_stopped else []
