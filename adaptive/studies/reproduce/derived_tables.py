"""Tables derived from the records of several commands, for several papers.

Transfers are counted, ratios of systems are modeled, quality by step is trained here.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from adaptive.storage.files import from_json
from adaptive.storage.run_directory import RECORD
from adaptive.studies.machines import load_machine
from adaptive.studies.placements.placement_study import from_profile
from adaptive.studies.placements.shape import load_shape
from adaptive.studies.profile import DataProfile
from adaptive.studies.reproduce.paper import Claim, Curves, DerivedTable, Records, over
from adaptive.studies.step_model import StepModel, rates_of
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord

MODELED_ON: Final = "v100-pcie3"
SHAPE: Final = "rmc2"
SHARE: Final = 0.07  # share of the rows on the device, as in FAE's Criteo Kaggle
MEMORY: Final = "5%,7%,10%"  # of `profile`, in whose records ratios look for hot inputs
SKEWED: Final = "--set data.synthetic.setting=skewed"  # the papers' popularity


def transfers(records: Records) -> DerivedTable:
    """MiB per step between host and device: FAE's tables 6 and 7, Hotline's table 6.

    DLRM moves the vectors of `hybrid`, XDL each distinct row of a batch once (see `step_model`), FAE also copies its
    hot rows between their two homes. Policies trained here are counted (measured). The note has the time that this
    takes on the link of a V100 (modeled).
    """
    policies = {policy["policy"]: policy for policy in records["compare"]["policies"] if policy["steps"]}
    hybrid, data = policies["hybrid"], from_json(DataProfile, records["data"]["data"])
    vectors = _bytes_per_step(hybrid)
    distinct = from_profile(data, "the data").distinct_share(round(hybrid["samples"] / hybrid["steps"]))
    sizes = {"DLRM": vectors, "XDL": vectors * distinct * data.lookups / (data.samples * len(data.tables))}
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

    Uses hot shares measured in the data, with 7% of the rows on the device. Slipstream has fewer hot inputs by the
    largest share that a policy of the comparison dropped without losing more than the budget of AUC.
    """
    model = step_model(records)
    device, dlrm, gather = sum(model.on_device().values()), host_step_ms(model), sum(model.misses().values())
    rates = model.rates
    rule, dropped = dropped_within_budget(records)
    hot, cold = max(model.hot - dropped, 0.0), 1 - max(model.hot, dropped)
    steps = {
        "XDL": dlrm - model.traffic.vectors_ms(rates.link) + model.traffic.distinct_ms(rates.link),
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
        f"{100 * model.hot:.1f}% of the inputs are hot and {100 * dropped:.1f}% are dropped within the budget of AUC "
        f"({rule or 'no rule'}; measured). Slipstream over {wins}."
    )
    details = {"hot_inputs": model.hot, "dropped": dropped, "step_ms": steps, "dense_ms": model.dense_ms()}
    return DerivedTable("ratios", f"Speed over DLRM's, modeled on {MODELED_ON}", "x", speeds, note, details=details)


def dropped_within_budget(records: Records) -> tuple[str, float]:
    """Return the policy that dropped most inputs and lost no more than the budget of AUC, and its share.

    A policy counts with its mean over seeds, unless the comparison shows a larger loss. Controls that drop at random
    count, too.
    """
    compared = records.get("compare", {"policies": []})
    shares = {
        policy["policy"]: float(policy["skipped_input_share"] or 0.0)
        for policy in compared["policies"]
        if policy["auc_difference"] is not None
        and policy["auc_difference"] >= -float(compared["auc_budget"])
        and policy["verdict"] != "outside"
    }
    best = max(shares, key=shares.__getitem__, default="")
    return (best, shares[best]) if shares.get(best) else ("", 0.0)


def headlines(speeds: DerivedTable, system: str, published: Mapping[str, tuple[float, str]]) -> Iterator[Claim]:
    """Yield a claim for each ratio over another system that a paper reports, against the modeled ratio.

    Args:
        speeds: from `ratios`.
        system: the paper's.
        published: other system -> ratio and its place in the paper.
    """
    steps, dense = speeds.details["step_ms"], speeds.details["dense_ms"]
    for other, (ratio, place) in published.items():
        why = (
            f"a step takes {steps[system]:.3f} instead of {steps[other]:.3f} ms as modeled, {dense:.3f} of them in the "
            f"dense part: with all inputs and all rows on the device it would be {steps[other] / dense:.3g} times as "
            f"fast at most; {100 * speeds.details['hot_inputs']:.0f}% of the inputs are hot and "
            f"{100 * speeds.details['dropped']:.0f}% are dropped"
        )
        ours = over(speeds.values[system], speeds.values[other])
        yield Claim(f"{system} is {ratio:g} times as fast as {other}, modeled ({place})", ours, "about", ratio, why)


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
