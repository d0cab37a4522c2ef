"""The end of a run: totals over all intervals, the object that `--json` prints, and the text for people."""

from collections.abc import Mapping, Sequence
from typing import Final, TypedDict, cast

from adaptive.embeddings.ranks.traffic import KINDS
from adaptive.training.telemetry.document import aligned
from adaptive.training.telemetry.formatting import (
    accuracy_text,
    bytes_text,
    count_text,
    number_text,
    percent_text,
    score_text,
)
from adaptive.training.telemetry.jsonl import plain
from adaptive.training.telemetry.record import COUNT_FIELDS, RunTotals, TableCounts, sum_tables

SCHEMA: Final = 1
MAX_TABLES: Final = 10  # with a line of their own
SPARED: Final = ("vectors", "gradients")

Crossed = Sequence[Mapping[str, float]]  # of each rank the fields of `RankTraffic`, sums over an interval


class EvaluationPoint(TypedDict):
    """A point of the curves of quality over steps."""

    step: int
    samples: int
    auc: float | None
    log_loss: float | None
    accuracy: float | None


class TargetSummary(TypedDict):
    """Whether a run with `stop_at` reached its target. The first evaluation that did is the last one; `step`, `samples`
    and `seconds` are those of training up to it, None if there is none."""

    metric: str
    target: float
    reached: bool
    step: int | None
    samples: int | None
    seconds: float | None  # of training alone
    best: float | None
    best_step: int | None


class BestSummary(TypedDict):
    """The best evaluation, of runs that look for it."""

    metric: str
    value: float
    step: int
    kept: bool  # its weights
    ended_by_patience: bool


class SkipShares(TypedDict, total=False):
    """What was skipped, as shares of what there was; see `TableCounts`."""

    skipped_update_share: float | None
    deferred_update_share: float | None
    skipped_lookup_share: float | None
    skipped_input_share: float


class QualitySummary(TypedDict, total=False):
    """Quality of the final evaluation, or where there is none of training's predictions; see `Evaluation`."""

    auc_of: str  # "evaluation" or "training"
    eval_samples: int
    auc: float | None
    auc_exact: bool
    accuracy: float | None
    log_loss: float | None
    normalised_entropy: float | None
    calibration: float | None
    gauc: float | None
    gauc_groups: int
    labels: "dict[str, QualitySummary]"


class GuardSummary(TypedDict, total=False):
    """What a guard decided and what it took, in batches."""

    guard_allowance: float
    guard_fork_batches: int
    guard_judged_batches: int
    guard_undone_batches: int
    guard_decisions: list[dict[str, object]]  # fields of `GuardRecord`
    guard_kept: SkipShares
    guard_undone: SkipShares
    guard_exact: bool  # bit for bit what a run that skips nothing trains


class RunSummary(QualitySummary, SkipShares, GuardSummary, total=False):
    """The object that `--json` prints. What is not known or not finite is None.

    Shares of what was skipped are as counted in training: they include what a guard has undone later.
    """

    schema: int
    policy: str
    steps: int
    samples: int
    samples_per_s: float | None
    samples_per_s_later: float | None  # without the first interval, in which kernels are compiled
    hit_rate: float | None
    row_hit_rate: float | None
    promoted: int
    demoted: int
    fetched_rows: int
    written_back_rows: int
    bytes_h2d: int
    bytes_d2h: int
    watched_rows: int
    judged_row_share: float | None
    saturated_rows: int
    time_ms: dict[str, float]
    policy_numbers: dict[str, float | None]  # as the policy last reported them
    evaluations: list[EvaluationPoint]
    stop_at: TargetSummary
    best: BestSummary
    host_bytes_read: int
    host_bytes_written: int
    ranks: Mapping[str, float | None]
    device_rows: int
    seed: int
    rejected_lines: Mapping[str, int]
    out_of_range_ids: Mapping[str, int]
    run_dir: str
    table: str  # the text for people, which `--json` leaves out


def crossed_numbers(crossed: Crossed, steps: int) -> dict[str, float]:
    """Means over ranks and steps: bytes by kind; what was spared; who was waited for; the load of owners. Nothing
    without ranks."""
    if not crossed or not steps:
        return {}

    def total(name: str) -> float:
        return sum(traffic[name] for traffic in crossed)

    numbers = {f"bytes_{kind}": total(kind) / (len(crossed) * steps) for kind in KINDS}
    numbers["bytes"] = sum(numbers.values())
    for kind in SPARED:
        spared = total(f"{kind}_spared")
        numbers[f"{kind}_spared_share"] = spared / (spared + total(kind)) if spared else 0.0
    waits = [traffic["wait_ms"] / steps for traffic in crossed]
    numbers["wait_ms"] = sum(waits) / len(waits)
    numbers["slowest"] = waits.index(min(waits))  # it comes last to exchanges, so it waits least
    numbers["waited_for_slowest_ms"] = (sum(waits) - len(waits) * min(waits)) / max(len(waits) - 1, 1)
    served = [traffic["rows_served"] for traffic in crossed]
    numbers["owner_load"] = max(served) * len(served) / sum(served) if sum(served) else 1.0
    return numbers


def run_summary(
    policy: str, totals: RunTotals, *, auc: float | None, log_loss: float | None, accuracy: float | None = None
) -> RunSummary:
    """The summary as far as it follows from the totals.

    Args:
        policy: its name.
        totals: of the run.
        auc, log_loss, accuracy: of the final evaluation, or of training where there is none.
    """
    counts = sum_tables(list(totals.tables.values()))
    summary = {
        "schema": SCHEMA,
        "policy": policy,
        "steps": totals.steps,
        "samples": totals.samples,
        "samples_per_s": totals.samples_per_s,
        "samples_per_s_later": totals.samples_per_s_later,
        "auc": auc,
        "log_loss": log_loss,
        "accuracy": accuracy,
        **{shown.summary: getattr(counts, shown.name) for shown in COUNT_FIELDS if shown.summary},
        "time_ms": totals.time_ms_later,
        "policy_numbers": totals.policy,
    }
    return cast(RunSummary, plain(summary))


def summary_text(summary: RunSummary, totals: RunTotals, *, table_rows: Mapping[str, int] | None = None) -> str:
    """The same for people: a few lines of totals, then a line for each of the ten largest tables.

    Args:
        summary: from `run_summary`.
        totals: of the run.
        table_rows: rows of each table, which say what is largest; without them the number of look-ups does.
    """
    later = summary["samples_per_s_later"]
    compiled = "" if later is None else f" ({count_text(later)} after the first interval, which compiles)"
    times = ", ".join(f"{stage} {mean:.2f}" for stage, mean in summary["time_ms"].items())
    lines = [
        f"policy {summary['policy']}: {count_text(summary['steps'])} steps, "
        f"{count_text(summary['samples'])} samples, {count_text(summary['samples_per_s'])} samples/s{compiled}",
        *_quality_lines(summary),
        *_goal_lines(summary),
        f"hit rate: {percent_text(summary['hit_rate'])} of look-ups, "
        f"{percent_text(summary['row_hit_rate'])} of each batch's rows",
        f"moved: {count_text(summary['fetched_rows'])} rows ({bytes_text(summary['bytes_h2d'])}) to the device, "
        f"{count_text(summary['written_back_rows'])} rows ({bytes_text(summary['bytes_d2h'])}) to the host",
        *_file_lines(summary),
        *rank_lines(summary),
        *skipping_lines(summary),
        *_latest_skipped(summary, totals),
        *_guard_lines(summary),
        *_policy_lines(summary),
        f"ms per step{'' if later is None else ' after the first interval'}: {times}",
        "",
        *_table_lines(totals.tables, table_rows, undone=bool(summary.get("guard_undone_batches"))),
    ]
    return "\n".join(lines) + "\n"


def _quality_lines(summary: RunSummary) -> list[str]:
    """Quality, on what it was judged, and a line for each of several labels."""
    calibration, gauc = summary.get("calibration"), summary.get("gauc")
    more = "" if calibration is None else f", calibration {calibration:.3f}"
    if gauc is not None:
        more += f", gauc {score_text(gauc)} within {count_text(summary['gauc_groups'])} groups"
    match summary.get("auc_of"):
        case "evaluation":
            more += f", on {count_text(summary['eval_samples'])} samples held out of training"
        case "training":
            more += ", of training's own predictions, each made before its batch was learnt"
    judged: list[tuple[str, QualitySummary, str]] = [("", summary, more)]
    judged += [(f"  label {name}: ", quality, "") for name, quality in summary.get("labels", {}).items()]
    return [
        f"{name}auc {score_text(quality['auc'])}, log loss {score_text(quality['log_loss'])}, "
        f"accuracy {accuracy_text(quality['accuracy'])}{end}"
        for name, quality, end in judged
    ]


def _goal_lines(summary: RunSummary) -> list[str]:
    """The best evaluation and which weights later commands use, of runs that look for it; the target of those that have
    one."""
    lines = []
    if best := summary.get("best"):
        lines.append(
            f"best {best['metric'].replace('_', ' ')} {score_text(best['value'])} after step {count_text(best['step'])}"
            + ("; eval, predict, export and load_run use the weights of that step, not the last ones" * best["kept"])
            + ("; training ended, as the evaluations after it were no better" * best["ended_by_patience"])
        )
    if target := summary.get("stop_at"):
        how = f"not reached; best {score_text(target['best'])} after {count_text(target['best_step'])} steps"
        if target["reached"]:
            how = (
                f"reached ({score_text(target['best'])}) after {count_text(target['step'])} steps, "
                f"{count_text(target['samples'])} samples, {target['seconds']:.1f} s of training"
            )
        elif target["best"] is None:
            how = "not reached; no evaluation has a value"
        lines.append(f"target {target['metric'].replace('_', ' ')} {target['target']:g}: {how}")
    return lines


def _file_lines(summary: RunSummary) -> list[str]:
    if "host_bytes_read" not in summary:
        return []
    read, written = bytes_text(summary["host_bytes_read"]), bytes_text(summary["host_bytes_written"])
    return [f"files: {read} read, {written} written while training"]


def rank_lines(summary: RunSummary) -> list[str]:
    """What a report says of ranks; nothing of a process alone."""
    ranks = summary.get("ranks")
    if not ranks or ranks["number"] == 1 or "bytes" not in ranks:
        return []
    sent = ", ".join(f"{kind} {bytes_text(ranks[f'bytes_{kind}'])}" for kind in KINDS if ranks[f"bytes_{kind}"])
    spared = [
        f"; {percent_text(ranks[f'{kind}_spared_share'])} of {kind} needed not cross"
        for kind in SPARED
        if ranks[f"{kind}_spared_share"]
    ]
    text = "" if ranks["waited_share"] is None else f" {percent_text(ranks['waited_share'])} of the others' time was"
    hosts = "1 host" if ranks["hosts"] == 1 else f"{ranks['hosts']} hosts"
    return [
        f"ranks: {ranks['number']} on {hosts}, {ranks['blocks']} blocks; slowest was rank "
        f"{ranks['slowest']:.0f}:{text} waiting for it ({ranks['waited_for_slowest_ms']:.2f} ms a step)",
        f"sent by each rank a step: {bytes_text(ranks['bytes'])}: {sent}{''.join(spared)}",
        f"owners: the most asked one was asked for {ranks['owner_load']:.2f} of the mean",
        *(["watched rows: the set of some rank is full, so verdicts may differ on another number of ranks: raise "
           "skip.hot_rows"] if ranks["full_hot_set"] else []),
    ]  # fmt: skip


def skipping_lines(summary: RunSummary) -> list[str]:
    """Skipping is the one thing that changes what is trained: said if it happened or was guarded, nothing otherwise."""
    kept: SkipShares = summary.get("guard_kept", summary)
    lines = [*_undone(summary.get("guard_undone", {})), *_dropped(kept, summary.get("guard_undone", {}))]
    lines += _not_written(kept)
    if summary.get("watched_rows"):
        lines.append(
            f"watched: {count_text(summary['watched_rows'])} rows, {percent_text(summary['judged_row_share'])} of them "
            f"with a verdict, {count_text(summary['saturated_rows'])} saturated at the end"
        )
    if summary.get("guard_exact"):
        lines.append("not written: nothing. The trained tables are those of a run that skips nothing")
    return lines


def _latest_skipped(summary: RunSummary, totals: RunTotals) -> list[str]:
    """The share at the end of training: rows are judged after some visits, so a short run skips late and little."""
    share = totals.latest_skipped_share
    if not summary["skipped_update_share"] or not share or share <= summary["skipped_update_share"]:
        return []
    return [f"not written in the last interval: {percent_text(share)}; rows are judged after some visits, so it grows"]


def _undone(undone: SkipShares) -> list[str]:
    what = []
    if undone.get("skipped_update_share"):
        updates, lookups = percent_text(undone["skipped_update_share"]), percent_text(undone["skipped_lookup_share"])
        what.append(f"{updates} of row updates ({lookups} of look-ups)")
    if undone.get("skipped_input_share"):
        what.append(f"{percent_text(undone['skipped_input_share'])} of the inputs")
    return [f"skipped and then undone by the guard: {' and '.join(what)}"] if what else []


def _dropped(kept: SkipShares, undone: SkipShares) -> list[str]:
    if kept.get("skipped_input_share"):
        return [
            f"dropped: {percent_text(kept['skipped_input_share'])} of the inputs; compare with `random_drop` at the "
            f"same share. The trained tables differ from a run that drops nothing"
        ]
    if undone.get("skipped_input_share"):
        return [
            "dropped: no inputs in the end, but batches may have come to hold other samples. The trained tables need "
            "not be those of a run that drops nothing"
        ]
    return []


def _not_written(kept: SkipShares) -> list[str]:
    skipped, deferred = kept["skipped_update_share"], kept["deferred_update_share"] or 0.0
    if not skipped:
        return []
    reasons = []
    if deferred:
        reasons.append(f"{percent_text(deferred)} deferred, their gradients applied with a later one")
    if skipped > deferred:
        reasons.append(f"{percent_text(skipped - deferred)} dropped, because their rows were saturated")
    return [
        f"not written: {percent_text(skipped)} of row updates ({percent_text(kept['skipped_lookup_share'])} of "
        f"look-ups): {'; '.join(reasons)}. The trained tables differ from a run that skips nothing"
    ]


def _guard_lines(summary: RunSummary) -> list[str]:
    """What a guard decided and what it took; nothing without one."""
    if "guard_decisions" not in summary:
        return []
    verdicts = ", ".join(str(decision["verdict"]) for decision in summary["guard_decisions"]) or "none"
    forks, undone = summary["guard_fork_batches"], summary["guard_undone_batches"]
    return [
        f"guard: decisions {verdicts}; skipping is allowed at {percent_text(summary['guard_allowance'])} of what the "
        f"policy asks for; forks trained {count_text(forks)} batches more "
        f"({percent_text(forks / max(summary['steps'], 1))}), {count_text(summary['guard_judged_batches'])} were judged"
        + (f"; what was skipped in {count_text(undone)} batches has been undone" if undone else "")
    ]


def _policy_lines(summary: RunSummary) -> list[str]:
    numbers = ", ".join(f"{name} {number_text(name, value)}" for name, value in summary["policy_numbers"].items())
    return [f"policy reports: {numbers}"] if numbers else []


def _table_lines(tables: Mapping[str, TableCounts], table_rows: Mapping[str, int] | None, *, undone: bool) -> list[str]:
    sizes = table_rows or {name: counts.lookups for name, counts in tables.items()}
    names = sorted(tables, key=lambda name: -sizes.get(name, 0))
    shown = {name: tables[name] for name in names[:MAX_TABLES]}
    if rest := [tables[name] for name in names[MAX_TABLES:]]:
        shown[f"{len(rest)} other tables"] = sum_tables(rest)
    header = ["table", "look-ups", "hit rate", "resident", "to device", "to host"]
    rows = [
        [
            *(name, count_text(counts.lookups), percent_text(counts.hit_rate), count_text(counts.resident_rows)),
            *(bytes_text(counts.bytes_h2d), bytes_text(counts.bytes_d2h)),
        ]
        for name, counts in shown.items()
    ]
    if any(counts.skipped_updates for counts in tables.values()):
        header += ["saturated", "skipped" if undone else "not written"]  # of what was undone tables keep no books
        for row, counts in zip(rows, shown.values(), strict=True):
            row += [count_text(counts.saturated_rows), percent_text(counts.skipped_update_share)]
    return aligned([header, *rows])
