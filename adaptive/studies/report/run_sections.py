"""The sections of a page of runs, side by side where there are several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adaptive.studies.charts import Line, bars, curves
from adaptive.studies.report.blocks import Block, Columns, Folded, Gallery, Lead, Picture, Section
from adaptive.studies.report.load import Loaded
from adaptive.studies.report.runs import RunView, chart, run_legend, views
from adaptive.studies.report.runs_recorded import bad_lines, guard, origin, reported, settings
from adaptive.studies.report.runs_tiers import between_ranks, skipping, tiers, traffic
from adaptive.training.telemetry.document import Note, Table
from adaptive.training.telemetry.formatting import accuracy_text, count_text, percent_text, score_text
from adaptive.training.telemetry.record import STAGES

BESIDE = ("read", "learn", "plan", "write_back", "fetch", "policy")  # run beside training, in threads of their own

SHOWN_FIRST = 4  # curves next to the table of quality

TOLD = (
    "The first stages add up to a step of training. The others run beside it, in threads of their own: they cost time "
    "only as far as training waits for them, which is the stage wait. The first interval, in which kernels are "
    "compiled, is left out of the bars and the table where there are others."
)


def run_sections(loaded: Sequence[Loaded]) -> list[Section]:
    """Quality first, then what it took, then what the run was."""
    runs = views(loaded)
    parts = (
        quality,
        more_learning,
        stages,
        tiers,
        traffic,
        between_ranks,
        skipping,
        reported,
        guard,
        bad_lines,
        settings,
        origin,
    )
    return [section for part in parts if (section := part(runs)) is not None]


def quality(runs: Sequence[RunView]) -> Section:
    """A column for each run."""
    texts: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("policy", lambda one: str(one.get("policy", "-"))),
        ("steps", lambda one: count_text(one.get("steps"))),
        ("samples", lambda one: count_text(one.get("samples"))),
        ("AUC", lambda one: score_text(one.get("auc"))),
        ("log loss", lambda one: score_text(one.get("log_loss"))),
        ("accuracy", lambda one: accuracy_text(one.get("accuracy"))),
        ("normalised entropy", lambda one: score_text(one.get("normalised_entropy"))),
        ("calibration", lambda one: score_text(one.get("calibration"))),
        ("judged on", _judged_on),
        ("best evaluation", _best),
        ("hit rate of look-ups", lambda one: percent_text(one.get("hit_rate"))),
        ("hit rate of distinct rows", lambda one: percent_text(one.get("row_hit_rate"))),
        ("device rows", lambda one: count_text(one.get("device_rows"))),
        ("samples/s", lambda one: count_text(one.get("samples_per_s"))),
        ("samples/s after the first interval", lambda one: count_text(one.get("samples_per_s_later"))),
        ("target", _target),
    ]
    status = ["status", *(_status(run) for run in runs)]
    rows = [[what, *(text(run.summary) for run in runs)] for what, text in texts]
    known = [row for row in rows if any(cell != "-" for cell in row[1:])]
    table = Table([_head(runs), status, *known])
    best = _charts(runs)[:SHOWN_FIRST]
    blocks: list[Block] = [Lead(text)] if (text := came_out(runs)) else []
    blocks.append(Columns([table], [run_legend(runs), Gallery(best)]) if best else table)
    lost = [run.name for run in runs if not run.stretches]
    if lost:
        blocks.append(Note(f"No curves of {', '.join(lost)}: metrics.jsonl has no interval, or is not there."))
    return Section("Quality", blocks)


def _head(runs: Sequence[RunView]) -> list[str]:
    return ["", *(run.name for run in runs)]


def _status(run: RunView) -> str:
    text = str(run.record.get("status", "-"))
    error = run.record.get("error")
    return f"{text}: {error}" if error else text


def _judged_on(one: Mapping[str, Any]) -> str:
    if one.get("auc_of") == "evaluation":
        return f"{count_text(one.get('eval_samples'))} held-out samples"
    return "training's own predictions" if one.get("auc_of") == "training" else "-"


def _best(one: Mapping[str, Any]) -> str:
    found = one.get("best")
    if not isinstance(found, dict):
        return "-"
    kept = ", whose weights eval, predict and export use" if found.get("kept") else ""
    return f"{found.get('metric')} {score_text(found.get('value'))} at step {count_text(found.get('step'))}{kept}"


def _target(one: Mapping[str, Any]) -> str:
    found = one.get("stop_at")
    if not isinstance(found, dict):
        return "-"
    what = f"{found.get('metric')} {found.get('target')}"
    return (
        f"{what}, reached at step {count_text(found.get('step'))}" if found.get("reached") else f"{what}, not reached"
    )


def came_out(runs: Sequence[RunView]) -> str:
    """A sentence: who has the best AUC and who is fastest, by how much; of a single run its own numbers. Empty while
    nothing is known."""
    judged = {run.summary.get("auc_of") for run in runs}  # AUC of other samples is no AUC to compare with
    of = "evaluation" if "evaluation" in judged else "training"
    known = [run for run in runs if run.summary.get("auc_of") == of and run.summary.get("auc") is not None]
    quality = [(run, float(run.summary["auc"])) for run in known]
    speed = [(run, float(rate)) for run in runs if (rate := _speed(run)) is not None]
    if len(runs) == 1:
        return "; ".join(
            [f"AUC {score_text(v)}" for _, v in quality] + [f"{count_text(v)} samples/s" for _, v in speed]
        )
    parts = [
        _first_of(quality, "highest AUC", score_text, lambda a, b: f"{a - b:+.5f} against"),
        _first_of(speed, "fastest", lambda rate: f"{count_text(rate)} samples/s", lambda a, b: f"{a / b:.2f} times"),
    ]
    text = "; ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _speed(run: RunView) -> float | None:
    found = run.summary.get("samples_per_s_later") or run.summary.get("samples_per_s")
    return None if found is None else float(found)


def _first_of(
    found: Sequence[tuple[RunView, float]],
    what: str,
    text: Callable[[float], str],
    against: Callable[[float, float], str],
) -> str:
    """`highest AUC: A, 0.7512 (+0.00040 against B)`, B being the next one; all that share it are named."""
    if not found:
        return ""
    most = max(value for _, value in found)
    winners = [run.name for run, value in found if value == most]
    others = sorted(((value, run.name) for run, value in found if value < most), reverse=True)
    over = f" ({against(most, others[0][0])} {others[0][1]})" if others and others[0][0] else ""
    return f"{what}: {', '.join(winners)}, {text(most)}{over}"


def _charts(runs: Sequence[RunView]) -> list[Picture]:
    """Curves of quality and speed, those that are looked at first before the others."""
    pictures = [
        chart("Loss of training", runs, lambda one: one.loss),
        _evaluations("AUC of evaluations", runs, "auc"),
        chart("AUC of training's predictions so far", runs, lambda one: one.last.auc),
        chart("Log loss of training's predictions so far", runs, lambda one: one.last.log_loss),
        _evaluations("Log loss of evaluations", runs, "log_loss"),
        chart("Samples per second", runs, lambda one: one.totals.samples_per_s, zero=True),
    ]
    return [one for one in pictures if one is not None]


def more_learning(runs: Sequence[RunView]) -> Section | None:
    """The curves that do not stand next to the table of quality."""
    return learning(runs, first=SHOWN_FIRST)


def learning(runs: Sequence[RunView], *, first: int = 0) -> Section | None:
    """Curves of quality and speed, from number `first` on."""
    shown = _charts(runs)[first:]
    if not shown:
        return None
    resumed = [Note(f"{run.name}: resumed after step {_steps(run)}") for run in runs if run.resumes]
    return Section("Learning", [run_legend(runs), Gallery(shown), *resumed])


def _steps(run: RunView) -> str:
    return ", ".join(count_text(one.step) for one in run.resumes)


def _evaluations(title: str, runs: Sequence[RunView], name: str) -> Picture | None:
    lines = [
        Line(run.number, [one.step for one in found], [getattr(one, name) for one in found], marked=True)
        for run in runs
        if (found := run.evaluations)
    ]
    worth = [line for line in lines if any(value is not None for value in line.y)]
    return curves(title, worth) if any(len(line.x) > 1 for line in worth) else None


def stages(runs: Sequence[RunView]) -> Section | None:
    """Where the time of a step goes: the training thread's stages, and what runs beside them."""
    timed = [run for run in runs if run.summary.get("time_ms")]
    if not timed:
        return None
    known = [name for name in (*STAGES, "policy") if any(name in run.summary["time_ms"] for run in timed)]
    own, beside = [name for name in known if name not in BESIDE], [name for name in known if name in BESIDE]
    pictures = [
        *_stage_bars("In a step of training", timed, own),
        *_stage_bars("Next to training, in other threads", timed, beside, first=len(own)),
    ]
    table = [
        [name, *(f"{run.summary['time_ms'][name]:.2f}" if name in run.summary["time_ms"] else "-" for run in timed)]
        for name in known
    ]
    names = ("forward", "backward", "wait", "read", "plan", "fetch")
    over = [chart(f"{name}, ms per step", timed, _stage(name), zero=True) for name in names]
    shown = [one for one in over if one is not None]
    more = Folded("Stages over time", [run_legend(timed), Gallery(shown)])
    numbers = Table([["ms per step", *(run.name for run in timed)], *table])
    blocks: list[Block] = [Note(TOLD), Columns([numbers], [Gallery(pictures, wide=True)]), *([more] if shown else [])]
    return Section("Stages of a step", blocks)


def _stage(name: str) -> Any:
    return lambda one: one.totals.time_ms.get(name)


def _stage_bars(title: str, runs: Sequence[RunView], names: Sequence[str], *, first: int = 0) -> list[Picture]:
    if not names:
        return []
    parts = [(name, [float(run.summary["time_ms"].get(name) or 0.0) for run in runs]) for name in names]
    return [bars(title, [run.name for run in runs], parts, x="ms per step", first=first)]
