"""What ranks would send each other, for people."""

from collections.abc import Mapping
from typing import Any

from adaptive.training.telemetry.document import Document, Items, Note, Table
from adaptive.training.telemetry.formatting import bytes_text, count_text, percent_text

LEGEND = (
    "bytes: what a rank sends in a mean step; a part's rows: distinct rows that a rank asks for, of all "
    "owners and itself; requests: which rows; vectors: the rows; gradients: one for each of them, summed; "
    "dense: slices of dense gradients and their sums; rest: predictions, losses, headers; saturated: in all, "
    "if that share of the requests is for rows that are left alone, whose gradients are not sent; owners: "
    "requests of the most asked owner over the mean; pooled by table, by row: what sending pooled vectors and "
    "their gradients would take, with whole tables, or with a part of each, on each rank."
)


def crossing_document(result: Mapping[str, Any]) -> Document:
    """A table with a line for each number of ranks."""
    notes = [*stop_lines(result), *_advice(result)]
    return Document([Note(_head(result)), Table(_rows(result)), Note(LEGEND), Items(notes)])


def stop_lines(result: Mapping[str, Any]) -> list[str]:
    """What is to be said of a count that was stopped."""
    if not result["was_stopped"]:
        return []
    asked = "" if result["asked_batches"] is None else f" of {count_text(result['asked_batches'])}"
    batches = f"{count_text(result['batches'])}{asked} batches"
    return [f"stopped after {batches}: means are over these; the same command again reads all"]


def _head(result: Mapping[str, Any]) -> str:
    widths = ", ".join(map(str, dict.fromkeys(result["row_widths"])))
    return (
        f"{count_text(result['batches'])} batches of {count_text(result['batch_size'])} samples of all ranks together, "
        f"{count_text(result['lookups'])} look-ups; {count_text(result['rows'])} rows of width {widths}, "
        f"{count_text(result['distinct_rows'])} distinct ones in a batch; {count_text(result['dense_weights'])} dense "
        "weights"
    )


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
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


def _advice(result: Mapping[str, Any]) -> list[str]:
    paying = [one for one in result["ranks"] if one["whole_tables_would_pay"]]
    if not paying:
        return []
    ranks = ", ".join(str(one["ranks"]) for one in paying)
    return [
        f"bags are long: on {ranks} ranks whole tables that pool at their owner (placement=whole, which this version "
        "does not have) would send less than rows do",
    ]
