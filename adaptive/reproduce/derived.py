"""Tables that follow from several commands' records: transfers of other systems, ratios between them, slots by depth.

The functions take the records by command id, and the recipe says which of them it wants. What they give is a record,
too: claims may name its numbers.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from adaptive.machines.spec import load_machine
from adaptive.placements.locality import from_profile
from adaptive.placements.model import StepModel, rates_of
from adaptive.placements.shape import load_shape

Records = Mapping[str, Any]
MODELLED_ON: Final = "v100-pcie3"
SHAPE: Final = "rmc2"
SHARE: Final = 0.1  # of the rows on the device


def transfers(records: Records) -> dict[str, Any]:
    """FAE's tables 6 and 7: MiB a step between host and device, of DLRM and XDL as `hybrid`'s vectors (XDL: and all
    dense weights, both ways), of FAE with two homes of the hot rows, and here. Counted (measured)."""
    policies = {one["policy"]: one for one in records["compare"]["policies"]}
    dense = records["step"]["step"][0]["dense_bytes"]
    hybrid, fae = policies["hybrid"], policies["fae"]
    vectors = _moved(hybrid) / hybrid["steps"]
    copies = float(fae["policy_numbers"].get("two_home_bytes", 0.0)) / fae["steps"]
    ours = _moved(fae) / fae["steps"]
    found = {"DLRM": vectors, "XDL": vectors + 2 * dense, "FAE, two homes": ours + copies, "fae here": ours}
    return _table("MiB a step, by design (measured)", {name: size / 2**20 for name, size in found.items()}, "MiB")


def _moved(policy: Mapping[str, Any]) -> float:
    return float(policy["bytes_h2d"] + policy["bytes_d2h"])


def ratios(records: Records) -> dict[str, Any]:
    """Throughput over DLRM's, modelled on a V100 with the shape RMC2 from hot shares that were measured in the data, at
    10 % of the rows on the device; Slipstream: with the inputs that it dropped here."""
    locality = from_profile(records["data"]["data"], "the data")
    model = StepModel(load_shape(SHAPE), rates_of(load_machine(MODELLED_ON)), locality, device_share=SHARE)
    dense, link = model.dense_ms(), 1e3 * 2 * model.shape.dense_bytes / model.rates.link
    device = sum(model.on_device().values())
    dlrm = sum(model.on_host().values()) + dense
    dropped = _dropped(records)
    misses = model.misses()
    steps = {
        "XDL": dlrm + link,
        "DLRM": dlrm,
        "FAE": model.hot * device + (1 - model.hot) * dlrm,
        "Hotline": max(model.hot * device, sum(misses.values())) + (1 - model.hot) * device,
        "ScratchPipe": max(device, *misses.values()),
        "Slipstream": (1 - dropped) * (model.hot * device + (1 - model.hot) * dlrm),
    }
    table = _table(f"speed over DLRM's, modelled on {MODELLED_ON}", {k: dlrm / ms for k, ms in steps.items()}, "x")
    return table | {"hot_inputs": model.hot, "dropped": dropped, "step_ms": steps}


def _dropped(records: Records) -> float:
    """The largest share of the inputs that a policy of the comparison dropped, if there was any."""
    compared = records.get("compare", {}).get("policies", [])
    return max((float(one["skipped_input_share"] or 0.0) for one in compared), default=0.0)


def slots(records: Records) -> dict[str, Any]:
    """ScratchPipe: device rows that batches in flight hold, by look-ahead, over (depth + 1) mean batches (measured)."""
    found, bounds = {}, {}
    for name, record in records.items():
        if name.startswith("depth-"):
            depth = int(name.removeprefix("depth-"))
            found[f"depth {depth}"] = float(record["least_device_rows"])
            bounds[f"depth {depth}"] = (depth + 1) * record["distinct_rows"] / record["batches"]
    table = _table("device rows that are needed (measured)", found, "rows")
    return table | {"over_bound": {name: rows / bounds[name] for name, rows in found.items()}}


def popular_inputs(records: Records) -> dict[str, Any]:
    """Hotline: inputs found popular, by how much of the epoch is learnt from and by which logger (measured)."""
    runs = [run for run in records["learning"]["runs"] if run["error"] is None]
    return _table("popular inputs (measured)", {run["policy"]: 100 * run["popular_input_share"] for run in runs}, "%")


def _table(title: str, values: Mapping[str, float], unit: str) -> dict[str, Any]:
    return {"kind": "derived", "title": title, "unit": unit, "values": dict(values)}


DERIVED: Final[dict[str, Callable[[Records], dict[str, Any]]]] = {
    "transfers": transfers,
    "ratios": ratios,
    "slots": slots,
    "popular_inputs": popular_inputs,
}
