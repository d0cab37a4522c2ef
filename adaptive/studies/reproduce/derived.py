"""Tables that follow from several commands' records, and are modelled: transfers and ratios of systems, designs of a
cache, Hotline's working set. `DERIVED` has them with those that are counted or trained (`found`).

The functions take the records by command id, and the recipe says which of them it wants. What they give is a record,
too: claims may name its numbers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from adaptive.errors import ConfigError
from adaptive.studies.machines import load_machine
from adaptive.studies.placements.placement_study import from_profile
from adaptive.studies.placements.shape import load_shape
from adaptive.studies.reproduce.found import (
    Records,
    accuracy,
    batch_quality,
    logger_size,
    popular_inputs,
    quality,
    skipping,
    slots,
    table,
)
from adaptive.studies.step_model import StepModel, rates_of

MODELLED_ON: Final = "v100-pcie3"
SHAPE: Final = "rmc2"
SHARE: Final = 0.1  # of the rows on the device
WORKING_SETS: Final = (1, 2, 4, 8, 16)  # mini-batches


def transfers(records: Records) -> dict[str, Any]:
    """FAE's tables 6 and 7, Hotline's table 6: MiB a step between host and device, of DLRM and XDL as `hybrid`'s
    vectors (XDL: and all dense weights, both ways), of FAE with two homes of the hot rows, and of each policy here.
    Counted (measured); and what that takes on the link of a V100 (modelled)."""
    policies = {one["policy"]: one for one in records["compare"]["policies"] if one["steps"]}
    dense = records["step"]["step"][0]["dense_bytes"]
    vectors = _moved(policies["hybrid"])
    found = {"DLRM": vectors, "XDL": vectors + 2 * dense}
    for name, one in policies.items():
        copies = float(one["policy_numbers"].get("two_home_bytes", 0.0)) / one["steps"]
        if copies:
            found[f"{name}, two homes"] = _moved(one) + copies
        if name != "hybrid":  # which is DLRM's
            found[f"{name} here"] = _moved(one)
    link = rates_of(load_machine(MODELLED_ON)).link
    times = ", ".join(f"{name} {1e3 * size / link:.3g}" for name, size in found.items())
    note = f"Milliseconds of a step on the link of {MODELLED_ON}, one way after the other (modelled): {times}."
    sizes = {name: size / 2**20 for name, size in found.items()}
    return table("MiB a step between host and device, by design (measured)", sizes, "MiB") | {"note": note}


def _moved(policy: Mapping[str, Any]) -> float:
    """Bytes a step, both ways."""
    return float((policy["bytes_h2d"] + policy["bytes_d2h"]) / policy["steps"])


def ratios(records: Records) -> dict[str, Any]:
    """Throughput over DLRM's, modelled on a V100 with the shape RMC2 from hot shares that were measured in the data, at
    10 % of the rows on the device; Slipstream: with as many hot inputs fewer as it dropped here."""
    model = _model(records)
    dense, link = model.dense_ms(), 1e3 * 2 * model.shape.dense_bytes / model.rates.link
    device = sum(model.on_device().values())
    dlrm = sum(model.on_host().values()) + dense
    dropped, gather = _dropped(records), sum(model.misses().values())
    hot, cold = max(model.hot - dropped, 0.0), 1 - max(model.hot, dropped)
    steps = {
        "XDL": dlrm + link,
        "DLRM": dlrm,
        "FAE": model.hot * device + (1 - model.hot) * dlrm,
        "Hotline": max(model.hot * device, gather) + (1 - model.hot) * device,
        "ScratchPipe": max(device, *model.misses().values()),
        "Slipstream": hot * device + cold * dlrm,
        "Slipstream on Hotline": max(hot * device, gather) + cold * device,
    }
    speeds = {name: dlrm / ms for name, ms in steps.items()}
    over = ", ".join(f"{name} {speeds['Slipstream'] / speeds[name]:.3g}x" for name in ("XDL", "DLRM", "FAE", "Hotline"))
    note = (
        f"With {100 * model.hot:.1f} % of the inputs hot (measured) and {100 * dropped:.1f} % dropped (measured). "
        f"Slipstream over {over}."
    )
    found = table(f"Speed over DLRM's, modelled on {MODELLED_ON}", speeds, "x")
    return found | {"hot_inputs": model.hot, "dropped": dropped, "step_ms": steps, "note": note}


def _model(records: Records) -> StepModel:
    locality = from_profile(records["data"]["data"], "the data")
    return StepModel(load_shape(SHAPE), rates_of(load_machine(MODELLED_ON)), locality, device_share=SHARE)


def _dropped(records: Records) -> float:
    """The largest share of the inputs that a policy of the comparison dropped, if there was any."""
    compared = records.get("compare", {}).get("policies", [])
    return max((float(one["skipped_input_share"] or 0.0) for one in compared), default=0.0)


def working_set(records: Records) -> dict[str, Any]:
    """Hotline's figure 22, as this project reads its first version: W mini-batches are re-packed into W, as many
    of them popular as popular inputs fill, and rows of the others are gathered while the popular ones are trained.
    Larger sets leave fewer popular inputs over that fill none."""
    model = _model(records)
    device, gather = sum(model.on_device().values()), sum(model.misses().values())
    dlrm = sum(model.on_host().values()) + model.dense_ms()
    speeds = {}
    for size in WORKING_SETS:
        popular, others = math.floor(model.hot * size), math.ceil((1 - model.hot) * size)
        speeds[f"{size} mini-batches"] = dlrm * size / (max(popular * device, gather * size) + others * device)
    points = [[size, speed] for size, speed in zip(WORKING_SETS, speeds.values(), strict=True)]
    note = f"With {100 * model.hot:.1f} % of the inputs popular (measured); popular mini-batches are full ones."
    return table(f"Hotline's working set: speed over DLRM's, modelled on {MODELLED_ON}", speeds, "x") | {
        "note": note,
        "curves": {"x": "mini-batches of a working set", "y": "speed over DLRM's", "lines": {"Hotline": points}},
    }


def designs(records: Records) -> dict[str, Any]:
    """ScratchPipe's four designs beside all rows on the device: milliseconds of a step at each size of the cache,
    modelled with planning as it was measured here."""
    asked = {
        "hybrid, no cache": ("static", "hybrid"),
        "static cache, no overlap": ("static", "serial"),
        "LRU on demand, no overlap": ("lru", "serial"),
        "ScratchPipe, look-ahead": ("scratchpipe", "look_ahead"),
        "all rows on the device": ("scratchpipe", "device_only"),
    }
    done = [run for run in records["hits"]["runs"] if run["error"] is None]
    lines = {
        name: [[100 * run["device_share"], run["step_ms"][step]] for run in done if run["policy"] == policy]
        for name, (policy, step) in asked.items()
    }
    if not all(lines.values()):
        raise ConfigError("designs: the command `hits` needs the policies static, lru and scratchpipe")
    smallest = {name: min(points)[1] for name, points in lines.items()}
    drawn = {"x": "rows on the device (%)", "y": "ms a step", "lines": lines}
    return table("Milliseconds of a step by design, at the smallest size (modelled)", smallest, "ms") | {
        "curves": drawn
    }


DERIVED: Final[dict[str, Callable[[Records], dict[str, Any]]]] = {
    "transfers": transfers,
    "ratios": ratios,
    "working_set": working_set,
    "designs": designs,
    "slots": slots,
    "popular_inputs": popular_inputs,
    "logger_size": logger_size,
    "quality": quality,
    "accuracy": accuracy,
    "batch_quality": batch_quality,
    "skipping": skipping,
}
