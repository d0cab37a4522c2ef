"""The sections of a page of comparisons: what `compare` found, and the runs of the first seed side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from adaptive.storage.run_directory import RECORD
from adaptive.studies.charts import bars, intervals
from adaptive.studies.compare.comparison_report import comparison_document
from adaptive.studies.report.blocks import Block, Gallery, Picture, Section, sections_of
from adaptive.studies.report.load import MOST, Loaded, load_run
from adaptive.studies.report.run_sections import BESIDE, learning
from adaptive.studies.report.runs import RunView, views
from adaptive.studies.report.runs_recorded import settings
from adaptive.studies.report.runs_tiers import tiers, traffic
from adaptive.training.telemetry.record import STAGES

MIB: Final = 1024 * 1024


def is_comparison(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("policies"), list) and "auc_budget" in record


def comparison_sections(loaded: Sequence[Loaded]) -> list[Section]:
    """Tables, verdicts and pictures of each comparison; the runs' own curves where there is one."""
    sections = [section for one in loaded for section in _sections(one, of_several=len(loaded) > 1)]
    return sections + (_runs(loaded[0]) if len(loaded) == 1 else [])


def _sections(one: Loaded, *, of_several: bool) -> list[Section]:
    where = f"{one.name}: " if of_several else ""
    tables = sections_of(comparison_document(one.record), "Result")
    named = [replace(part, title=f"{where}{_title(part.title)}") for part in tables]
    drawn = any(policy["seeds"] for policy in one.record["policies"])
    return [*named, *([Section(f"{where}In pictures", _pictures(one.record))] if drawn else [])]


def _title(heading: str) -> str:
    return heading if heading in ("Result", "All values") else f"Result, {heading}"


def _pictures(result: Mapping[str, Any]) -> list[Block]:
    mine = [one for one in result["policies"] if one["seeds"]]
    names = [_name(one) for one in mine]
    budget = float(result["auc_budget"])
    first: list[Picture] = [
        intervals("AUC less the control's", names, [(one["auc_difference"], one["auc_difference_ci"]) for one in mine],
                  x="AUC (dotted: none, and the budget)", marks=(0.0, -budget)),
        intervals("AUC", names, [(one["auc"], _around(one)) for one in mine], x="mean, and one standard deviation"),
        bars("Samples per second", names, [("samples/s", [float(one["samples_per_s"] or 0) for one in mine])], x=""),
    ]  # fmt: skip
    known = [name for name in (*STAGES, "policy") if any(name in one["time_ms"] for one in mine)]
    own = [name for name in known if name not in BESIDE]
    parts = [(name, [float(one["time_ms"].get(name) or 0.0) for one in mine]) for name in own]
    stages = bars("Stages of a step of training", names, parts, x="ms per step")
    ways = {"to the device": "bytes_h2d", "to the host": "bytes_d2h"}
    moved = [(way, [_mib(one, name) for one in mine]) for way, name in ways.items()]
    return [Gallery([*first, bars("MiB per step", names, moved, x="MiB"), stages], wide=True)]


def _name(one: Mapping[str, Any]) -> str:
    swept = ", ".join(f"{key}={value}" for key, value in one.get("swept", {}).items())
    return f"{one['policy']} {swept}".strip()


def _around(one: Mapping[str, Any]) -> tuple[float, float] | None:
    return None if one["auc_std"] is None else (one["auc"] - one["auc_std"], one["auc"] + one["auc_std"])


def _mib(one: Mapping[str, Any], name: str) -> float:
    return float(one[name] or 0) / max(float(one["steps"] or 1), 1) / MIB


def _runs(one: Loaded) -> list[Section]:
    """The runs of the first seed, if they still lie beside the comparison."""
    if not one.path.is_dir():
        return []
    seeds = sorted({path for path in one.path.glob("seed-*") if path.is_dir()})
    folders = sorted(file.parent for file in seeds[0].glob(f"**/{RECORD}"))[:MOST] if seeds else []
    runs: list[RunView] = views([load_run(folder) for folder in folders]) if folders else []
    parts = [part(runs) for part in (learning, tiers, traffic, settings)] if runs else []
    return [Section(f"{seeds[0].name}: {part.title}", part.blocks) for part in parts if part is not None]
