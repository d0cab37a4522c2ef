"""Tables derived from the records of several commands, for several papers.

Transfers are counted, ratios of systems are modeled, quality by step is trained here.
"""

from pathlib import Path
from typing import Final

from adaptive.storage.run_directory import RECORD
from adaptive.storage.untrusted import from_json
from adaptive.studies.machines import load_machine
from adaptive.studies.placements.placement_study import from_profile
from adaptive.studies.placements.shape import load_shape
from adaptive.studies.profile import DataProfile
from adaptive.studies.reproduce.paper import Curves, DerivedTable, Records
from adaptive.studies.step_model import StepModel, rates_of
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord

MODELED_ON: Final = "v100-pcie3"
SHAPE: Final = "rmc2"
SHARE: Final = 0.1  # share of the rows on the device


def transfers(records: Records) -> DerivedTable:
    """MiB per step between host and device: FAE's tables 6 and 7, Hotline's table 6.

    DLRM moves the vectors of `hybrid`, XDL also all dense weights in both directions, FAE also copies its hot rows
    between their two homes. Policies trained here are counted (measured). The note has the time that this takes on the
    link of a V100 (modeled).
    """
    policies = {policy["policy"]: policy for policy in records["compare"]["policies"] if policy["steps"]}
    vectors = _bytes_per_step(policies["hybrid"])
    sizes = {"DLRM": vectors, "XDL": vectors + 2 * records["step"]["step"][0]["dense_bytes"]}
    for name, policy in policies.items():
        if copies := float(policy["policy_numbers"].get("two_home_bytes", 0.0)) / policy["steps"]:
            sizes[f"{name}, two homes"] = _bytes_per_step(policy) + copies
        if name != "hybrid":  # the same as DLRM
            sizes[f"{name} here"] = _bytes_per_step(policy)
    link = rates_of(load_machine(MODELED_ON)).link
    times = ", ".join(f"{name} {1e3 * size / link:.3g}" for name, size in sizes.items())
    note = f"Milliseconds per step on the link of {MODELED_ON}, one direction after the other (modeled): {times}."
    title = "MiB per step between host and device, by design (measured)"
    return DerivedTable("transfers", title, "MiB", {name: size / 2**20 for name, size in sizes.items()}, note)


def _bytes_per_step(policy: Records) -> float:
    """Bytes per step in both directions."""
    return float((policy["bytes_h2d"] + policy["bytes_d2h"]) / policy["steps"])


def ratios(records: Records) -> DerivedTable:
    """Throughput over DLRM's, modeled on a V100 with the shape RMC2.

    Uses hot shares measured in the data, with 10% of the rows on the device. Slipstream has fewer hot inputs by the
    share that a policy of the comparison dropped.
    """
    model = step_model(records)
    link = 1e3 * 2 * model.shape.dense_bytes / model.rates.link
    device, dlrm, gather = sum(model.on_device().values()), host_step_ms(model), sum(model.misses().values())
    policies = records.get("compare", {}).get("policies", [])
    dropped = max((float(policy["skipped_input_share"] or 0.0) for policy in policies), default=0.0)
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
    wins = ", ".join(f"{name} {speeds['Slipstream'] / speeds[name]:.3g}x" for name in ("XDL", "DLRM", "FAE", "Hotline"))
    note = (
        f"{100 * model.hot:.1f}% of the inputs are hot and {100 * dropped:.1f}% are dropped (measured). "
        f"Slipstream over {wins}."
    )
    details = {"hot_inputs": model.hot, "dropped": dropped, "step_ms": steps}
    return DerivedTable("ratios", f"Speed over DLRM's, modeled on {MODELED_ON}", "x", speeds, note, details=details)


def step_model(records: Records) -> StepModel:
    """Model of a step on a V100, with the locality that the command `data` measured."""
    locality = from_profile(from_json(DataProfile, records["data"]["data"]), "the data")
    return StepModel(load_shape(SHAPE), rates_of(load_machine(MODELED_ON)), locality, device_share=SHARE)


def host_step_ms(model: StepModel) -> float:
    """Milliseconds of a DLRM step: all tables on the host."""
    return sum(model.on_host().values()) + model.dense_ms()


def evaluations_by_step(records: Records, name: str) -> DerivedTable:
    """AUC or accuracy of the held-out samples by step: FAE's figure 12, Hotline's figure 14.

    Uses the first seed's runs that still exist.
    """
    label, factor = {"auc": ("AUC", 1.0), "accuracy": ("accuracy (%)", 100.0)}[name]
    lines: dict[str, list[tuple[float, float]]] = {}
    for policy in records["compare"]["policies"]:
        folders = [Path(run["run_dir"]) for run in policy["runs"][:1] if (Path(run["run_dir"]) / RECORD).exists()]
        for record in (record for folder in folders for record in read_metrics(folder / "metrics.jsonl")):
            if isinstance(record, EvalRecord) and (value := getattr(record, name)) is not None:
                lines.setdefault(policy["policy"], []).append((float(record.step), factor * value))
    last = {policy: points[-1][1] for policy, points in lines.items()}
    title = f"{label[0].upper()}{label[1:]} of held-out samples by step, first seed (measured)"
    id = "quality" if name == "auc" else name
    return DerivedTable(id, title, f"{label} at the end", last, curves=Curves("step", label, lines))
