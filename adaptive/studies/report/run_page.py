"""The blocks of a page of runs, side by side where there are several: quality, time, and what the run was."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from adaptive.studies.charts import bars, intervals
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
    guard_text,
    number_text,
    percent_text,
    score_text,
)
from adaptive.training.telemetry.record import STAGES, GuardRecord

BESIDE: Final = ("read", "learn", "plan", "write_back", "fetch", "policy")  # in threads of their own
SHOWN_FIRST: Final = 4  # curves next to the table of quality
MOST_REPORTED: Final = 9  # numbers of policies with a curve
MOST_CHARACTERS: Final = 2000  # of a setting
STAGES_NOTE: Final = (
    "The first stages add up to a step of training. The others run next to it, in threads of their own: they cost time "
    "only as far as training waits for them, which is the stage wait. The first interval, in which kernels are "
    "compiled, is left out of the bars and the table where there are others."
)


def run_blocks(records: Sequence[PageRecord]) -> Blocks:
    """Quality first, then what it took, then what the run was."""
    runs = views(records)
    return [block for part in _PARTS for block in part(runs)]


def shared_blocks(records: Sequence[PageRecord]) -> Blocks:
    """The parts of runs of a comparison that its own tables lack."""
    runs = views(records) if records else []
    return [*learning(runs), *rows_in_tiers(runs), *rows_moved(runs), *settings(runs)]


def _quality(runs: Sequence[RunView]) -> Blocks:
    """A column for each run."""
    rows = [[what, *(text(run.summary) for run in runs)] for what, text in _QUALITY]
    status = ["status", *(": ".join(str(run.record.get(k, "-")) for k in _status_keys(run)) for run in runs)]
    table = Table([_head(runs), status, *(row for row in rows if any(cell != "-" for cell in row[1:]))])
    figures = _learning_figures(runs)[:SHOWN_FIRST]
    blocks: Blocks = [Heading("Quality"), *([Note(text, is_lead=True)] if (text := summary_sentence(runs)) else [])]
    blocks.append(Columns([table], [run_legend(runs), Gallery(figures)]) if figures else table)
    if without := [run.name for run in runs if not run.stretches]:
        blocks.append(Note(f"No curves of {', '.join(without)}: metrics.jsonl has no interval, or is not there."))
    return blocks


def _head(runs: Sequence[RunView], first: str = "") -> list[str]:
    return [first, *(run.name for run in runs)]


def _status_keys(run: RunView) -> list[str]:
    return ["status", *(["error"] if run.record.get("error") else [])]


def _judged_on(summary: JsonObject) -> str:
    if summary.get("auc_of") == "evaluation":
        return f"{count_text(summary.get('eval_samples'))} held-out samples"
    return "training's own predictions" if summary.get("auc_of") == "training" else "-"


def _best(summary: JsonObject) -> str:
    best = summary.get("best")
    if not isinstance(best, dict):
        return "-"
    kept = ", whose weights eval, predict and export use" if best.get("saved") else ""
    return f"{best.get('metric')} {score_text(best.get('value'))} at step {count_text(best.get('step'))}{kept}"


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
    ("normalised entropy", _entry(score_text, "normalised_entropy")),
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
    """Who has the best AUC and who is fastest, by how much; of a single run its own numbers. Empty while nothing is
    known."""
    judged = {run.summary.get("auc_of") for run in runs}  # AUC of other samples is no AUC to compare with
    judge = "evaluation" if "evaluation" in judged else "training"
    comparable = [run for run in runs if run.summary.get("auc_of") == judge and run.summary.get("auc") is not None]
    aucs = [(float(run.summary["auc"]), run.name) for run in comparable]
    speeds = [(float(rate), run.name) for run in runs if (rate := _speed(run.summary)) is not None]
    if len(runs) == 1:
        return "; ".join([f"AUC {score_text(v)}" for v, _ in aucs] + [f"{count_text(v)} samples/s" for v, _ in speeds])
    parts = [
        _winner(aucs, "highest AUC", score_text, lambda a, b: f"{a - b:+.5f} against"),
        _winner(speeds, "fastest", lambda rate: f"{count_text(rate)} samples/s", lambda a, b: f"{a / b:.2f} times"),
    ]
    text = "; ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _speed(summary: JsonObject) -> float | None:
    return summary.get("samples_per_s_later") or summary.get("samples_per_s")


def _winner(
    values: Sequence[tuple[float, str]],
    what: str,
    text: Callable[[float], str],
    against: Callable[[float, float], str],
) -> str:
    """`highest AUC: A, 0.7512 (+0.00040 against B)`, B being the next one; all that share it are named."""
    if not values:
        return ""
    most = max(value for value, _ in values)
    second, name = max(((value, name) for value, name in values if value < most), default=(0.0, ""))
    over = f" ({against(most, second)} {name})" if second else ""
    return f"{what}: {', '.join(name for value, name in values if value == most)}, {text(most)}{over}"


def _learning_figures(runs: Sequence[RunView]) -> list[Figure]:
    """Curves of quality and speed, those that are looked at first before the others."""
    return [
        *charts(runs, ("Loss of training", lambda stretch: stretch.loss), zero=False).figures,
        *evaluation_figures("AUC of evaluations", runs, "auc"),
        *charts(
            runs,
            ("AUC of training's predictions so far", lambda stretch: stretch.last.auc),
            ("Log loss of training's predictions so far", lambda stretch: stretch.last.log_loss),
            zero=False,
        ).figures,
        *evaluation_figures("Log loss of evaluations", runs, "log_loss"),
        *charts(runs, ("Samples per second", lambda stretch: stretch.totals.samples_per_s)).figures,
    ]


def learning(runs: Sequence[RunView], *, first: int = 0) -> Blocks:
    """Curves of quality and speed, from number `first` on."""
    figures = _learning_figures(runs)[first:]
    if not figures:
        return []
    steps = {run.name: ", ".join(count_text(resume.step) for resume in run.resumes) for run in runs if run.resumes}
    resumed = [Note(f"{name}: resumed after step {at}") for name, at in steps.items()]
    return [Heading("Learning"), run_legend(runs), Gallery(figures), *resumed]


def _more_learning(runs: Sequence[RunView]) -> Blocks:
    return learning(runs, first=SHOWN_FIRST)


def stages_of(times: Sequence[JsonObject]) -> tuple[list[str], list[str]]:
    """Names of the stages of a step of training that any of the `time_ms` has, and of those next to it."""
    names = [name for name in (*STAGES, "policy") if any(name in time for time in times)]
    return [name for name in names if name not in BESIDE], [name for name in names if name in BESIDE]


def _stages(runs: Sequence[RunView]) -> Blocks:
    """Where the time of a step goes: the training thread's stages, and what runs next to them."""
    runs = [run for run in runs if run.summary.get("time_ms")]
    if not runs:
        return []
    times = [run.summary["time_ms"] for run in runs]
    training, beside = stages_of(times)

    def stage_bars(title: str, names: Sequence[str], first: int) -> list[Figure]:
        parts = [(name, [float(time.get(name) or 0.0) for time in times]) for name in names]
        return [bars(title, [run.name for run in runs], parts, x="ms per step", first=first)] if names else []

    rows = [[name, *(f"{time[name]:.2f}" if name in time else "-" for time in times)] for name in (*training, *beside)]
    figures = [
        *stage_bars("In a step of training", training, 0),
        *stage_bars("Next to training, in other threads", beside, len(training)),
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
    """Numbers that policies and skip rules report, the latest and over time."""
    latest = [run.summary.get("policy_numbers") or run.totals.policy for run in runs]
    names = list(dict.fromkeys(name for numbers in latest for name in numbers))
    if not names:
        return []
    rows = [[name, *(number_text(name, numbers.get(name)) for numbers in latest)] for name in names]
    values = {name: [{s.last.policy.get(name) for s in run.stretches} - {None} for run in runs] for name in names}
    moving = [name for name in names if any(len(distinct) > 1 for distinct in values[name])][:MOST_REPORTED]
    curves = charts(
        runs, *((name, lambda stretch, name=name: stretch.last.policy.get(name)) for name in moving), zero=False
    )
    blocks: Blocks = [Heading("What the policy reports"), Table([_head(runs, "latest"), *rows])]
    return [*blocks, run_legend(runs), curves] if moving else blocks


_GUARD_HEAD: Final = [
    *("at step", "decision", "skipping allowed", "skipped", "AUC, run less fork", "on samples", "looked at because")
]


def _guard(runs: Sequence[RunView]) -> Blocks:
    """Decisions with their evidence."""
    blocks: Blocks = [Heading("The guard's decisions")]
    for run in (run for run in runs if run.guards):
        budget = run.guards[-1].budget
        caption = f"{run.name}: budget {budget:g} of AUC"
        blocks.append(Table([_GUARD_HEAD, *map(_decision, run.guards)], caption, numbers=False))
        if measured := [guard for guard in run.guards if guard.auc_change is not None]:
            names = [f"step {count_text(guard.step)}, {guard.verdict}" for guard in measured]
            points = [(guard.auc_change, guard.auc_change_ci) for guard in measured]
            title = f"{run.name}: change of AUC by the end, as expected"
            figure = intervals(title, names, points, x="AUC (dotted: none, and the budget)", marks=(0.0, -budget))
            blocks.append(Gallery([figure], wide=True))
    quiet = [run.name for run in runs if run.config.get("guard") and not run.guards]
    return [*blocks, *(Note(f"{name}: the guard has decided nothing.") for name in quiet)]


def _decision(guard: GuardRecord) -> list[str]:
    bounds = guard.auc_difference_ci
    difference = "-" if guard.auc_difference is None else f"{guard.auc_difference:+.5f}"
    return [
        count_text(guard.step),
        guard_text(guard),
        f"{percent_text(guard.allowance_before)} to {percent_text(guard.allowance)}",
        percent_text(guard.skipped_share),
        difference + ("" if bounds is None else f" [{bounds[0]:+.5f}, {bounds[1]:+.5f}]"),
        count_text(guard.samples or None),
        guard.trigger,
    ]


def _bad_lines(runs: Sequence[RunView]) -> Blocks:
    """How many by cause, and the first ones as they stood."""
    blocks: Blocks = []
    for run in runs:
        for key, head, caption in (
            ("rejected_lines", ["cause", "lines"], "lines rejected"),
            ("out_of_range_ids", ["feature", "lookups"], "ids beyond the table, sent to the row for unknown ones"),
        ):
            if counts := run.summary.get(key):
                rows = [head, *([name, count_text(count)] for name, count in counts.items())]
                blocks.append(Table(rows, caption=f"{run.name}: {caption}"))
        if run.rejects:
            title = f"The first of {run.name}, as they stood ({len(run.rejects)})"
            bad = [
                [f"{bad.get('file')}:{bad.get('line')}", *(str(bad.get(name, "")) for name in _BAD_LINE)]
                for bad in run.rejects
            ]
            blocks.append(Folded(title, [Table([["where", *_BAD_LINE], *bad], numbers=False)]))
    return [Heading("Bad lines"), *(blocks or [Note("None.")])]


_BAD_LINE: Final = ("cause", "column", "text")


def settings(runs: Sequence[RunView]) -> Blocks:
    """Every setting; of several runs first those in which they differ."""
    head, rows = _side_by_side(runs, "setting", [_flat(run.config) for run in runs])
    everything = Folded(f"All {len(rows)} settings", [Table([head, *rows], numbers=False)])
    if len(runs) == 1:
        return [Heading("Settings"), everything]
    different = [row for row in rows if len(set(row[1:])) > 1]
    table = Table([head, *different], "where the runs differ", numbers=False)
    return [Heading("Settings"), table if different else Note("The runs have the same settings."), everything]


def _side_by_side(runs: Sequence[RunView], first: str, facts: Sequence[dict[str, str]]) -> tuple[list[str], list[Any]]:
    """Head and rows of a table of each run's facts."""
    keys = dict.fromkeys(key for of_run in facts for key in of_run)
    return _head(runs, first), [[key, *(of_run.get(key, "-") for of_run in facts)] for key in keys]


def _flat(config: JsonObject, prefix: str = "") -> dict[str, str]:
    """Key with dots -> value as JSON, texts as they are."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            cut = f"{text[:MOST_CHARACTERS]} ... ({len(text):,} characters)"
            flat[f"{prefix}{key}"] = text if len(text) <= MOST_CHARACTERS else cut
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
    _guard,
    _bad_lines,
    settings,
    _origin,
)
