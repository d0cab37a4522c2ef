"""Blocks of a page of runs, side by side: quality, time, and the settings and data."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from adaptive.studies.charts import bars
from adaptive.studies.compare.comparison_report import auc_lead, best_text, sentence, speed_lead
from adaptive.studies.report.page_records import JsonObject, PageRecord
from adaptive.studies.report.run_rows import rows_between_ranks, rows_in_tiers, rows_moved, rows_skipped
from adaptive.studies.report.run_view import RunView, charts, evaluation_figures, run_legend, views
from adaptive.training.telemetry.document import (
    Blocks,
    Columns,
    Figure,
    Folded,
    Gallery,
    Heading,
    Note,
    Table,
)
from adaptive.training.telemetry.formatting import (
    accuracy_text,
    count_text,
    number_text,
    percent_text,
    score_text,
)
from adaptive.training.telemetry.record import STAGES

LOOK_AHEAD: Final = ("read", "learn", "plan", "write_back", "fetch", "policy")  # stages of planning
FIRST_CURVES: Final = 4  # curves next to the table of quality
MAX_REPORTED: Final = 9  # numbers of policies with a curve
MAX_CHARACTERS: Final = 2000  # of a setting
STAGES_NOTE: Final = (
    "The first stages add up to a training step. The others run in other threads, next to training, or between steps, "
    "and cost time only where training waits for them (the stage wait). The bars and the table leave out the first "
    "interval, in which kernels are compiled, if there are others."
)


def run_blocks(records: Sequence[PageRecord]) -> Blocks:
    """Quality first, then its cost, then settings and data."""
    runs = views(records)
    return [block for part in _PARTS for block in part(runs)]


def shared_blocks(records: Sequence[PageRecord]) -> Blocks:
    """Parts of the runs of a comparison that its tables do not have."""
    runs = views(records) if records else []
    return [*learning(runs), *rows_in_tiers(runs), *rows_moved(runs), *settings(runs)]


def _quality(runs: Sequence[RunView]) -> Blocks:
    """Table with a column per run, and the first curves."""
    rows = [[title, *(text(run.summary) for run in runs)] for title, text in _QUALITY]
    status = ["status", *(": ".join(str(run.record.get(k, "-")) for k in _status_keys(run)) for run in runs)]
    table = Table([_head(runs), status, *(row for row in rows if any(cell != "-" for cell in row[1:]))])
    figures = _learning_figures(runs)[:FIRST_CURVES]
    blocks: Blocks = [Heading("Quality"), *([Note(text, is_lead=True)] if (text := summary_sentence(runs)) else [])]
    blocks.append(Columns([table], [run_legend(runs), Gallery(figures)]) if figures else table)
    if without := [run.name for run in runs if not run.stretches]:
        blocks.append(
            Note(f"There are no curves for {', '.join(without)}: metrics.jsonl is missing or has no interval.")
        )
    return blocks


def _head(runs: Sequence[RunView], first: str = "") -> list[str]:
    return [first, *(run.name for run in runs)]


def _status_keys(run: RunView) -> list[str]:
    return ["status", *(["error"] if run.record.get("error") else [])]


def _judged_on(summary: JsonObject) -> str:
    if summary.get("auc_of") == "evaluation":
        return f"{count_text(summary.get('eval_samples'))} held-out samples"
    return "predictions during training" if summary.get("auc_of") == "training" else "-"


def _best(summary: JsonObject) -> str:
    best = summary.get("best")
    if not isinstance(best, dict):
        return "-"
    use = ", whose weights eval, predict and export use" if best.get("saved") else ""
    return f"{best.get('metric')} {score_text(best.get('value'))} at step {count_text(best.get('step'))}{use}"


def _target(summary: JsonObject) -> str:
    target = summary.get("stop_at")
    if not isinstance(target, dict):
        return "-"
    end = f"reached at step {count_text(target.get('step'))}" if target.get("reached") else "not reached"
    return f"{target.get('metric')} {target.get('target')}, {end}"


def _entry(text: Callable[[Any], str], name: str) -> Callable[[JsonObject], str]:
    return lambda summary: text(summary.get(name))


_QUALITY: Final[tuple[tuple[str, Callable[[JsonObject], str]], ...]] = (
    ("policy", lambda summary: str(summary.get("policy", "-"))),
    ("steps", _entry(count_text, "steps")),
    ("samples", _entry(count_text, "samples")),
    ("AUC", _entry(score_text, "auc")),
    ("log loss", _entry(score_text, "log_loss")),
    ("accuracy", _entry(accuracy_text, "accuracy")),
    ("normalized entropy", _entry(score_text, "normalised_entropy")),
    ("calibration", _entry(score_text, "calibration")),
    ("judged on", _judged_on),
    ("best evaluation", _best),
    ("hit rate of lookups", _entry(percent_text, "hit_rate")),
    ("hit rate of distinct rows", _entry(percent_text, "row_hit_rate")),
    ("device rows", _entry(count_text, "device_rows")),
    ("samples/s", _entry(count_text, "samples_per_s")),
    ("samples/s after the first interval", _entry(count_text, "samples_per_s_later")),
    ("target", _target),
)


def summary_sentence(runs: Sequence[RunView]) -> str:
    """Name the runs with the best AUC and speed, and their lead over the next."""
    judged = {run.summary.get("auc_of") for run in runs}  # AUCs of different samples cannot be compared
    judge = "evaluation" if "evaluation" in judged else "training"
    comparable = [run for run in runs if run.summary.get("auc_of") == judge and run.summary.get("auc") is not None]
    aucs = {run.name: float(run.summary["auc"]) for run in comparable}
    speeds = {run.name: float(rate) for run in runs if (rate := _speed(run.summary)) is not None}
    if len(runs) == 1:
        texts = [f"AUC {score_text(auc)}" for auc in aucs.values()]
        return "; ".join([*texts, *(f"{count_text(speed)} samples/s" for speed in speeds.values())])
    return sentence(
        best_text("highest AUC", aucs, score_text, auc_lead, _second(aucs)),
        best_text("fastest", speeds, lambda rate: f"{count_text(rate)} samples/s", speed_lead, _second(speeds)),
    )


def _speed(summary: JsonObject) -> float | None:
    return summary.get("samples_per_s_later") or summary.get("samples_per_s")


def _second(values: Mapping[str, float]) -> str | None:
    """Name of the best value below the maximum."""
    lower = [name for name, value in values.items() if value < max(values.values())]
    return max(lower, key=values.__getitem__, default=None)


def _learning_figures(runs: Sequence[RunView]) -> list[Figure]:
    """Curves of quality and speed, the most important first."""
    return [
        *charts(runs, ("Loss of training", lambda stretch: stretch.loss), zero=False).figures,
        *evaluation_figures("AUC of evaluations", runs, "auc"),
        *charts(
            runs,
            ("AUC of predictions during training, so far", lambda stretch: stretch.last.auc),
            ("Log loss of predictions during training, so far", lambda stretch: stretch.last.log_loss),
            zero=False,
        ).figures,
        *evaluation_figures("Log loss of evaluations", runs, "log_loss"),
        *charts(runs, ("Samples per second", lambda stretch: stretch.totals.samples_per_s)).figures,
    ]


def learning(runs: Sequence[RunView], *, first: int = 0) -> Blocks:
    """Curves of quality and speed, from the curve with index `first` on."""
    figures = _learning_figures(runs)[first:]
    if not figures:
        return []
    steps = {run.name: ", ".join(count_text(resume.step) for resume in run.resumes) for run in runs if run.resumes}
    resumed = [Note(f"{name}: resumed after step {at}") for name, at in steps.items()]
    return [Heading("Learning"), run_legend(runs), Gallery(figures), *resumed]


def _more_learning(runs: Sequence[RunView]) -> Blocks:
    return learning(runs, first=FIRST_CURVES)


def stages_of(times: Sequence[JsonObject]) -> tuple[list[str], list[str]]:
    """Names of the stages in `times`: those of the training thread, and those next to it."""
    names = [name for name in (*STAGES, "policy") if any(name in time for time in times)]
    return [name for name in names if name not in LOOK_AHEAD], [name for name in names if name in LOOK_AHEAD]


def _stages(runs: Sequence[RunView]) -> Blocks:
    """Time of a step by stage, in the training thread and next to it."""
    runs = [run for run in runs if run.summary.get("time_ms")]
    if not runs:
        return []
    times = [run.summary["time_ms"] for run in runs]
    training, others = stages_of(times)

    def stage_bars(title: str, names: Sequence[str], first: int) -> list[Figure]:
        parts = [(name, [float(time.get(name) or 0.0) for time in times]) for name in names]
        return [bars(title, [run.name for run in runs], parts, x="ms per step", first=first)] if names else []

    rows = [[name, *(f"{time[name]:.2f}" if name in time else "-" for time in times)] for name in (*training, *others)]
    figures = [
        *stage_bars("In the training thread", training, 0),
        *stage_bars("In other threads, next to training", others, len(training)),
    ]
    over_time = charts(
        runs,
        *(
            (f"{name}, ms per step", lambda stretch, name=name: stretch.totals.time_ms.get(name))
            for name in ("forward", "backward", "wait", "read", "plan", "fetch")
        ),
    )
    table = Table([_head(runs, "ms per step"), *rows])
    return [
        Heading("Stages of a step"),
        Note(STAGES_NOTE),
        Columns([table], [Gallery(figures, wide=True)]),
        *([Folded("Stages over time", [run_legend(runs), over_time])] if over_time.figures else []),
    ]


def _reported(runs: Sequence[RunView]) -> Blocks:
    """Numbers that policies report: the latest, and curves of those that change."""
    latest = [run.summary.get("policy_numbers") or run.totals.policy for run in runs]
    names = list(dict.fromkeys(name for numbers in latest for name in numbers))
    if not names:
        return []
    rows = [[name, *(number_text(name, numbers.get(name)) for numbers in latest)] for name in names]
    values = {name: [{s.last.policy.get(name) for s in run.stretches} - {None} for run in runs] for name in names}
    moving = [name for name in names if any(len(distinct) > 1 for distinct in values[name])][:MAX_REPORTED]
    curves = charts(
        runs, *((name, lambda stretch, name=name: stretch.last.policy.get(name)) for name in moving), zero=False
    )
    blocks: Blocks = [Heading("Policy reports"), Table([_head(runs, "latest"), *rows])]
    return [*blocks, run_legend(runs), curves] if moving else blocks


def _bad_lines(runs: Sequence[RunView]) -> Blocks:
    """Bad lines by cause, and the text of the first."""
    blocks: Blocks = []
    for run in runs:
        for key, head, caption in (
            ("rejected_lines", ["cause", "lines"], "lines rejected"),
            ("out_of_range_ids", ["feature", "lookups"], "ids outside the table, mapped to the row for unknown ids"),
            ("truncated_sequences", ["feature", "samples"], "sequences cut to the latest max_length ids"),
        ):
            if counts := run.summary.get(key):
                rows = [head, *([name, count_text(count)] for name, count in counts.items())]
                blocks.append(Table(rows, caption=f"{run.name}: {caption}"))
        if run.rejects:
            title = f"First bad lines of {run.name} ({len(run.rejects)})"
            bad = [
                [f"{bad.get('file')}:{bad.get('line')}", *(str(bad.get(name, "")) for name in _BAD_LINE)]
                for bad in run.rejects
            ]
            blocks.append(Folded(title, [Table([["where", *_BAD_LINE], *bad], numbers=False)]))
    return [Heading("Bad lines"), *(blocks or [Note("None.")])]


_BAD_LINE: Final = ("cause", "column", "text")


def settings(runs: Sequence[RunView]) -> Blocks:
    """Every setting; for several runs, first those that differ."""
    head, rows = _side_by_side(runs, "setting", [_flat(run.config) for run in runs])
    everything = Folded(f"All {len(rows)} settings", [Table([head, *rows], numbers=False)])
    if len(runs) == 1:
        return [Heading("Settings"), everything]
    different = [row for row in rows if len(set(row[1:])) > 1]
    table = Table([head, *different], "where the runs differ", numbers=False)
    return [Heading("Settings"), table if different else Note("The runs have the same settings."), everything]


def _side_by_side(runs: Sequence[RunView], first: str, facts: Sequence[dict[str, str]]) -> tuple[list[str], list[Any]]:
    """Head and rows of a table of the facts of each run."""
    keys = dict.fromkeys(key for of_run in facts for key in of_run)
    return _head(runs, first), [[key, *(of_run.get(key, "-") for of_run in facts)] for key in keys]


def _flat(config: JsonObject, prefix: str = "") -> dict[str, str]:
    """Dotted key -> value as JSON; text stays as it is."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            cut = f"{text[:MAX_CHARACTERS]} ... ({len(text):,} characters)"
            flat[f"{prefix}{key}"] = text if len(text) <= MAX_CHARACTERS else cut
    return flat


def _origin(runs: Sequence[RunView]) -> Blocks:
    """Data, versions, machine and times."""
    facts = []
    for run in runs:
        record, data, rows = run.record, run.record.get("data"), run.table_rows
        tables = {"tables": count_text(len(rows)), "rows of all tables": count_text(sum(rows.values()))}
        facts.append(
            {name: str(record[name]) for name in ("start", "end", "host", "device", "folder") if name in record}
            | _flat(record.get("versions") or {}, "version of ")
            | (tables if rows else {})
            | (_flat(data, "data: ") if isinstance(data, dict) else {})
        )
    head, rows_of_facts = _side_by_side(runs, "", facts)
    return [Heading("Data, versions and machine"), Table([head, *rows_of_facts], numbers=False)]


_PARTS: Final[tuple[Callable[[Sequence[RunView]], Blocks], ...]] = (
    _quality,
    _more_learning,
    _stages,
    rows_in_tiers,
    rows_moved,
    rows_between_ranks,
    rows_skipped,
    _reported,
    _bad_lines,
    settings,
    _origin,
)
