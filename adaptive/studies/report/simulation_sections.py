"""The sections of a page of simulations: what `simulate --json` printed."""

from collections.abc import Mapping, Sequence
from typing import Any

from adaptive.studies.charts import Line, curves
from adaptive.studies.report.blocks import Block, Gallery, Legend, Section, sections_of
from adaptive.studies.report.load import Loaded
from adaptive.studies.report.style import COLOURS
from adaptive.studies.simulate.simulation_report import simulation_document
from adaptive.training.telemetry.document import Table
from adaptive.training.telemetry.formatting import bytes_text


def is_simulation(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("runs"), list) and isinstance(record.get("machine"), dict)


def simulation_sections(loaded: Sequence[Loaded]) -> list[Section]:
    """A table, curves and the machine of each simulation."""
    return [section for one in loaded for section in _sections(one.record, f"{one.name}: " if len(loaded) > 1 else "")]


def _sections(result: Mapping[str, Any], where: str) -> list[Section]:
    ran = any(run["error"] is None for run in result["runs"])
    return [
        *sections_of(simulation_document(result), f"{where}Prediction"),
        *([Section(f"{where}By size of the device tier", _pictures(result))] if ran else []),
        Section(f"{where}Machine, as described", [Table([["", "value"], *_machine(result["machine"])])]),
    ]


def _pictures(result: Mapping[str, Any]) -> list[Block]:
    done = sorted((run for run in result["runs"] if run["error"] is None), key=lambda run: run["device_share"])
    policies = list(dict.fromkeys(run["policy"] for run in done))
    mine = {policy: [run for run in done if run["policy"] == policy] for policy in policies}
    bound = COLOURS - 1  # its colour is no policy's
    colours = {policy: number % bound + number // bound * COLOURS for number, policy in enumerate(policies)}

    def lines(name: str, factor: float = 1.0) -> list[Line]:
        return [
            Line(colours[policy], _shares(runs), [_times(run[name], factor) for run in runs], marked=True)
            for policy, runs in mine.items()
        ]

    def steps(name: str) -> list[Line]:
        return [
            Line(colours[policy], _shares(runs), [run["step_ms"][name] for run in runs], marked=True)
            for policy, runs in mine.items()
        ]

    best = [
        Line(bound, _shares(runs), [_times(run["belady_row_hit_rate"], 100) for run in runs], dashed=True)
        for runs in mine.values()
    ]
    labels = [""] * (max(*colours.values(), bound) + 1)
    for policy, number in colours.items():
        labels[number] = policy
    labels[bound] = "Belady: the most row hits that any policy could have had"
    x = "rows on the device (%)"
    batches = result["batches"] or 1
    return [
        Legend(labels),
        Gallery(
            [
                curves("Row hits (%)", [*lines("row_hit_rate", 100), *best], x=x),
                curves("Look-up hits (%)", lines("hit_rate", 100), x=x),
                curves("Modelled step with look-ahead (ms)", steps("look_ahead"), x=x, zero=True),
                curves("Modelled step without overlap (ms)", steps("serial"), x=x, zero=True),
                curves("KiB to the device, per batch", lines("bytes_h2d", 1 / 1024 / batches), x=x, zero=True),
                curves("Planning a batch, measured here (ms)", lines("plan_ms"), x=x, zero=True),
            ]
        ),
    ]


def _shares(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    return [100 * float(run["device_share"]) for run in runs]


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _machine(machine: Mapping[str, Any]) -> list[list[str]]:
    texts = {"link": "between the tiers, each way", "device": "memory of the device", "host": "memory of the host"}
    found = {text: machine[f"{name}_bytes_per_s"] for name, text in texts.items()}
    rates = [[text, "nothing crosses" if rate is None else f"{bytes_text(rate)}/s"] for text, rate in found.items()]
    dense = [
        ["dense part of a step", f"{machine['dense_ms']:g} ms"],
        ["dense weights", bytes_text(machine["dense_bytes"])],
    ]
    return [*rates, *dense]
