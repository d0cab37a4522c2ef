"""Tables that follow from several commands' records, and are counted or trained here (all measured)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive.storage.run_directory import RECORD
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord

Records = Mapping[str, Any]


def table(title: str, values: Mapping[str, float], unit: str) -> dict[str, Any]:
    """A derived record; more of its entries may be a `note`, and `curves`: names of `x` and `y`, points of `lines`."""
    return {"kind": "derived", "title": title, "unit": unit, "values": dict(values)}


def slots(records: Records) -> dict[str, Any]:
    """ScratchPipe: device rows that batches in flight hold, by look-ahead, over (depth + 1) mean batches."""
    found, bounds = {}, {}
    for name, record in records.items():
        if name.startswith("depth-"):
            depth = int(name.removeprefix("depth-"))
            found[depth] = float(record["least_device_rows"])
            bounds[depth] = (depth + 1) * record["distinct_rows"] / record["batches"]
    sized = {"needed": found, "(depth + 1) mean batches": bounds}
    lines = {name: [[depth, rows] for depth, rows in sorted(one.items())] for name, one in sized.items()}
    values = {f"depth {depth}": rows for depth, rows in found.items()}
    return table("Device rows that are needed (measured)", values, "rows") | {
        "over_bound": {f"depth {depth}": rows / bounds[depth] for depth, rows in found.items()},
        "curves": {"x": "look-ahead (batches)", "y": "device rows", "lines": lines},
    }


def popular_inputs(records: Records) -> dict[str, Any]:
    """Hotline's figures 10 and 23: of the inputs after learning those found popular, by how much of the epoch is learnt
    from, and by which logger."""
    return table("Inputs found popular after learning (measured)", _popular(records), "%")


def logger_size(records: Records) -> dict[str, Any]:
    """The same over the logger's size, beside exact counts of all rows."""
    found = _popular(records)
    sized = {int(match[1]): share for name, share in found.items() if (match := re.search(r"logger_bytes=(\d+)", name))}
    exact = max((share for name, share in found.items() if "logger=" not in name), default=0.0)
    points = [[size / 1024, share] for size, share in sorted(sized.items())]
    ends = [[x, exact] for x in (points[0][0], points[-1][0])] if points else []
    values = {f"{size / 1024:g} KiB": share for size, share in sorted(sized.items())} | {"exact counts": exact}
    return table("Inputs found popular by the logger's size (measured)", values, "%") | {
        "curves": {"x": "logger (KiB)", "y": "inputs found popular (%)", "lines": {"srrip": points, "exact": ends}}
    }


def _popular(records: Records) -> dict[str, float]:
    done = [run for run in records["learning"]["runs"] if run["error"] is None]
    told = {run["policy"]: run["policy_numbers"] for run in done}
    return {
        name: 100 * numbers["popular_inputs"] / numbers["seen_inputs"]
        for name, numbers in told.items()
        if numbers["seen_inputs"]
    }


def quality(records: Records) -> dict[str, Any]:
    """FAE's figure 12, Hotline's figure 14: AUC of the held-out samples as training goes on."""
    return _by_step(records, "auc", "AUC", 1.0)


def accuracy(records: Records) -> dict[str, Any]:
    """The same of accuracy, which the papers give."""
    return _by_step(records, "accuracy", "accuracy (%)", 100.0)


def _by_step(records: Records, name: str, label: str, factor: float) -> dict[str, Any]:
    lines: dict[str, list[list[float]]] = {}
    for policy in records["compare"]["policies"]:
        found = [one for run in policy["runs"][:1] for one in _evaluations(Path(run["run_dir"]))]
        points = [[float(one.step), factor * value] for one in found if (value := getattr(one, name)) is not None]
        if points:
            lines[policy["policy"]] = points
    last = {policy: points[-1][1] for policy, points in lines.items()}
    title = f"{label[0].upper()}{label[1:]} of held-out samples by step, first seed (measured)"
    return table(title, last, f"{label} at the end") | {"curves": {"x": "step", "y": label, "lines": lines}}


def batch_quality(records: Records) -> dict[str, Any]:
    """Acun's figure 15: AUC of the held-out samples by batch size, after as many samples at the same rate."""
    lines: dict[str, list[list[float]]] = {}
    values = {}
    for one in records["trained"]["policies"]:
        if one["auc"] is not None:
            size = int(one["swept"]["batch_size"])
            lines.setdefault(one["policy"], []).append([size, one["auc"]])
            values[f"{one['policy']}, batches of {size}"] = one["auc"]
    title = "Quality by batch size, of as many samples at the same rate (measured)"
    drawn = {"x": "samples of a batch", "y": "AUC of held-out samples", "lines": lines}
    return table(title, values, "AUC") | {"curves": drawn}


def _evaluations(folder: Path) -> list[EvalRecord]:
    """Of a run that still lies there."""
    if not (folder / RECORD).exists():
        return []
    return [one for one in read_metrics(folder / "metrics.jsonl") if isinstance(one, EvalRecord)]


def skipping(records: Records) -> dict[str, Any]:
    """Slipstream: change of AUC against the share that was left out, beside as many inputs dropped at random."""
    lines: dict[str, list[list[float]]] = {}
    values = {}
    for one in records["compare"]["policies"]:
        if one["auc_difference"] is None:
            continue
        inputs, updates = float(one["skipped_input_share"] or 0.0), float(one["skipped_update_share"] or 0.0)
        share = inputs or updates
        if not share:
            continue
        kind = "updates deferred" if one["deferred_update_share"] and not inputs else "updates left out"
        kind = "inputs dropped" if inputs else kind
        kind = "inputs dropped at random" if one["policy"].startswith("random_drop") else kind
        lines.setdefault(kind, []).append([100 * share, one["auc_difference"]])
        values[one["policy"]] = one["auc_difference"]
    furthest = max((x for points in lines.values() for x, _ in points), default=0.0)
    budget = -float(records["compare"]["auc_budget"])
    drawn = {name: sorted(points) for name, points in lines.items()}
    drawn["budget"] = [[0.0, budget], [furthest, budget]]
    return table("Change of AUC by policy that leaves something out (measured)", values, "AUC") | {
        "curves": {"x": "left out (%)", "y": "change of AUC", "lines": drawn}
    }
