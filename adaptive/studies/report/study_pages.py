"""Blocks of a page of a study: a comparison, a profile, placements or a simulation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from adaptive.storage.files import from_json
from adaptive.storage.run_directory import RECORD
from adaptive.studies.charts import bars, drawn_figure, intervals
from adaptive.studies.compare import Comparison
from adaptive.studies.compare.comparison_report import comparison_document
from adaptive.studies.placements.placement_report import (
    DRAW,
    LEGEND,
    STOPPED,
    lines_table,
    measured_table,
    placements_document,
)
from adaptive.studies.placements.placement_study import PlacementStudy
from adaptive.studies.profile import Profile
from adaptive.studies.profile.profile_report import PICTURES, TITLES, has_section, profile_document
from adaptive.studies.report.page_records import MAX_RECORDS, JsonObject, PageRecord, load_run
from adaptive.studies.report.run_page import shared_blocks, stages_of
from adaptive.studies.simulate.simulation import Simulation
from adaptive.studies.simulate.simulation_report import draw_curves, simulation_document
from adaptive.training.telemetry.document import (
    Blocks,
    Document,
    Figure,
    Folded,
    Gallery,
    Heading,
    Note,
    Table,
    prefixed,
    sections_of,
    visible,
)
from adaptive.training.telemetry.formatting import bytes_text

MIB: Final = 1024 * 1024
MAX_LINES: Final = 32  # a longer table of placements is folded


def comparison_blocks(comparison: PageRecord, *, is_alone: bool) -> Blocks:
    """Tables, verdicts and pictures; alone, also curves of the first seed's runs."""
    record = comparison.record
    blocks: Blocks = [Heading("Result")]
    for block in comparison_document(from_json(Comparison, record)).blocks:
        if isinstance(block, Heading) and block.text not in ("Result", "All values"):
            block = Heading(f"Result, {block.text}")
        blocks.append(block)
    if trained := [policy for policy in record["policies"] if policy["seeds"]]:
        figures = _comparison_figures(trained, float(record["auc_budget"]))
        blocks += [Heading("Charts"), Gallery(figures, wide=True)]
    for seed in sorted(path for path in comparison.path.glob("seed-*") if path.is_dir())[: int(is_alone)]:
        folders = sorted(file.parent for file in seed.glob(f"**/{RECORD}"))[:MAX_RECORDS]
        blocks += prefixed(shared_blocks(list(map(load_run, folders))), f"{seed.name}: ")
    return blocks


def _comparison_figures(policies: Sequence[JsonObject], budget: float) -> list[Figure]:
    names = []
    for policy in policies:
        swept = ", ".join(f"{key}={value}" for key, value in policy.get("swept", {}).items())
        names.append(f"{policy['policy']} {swept}".strip())

    def around(policy: JsonObject) -> tuple[float, float] | None:
        mean, deviation = policy["auc"], policy["auc_std"]
        return None if deviation is None else (mean - deviation, mean + deviation)

    def per_step(name: str) -> list[float]:
        return [float(policy[name] or 0) / max(float(policy["steps"] or 1), 1) / MIB for policy in policies]

    differences = [(policy["auc_difference"], policy["auc_difference_ci"]) for policy in policies]
    aucs = [(policy["auc"], around(policy)) for policy in policies]
    speeds = [float(policy["samples_per_s"] or 0) for policy in policies]
    training, _ = stages_of([policy["time_ms"] for policy in policies])
    stages = [(name, [float(policy["time_ms"].get(name) or 0.0) for policy in policies]) for name in training]
    moved = [("to the device", per_step("bytes_h2d")), ("to the host", per_step("bytes_d2h"))]
    dotted = "AUC (dotted: 0 and the budget)"
    return [
        intervals("AUC minus the control's", names, differences, x=dotted, marks=(0.0, -budget)),
        intervals("AUC", names, aucs, x="mean and one standard deviation"),
        bars("Samples per second", names, [("samples/s", speeds)], x=""),
        bars("MiB per step", names, moved, x="MiB"),
        bars("Stages of a training step", names, stages, x="ms per step"),
    ]


CAPTIONS: Final = {
    "skew": ("tables", "Lookups by row"),
    "tables": ("tables", "Rows and lookups of tables"),
    "hot": ("hot", "Hot rows and hot inputs by threshold"),
    "reuse": ("reuse", "Row reuse, and distinct rows"),
    "step": ("step", "Stages of a step"),
    "movement": ("movement", "Movement of hot rows"),
    "drop": ("movement", "Inputs and updates that a threshold would leave out"),
}
"""Picture of a profile -> the table that it belongs to, and its title."""


def profile_blocks(profile: PageRecord, *, is_alone: bool) -> Blocks:
    """A section per table of a profile, with its pictures."""
    figures, blocks = profile_figures(profile.record), Blocks()
    for title, section in sections_of(
        [Heading("Data and device size"), *profile_document(from_json(Profile, profile.record)).blocks]
    ):
        gallery = [Gallery(figures[title], wide=True)] if title in figures else []
        blocks += [Heading(title), *section, *gallery]
    return blocks or [Heading("Profile"), Note("It was stopped before a section was done.")]


def profile_figures(record: JsonObject) -> dict[str, list[Figure]]:
    """Heading of a profile's table -> its pictures."""
    profile, figures = from_json(Profile, all_visible(record)), dict[str, list[Figure]]()
    for name, (section, draw) in PICTURES.items():
        if has_section(profile, section):
            table, title = CAPTIONS.get(name, (section, name))
            figure = drawn_figure(title, partial(draw, getattr(profile, section)), size=(6.6, 3.6))
            figures.setdefault(TITLES[table], []).append(figure)
    return figures


def placement_blocks(placements: PageRecord, *, is_alone: bool) -> Blocks:
    """Modelled placements with their picture, and measured ones next to them."""
    study, drawn = (from_json(PlacementStudy, record) for record in (placements.record, all_visible(placements.record)))
    draw = DRAW[len(study.sweep)]
    figure = drawn_figure("Throughput (modeled)", lambda figure: draw(figure, drawn), size=(7.2, 4.4))
    rows = lines_table(study)
    is_long = len(rows) > MAX_LINES
    lines = Folded(f"All {len(rows) - 1} lines", [Table(rows)]) if is_long else Table(rows)
    blocks: Blocks = [Heading("Placements, modeled"), Gallery([figure], wide=True), lines, Note(LEGEND)]
    if study.measured:
        blocks += [Heading("Trained here, next to the model"), Table(measured_table(study))]
    if study.was_stopped:
        blocks += [Heading("Not all placements were trained"), Note(STOPPED)]
    machines = [["machine", "source of its numbers", "other numbers"]]
    machines += [[machine.name, machine.source, machine.note] for machine in study.machines]
    return [*blocks, Heading("Machines"), Table(machines, numbers=False)]


def all_visible(value: Any) -> Any:
    """Return the JSON value with every text made visible, as pictures write names unescaped."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {key: all_visible(item) for key, item in value.items()}
    return list(map(all_visible, value)) if isinstance(value, list) else value


def simulation_blocks(page: PageRecord, *, is_alone: bool) -> Blocks:
    """Table, picture and machine of a simulation."""
    simulation, drawn = (from_json(Simulation, record) for record in (page.record, all_visible(page.record)))
    blocks: Blocks = [Heading("Prediction"), *simulation_document(simulation).blocks]
    if simulation.runs:
        title = "Row hits, and modeled steps"
        figure = drawn_figure(title, lambda figure: draw_curves(drawn, figure), size=(9.0, 3.8))
        blocks += [Heading("By size of the device tier"), Gallery([figure], wide=True)]
    machine = simulation.machine
    rates = {
        "between the tiers, per direction": machine.link_bytes_per_s,
        "memory of the device": machine.device_bytes_per_s,
        "memory of the host": machine.host_bytes_per_s,
    }
    rows = [[text, "nothing crosses" if rate is None else f"{bytes_text(rate)}/s"] for text, rate in rates.items()]
    rows.append(["dense part of a step", f"{machine.dense_ms:g} ms"])
    return [*blocks, Heading("Machine, as described"), Table([["", "value"], *rows])]


@dataclass(frozen=True)
class Study:
    """A kind of record.

    Attributes:
        is_record: True for JSON objects of this kind only.
        result: the class of the record.
        to_document: its tables, for the terminal.
        page: its blocks on a page, with pictures; `is_alone` if the page shows no other record.
    """

    is_record: Callable[[JsonObject], bool]
    result: type[Any]
    to_document: Callable[[Any], Document]
    page: Callable[..., Blocks]

    def document(self, record: JsonObject) -> Document:
        """The tables of a JSON object of this kind."""
        return self.to_document(from_json(self.result, record))


def _is_comparison(record: JsonObject) -> bool:
    return isinstance(record.get("policies"), list) and "auc_budget" in record


def _is_simulation(record: JsonObject) -> bool:
    return isinstance(record.get("runs"), list) and isinstance(record.get("machine"), dict)


def _is_of(kind: str) -> Callable[[JsonObject], bool]:
    return lambda record: record.get("kind") == kind


STUDIES: Final = {
    "comparison": Study(_is_comparison, Comparison, comparison_document, comparison_blocks),
    "profile": Study(_is_of("profile"), Profile, profile_document, profile_blocks),
    "placements": Study(_is_of("placements"), PlacementStudy, placements_document, placement_blocks),
    "simulation": Study(_is_simulation, Simulation, simulation_document, simulation_blocks),
}


def study_of(record: JsonObject) -> Study | None:
    """Return the study that a record is of."""
    return next((study for study in STUDIES.values() if study.is_record(record)), None)
