"""A simulation, or what ranks would send each other, as a document; curves of a simulation as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptive.studies.charts import write_figure
from adaptive.training.telemetry.document import Document, Items, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

STEPS = {
    "look_ahead": "look-ahead",
    "serial": "serial",
    "hybrid": "hybrid",
    "device_only": "device only",
    "xdl": "XDL",
}
HEAD = [
    *("policy", "device rows", "of rows", "look-up hits", "row hits", "row hits, Belady", "popular", "to device"),
    *("to host", "deferred", "plan"),
]
LEGEND = (
    "look-up hits: look-ups whose row was on the device when its batch was planned; row hits: the same of "
    "each batch's distinct rows, each counted once; row hits, Belady: the most row hits that any policy could "
    "have had (it bounds row hits, not look-up hits); popular: inputs all of whose rows were there; to "
    "device, to host: bytes of a batch; deferred: updates of rows that are not written because they wait for "
    "a later one; plan: milliseconds of planning a batch, as measured here; then the modelled milliseconds of "
    "a step: look-ahead with perfect overlap, serial without any, both with planning."
)

UNKNOWN = (
    "what is skipped or deferred follows from how far rows move, which ids do not tell; all numbers are those of a run "
    "that skips nothing"
)

EXPECTED = (
    "expected: milliseconds of a step on the measured machine, with reading, and hidden by look-ahead as much as was "
    "found there (modelled, from measured rates)"
)


def simulation_document(result: Mapping[str, Any]) -> Document:
    """A line about the data, a table with a line for each policy and device size, and what is to be said of it."""
    rows = _rows(result)
    table = [Table(rows, keys=2)] if len(rows) > 1 else []
    return Document([Note(_head(result)), *table, Note(LEGEND), Items(_notes(result))])


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    runs = [run for run in result["runs"] if run["error"] is None]
    steps = [name for name in STEPS if name != "xdl" or result["machine"]["dense_bytes"]]
    head = [*HEAD, *(STEPS[name] for name in steps), *(["expected"] if result["machine"]["measured"] else [])]
    return [head, *(_cells(run, result["batches"], steps) for run in runs)]


def _head(result: Mapping[str, Any]) -> str:
    return (
        f"{count_text(result['lookups'])} look-ups of {count_text(result['batches'])} batches, "
        f"{count_text(result['rows'])} rows of {result['row_bytes']} bytes ({bytes_text(result['table_bytes'])}), "
        f"depth {result['depth']}; {count_text(result['lookups_per_s'])} look-ups/s planned"
    )


def _notes(result: Mapping[str, Any]) -> list[str]:
    """What is missing: a line for each cause, which is often the same for several policies."""
    moving = dict.fromkeys(run["policy"] for run in result["runs"] if run["skips_unknown"])
    expected = [EXPECTED] if result["machine"]["measured"] else []
    unknown = [f"{', '.join(moving)}: {UNKNOWN}"] if moving else []
    return [*stop_lines(result), *_failed(result), *unknown, *expected, *_advice(result)]


def stop_lines(result: Mapping[str, Any]) -> list[str]:
    """Of a simulation that was stopped: of how many batches its numbers are, what is missing, how to get the rest."""
    if not result.get("was_stopped"):
        return []
    batches, asked, sizes = result["batches"], result["asked_batches"], _sizes_by_policy(result["missing"])
    left_out = "; ".join(f"{policy} with {', '.join(mine)}" for policy, mine in sizes.items())
    if batches == asked:
        listed = ",".join(dict.fromkeys(size for mine in sizes.values() for size in mine))
        again = f"--policy {','.join(sizes)} --device-rows {listed}"
        return [f"stopped: missing are {left_out}; the same command with {again} gives them"]
    of = "" if asked is None else f" of {count_text(asked)}"
    missing = f"missing are {left_out}; " if left_out else ""
    return [
        f"stopped after {count_text(batches)}{of} batches: all numbers are of these; {missing}the same command again "
        "gives all"
    ]


def _sizes_by_policy(runs: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(run["policy"], []).append(run["size"])
    return found


def _advice(result: Mapping[str, Any]) -> list[str]:
    """How small the device tier may be, to work at all and to cost no time."""
    least, best = result["least_device_rows"], result["recommended"]
    lines = []
    if least is not None:
        share = percent_text(least / result["rows"])
        lines.append(
            f"least device rows for policies that fetch what is missing: {count_text(least)} ({share}), which batches "
            f"in flight hold at depth {result['depth']}"
        )
    modelled = "smallest of these sizes whose modelled step is within 1 % of one with all rows on the device"
    if best is None:
        return [*lines, f"{modelled}: none; the link, or planning, is what a step waits for"]
    rows, share = count_text(best["device_rows"]), percent_text(best["device_share"])
    return [*lines, f"{modelled}: {best['size']} ({rows} rows, {share}) under {best['policy']}"]


def _failed(result: Mapping[str, Any]) -> list[str]:
    found: dict[str, list[str]] = {}
    for run in result["runs"]:
        if run["error"] is not None:
            found.setdefault(run["error"], []).append(f"{run['policy']} with {run['size']}")
    return [f"{', '.join(runs)} device rows: {error}" for error, runs in found.items()]


def _cells(run: Mapping[str, Any], batches: int, steps: Sequence[str]) -> list[str]:
    return [
        run["policy"],
        count_text(run["device_rows"]),
        percent_text(run["device_share"]),
        percent_text(run["hit_rate"]),
        percent_text(run["row_hit_rate"]),
        percent_text(run["belady_row_hit_rate"]),
        percent_text(run["popular_input_share"]),
        bytes_text(run["bytes_h2d"] / batches),
        bytes_text(run["bytes_d2h"] / batches),
        _deferred(run),
        f"{run['plan_ms']:.3f}",
        *(f"{run['step_ms'][name]:.3f}" for name in steps),
        *([] if run["expected_ms"] is None else [f"{run['expected_ms']:.3f}"]),
    ]


def _deferred(run: Mapping[str, Any]) -> str:
    if run["skips_unknown"]:
        return "unknown"
    share = percent_text(run["deferred_update_share"])
    return f"<= {share}" if run["skips_at_most"] and run["deferred_update_share"] is not None else share


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write a PNG: row hit rates with Belady's bound, and modelled step times with overlap and without, over the
    device's share of the rows.

    Raises:
        OutputError: if it cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    hits, times = figure.subplots(1, 2)
    for policy, mine in _by_policy(result).items():
        shares = [100 * run["device_share"] for run in mine]
        (line,) = hits.plot(shares, [100 * run["row_hit_rate"] for run in mine], "o-", label=policy)
        for name, style, what in (("look_ahead", "o-", "look-ahead"), ("serial", "s:", "serial")):
            ms = [run["step_ms"][name] for run in mine]
            times.plot(shares, ms, style, color=line.get_color(), label=f"{policy}, {what}")
    for number, (at, best) in enumerate(_bounds(result)):
        hits.plot(at, best, "k:", label="_" if number else "Belady's bound of row hits")
    for axes, label in ((hits, "row hits: distinct rows of a batch on the device (%)"), (times, "modelled step (ms)")):
        axes.set(xlabel="rows on the device (%)", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    write_figure(figure, path, dpi=120)


def _by_policy(result: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The runs that came to their end, by policy, smallest device first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted(result["runs"], key=lambda run: run["device_share"]):
        if run["error"] is None:
            found.setdefault(run["policy"], []).append(run)
    return found


def _bounds(result: Mapping[str, Any]) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Curves of Belady's bound, in per cent, each once: policies that treat misses alike have one in common."""
    points = {
        policy: [
            (100 * run["device_share"], 100 * run["belady_row_hit_rate"]) for run in mine if run["belady_row_hit_rate"]
        ]
        for policy, mine in _by_policy(result).items()
    }
    curves = [tuple(zip(*mine, strict=True)) for mine in points.values() if mine]
    return [(shares, best) for shares, best in dict.fromkeys(curves)]


RANKS_LEGEND = (
    "bytes: what a rank sends in a mean step; a part's rows: distinct rows that a rank asks for, of all "
    "owners and itself; requests: which rows; vectors: the rows; gradients: one for each of them, summed; "
    "dense: slices of dense gradients and their sums; rest: predictions, losses, headers; saturated: in all, "
    "if that share of the requests is for rows that are left alone, whose gradients are not sent; owners: "
    "requests of the most asked owner over the mean; pooled by table, by row: what sending pooled vectors and "
    "their gradients would take, with whole tables, or with a part of each, on each rank."
)


def rank_traffic_document(result: Mapping[str, Any]) -> Document:
    """A table with a line for each number of ranks."""
    notes = [*rank_stop_lines(result), *_ranks_advice(result)]
    return Document([Note(_ranks_head(result)), Table(_rank_rows(result)), Note(RANKS_LEGEND), Items(notes)])


def rank_stop_lines(result: Mapping[str, Any]) -> list[str]:
    """What is to be said of a count that was stopped."""
    if not result["was_stopped"]:
        return []
    asked = "" if result["asked_batches"] is None else f" of {count_text(result['asked_batches'])}"
    batches = f"{count_text(result['batches'])}{asked} batches"
    return [f"stopped after {batches}: means are over these; the same command again reads all"]


def _ranks_head(result: Mapping[str, Any]) -> str:
    widths = ", ".join(map(str, dict.fromkeys(result["row_widths"])))
    return (
        f"{count_text(result['batches'])} batches of {count_text(result['batch_size'])} samples of all ranks together, "
        f"{count_text(result['lookups'])} look-ups; {count_text(result['rows'])} rows of width {widths}, "
        f"{count_text(result['distinct_rows'])} distinct ones in a batch; {count_text(result['dense_weights'])} dense "
        "weights"
    )


def _rank_rows(result: Mapping[str, Any]) -> list[list[str]]:
    share = percent_text(result["saturated_share"])
    head = ["ranks", "samples", "a part's rows", "requests", "vectors", "gradients", "dense", "rest", "in all"]
    head += [f"{share} saturated", "owners", "pooled by table", "by row"]
    rows = []
    for one in result["ranks"]:
        sent = one["bytes"]
        sizes = [sent[name] for name in ("requests", "vectors", "gradients", "dense")]
        sizes += [sent["predictions"] + sent["headers"], one["bytes_in_all"], one["bytes_saturated"]]
        pooled = [bytes_text(one[f"pooled_{way}_wise_bytes"]) for way in ("table", "row")]
        numbers = [count_text(one[name]) for name in ("ranks", "samples_per_rank", "distinct_rows_per_rank")]
        rows.append([*numbers, *map(bytes_text, sizes), f"{one['owner_load']:.2f}", *pooled])
    return [head, *rows]


def _ranks_advice(result: Mapping[str, Any]) -> list[str]:
    paying = [one for one in result["ranks"] if one["whole_tables_would_pay"]]
    if not paying:
        return []
    ranks = ", ".join(str(one["ranks"]) for one in paying)
    return [
        f"bags are long: on {ranks} ranks whole tables that pool at their owner (placement=whole, which this version "
        "does not have) would send less than rows do",
    ]
