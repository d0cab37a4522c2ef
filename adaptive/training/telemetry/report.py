"""The end of a run: totals over all intervals, the object that `--json` prints, and the text for people."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

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
from adaptive.training.telemetry.record import IntervalRecord, TableCounts, add_counts, sum_tables

Crossed = Sequence[Mapping[str, float]]  # of each rank
SPARED: Final = ("vectors", "gradients")


def crossed_numbers(crossed: Crossed, steps: int) -> dict[str, float]:
    """Means over ranks and steps: bytes by kind; what was spared; who was waited for; the load of owners. Nothing
    without ranks."""
    if not crossed or not steps:
        return {}
    each = len(crossed) * steps
    numbers = {f"bytes_{kind}": _sum(crossed, kind) / each for kind in KINDS}
    numbers["bytes"] = sum(numbers.values())
    for kind in SPARED:
        spared, sent = _sum(crossed, f"{kind}_spared"), _sum(crossed, kind)
        numbers[f"{kind}_spared_share"] = spared / (spared + sent) if spared else 0.0
    waits = [one.get("wait_ms", 0.0) / steps for one in crossed]
    numbers["wait_ms"] = sum(waits) / len(waits)
    numbers["slowest"] = waits.index(min(waits))  # it comes last to exchanges, so it waits least
    numbers["waited_for_slowest_ms"] = (sum(waits) - len(waits) * min(waits)) / max(len(waits) - 1, 1)
    served = [one.get("rows_served", 0.0) for one in crossed]
    numbers["owner_load"] = max(served) * len(served) / sum(served) if sum(served) else 1.0
    return numbers


def add_crossed(before: Crossed, after: Crossed) -> list[dict[str, float]]:
    """Of two intervals of as many ranks, rank by rank."""
    return [
        {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}
        for one, other in zip(before, after, strict=True)
    ]


def crossed_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a report says of ranks; nothing of a process alone."""
    found = summary.get("ranks")
    if not found or found["number"] == 1 or "bytes" not in found:
        return []
    sent = ", ".join(f"{kind} {bytes_text(found[f'bytes_{kind}'])}" for kind in KINDS if found[f"bytes_{kind}"])
    spared = [
        f"{percent_text(found[f'{kind}_spared_share'])} of {kind} needed not cross"
        for kind in SPARED
        if found[f"{kind}_spared_share"]
    ]
    text = "" if found["waited_share"] is None else f" {percent_text(found['waited_share'])} of the others' time was"
    return [
        f"ranks: {found['number']} on {_hosts(found)}, {found['blocks']} blocks; slowest was rank "
        f"{found['slowest']:.0f}:{text} waiting for it ({found['waited_for_slowest_ms']:.2f} ms a step)",
        f"sent by each rank a step: {bytes_text(found['bytes'])}: {sent}" + "".join(f"; {one}" for one in spared),
        f"owners: the most asked one was asked for {found['owner_load']:.2f} of the mean",
        *(["watched rows: the set of some rank is full, so verdicts may differ on another number of ranks: raise "
           "skip.hot_rows"] if found["full_hot_set"] else []),
    ]  # fmt: skip


def _hosts(found: Mapping[str, Any]) -> str:
    return "1 host" if found["hosts"] == 1 else f"{found['hosts']} hosts"


def _sum(crossed: Crossed, name: str) -> float:
    return sum(one.get(name, 0.0) for one in crossed)


SCHEMA: Final = 1
MAX_TABLES: Final = 10  # with a line of their own
IN_PARTS: Final = "in_parts_share"  # of the batches
WAITED: Final = "waited_share"  # of those in parts: training had to wait for rows between two parts


class RunTotals:
    """Adds up the intervals of a run.

    Attributes:
        steps, samples: trained in these intervals.
        seconds: they took, from each interval's samples per second.
        latest_skipped_share: row updates of the latest interval that were not written.
        first: samples and seconds of the first interval, in which kernels are compiled.
        time_ms: mean milliseconds per step of each stage, over all intervals.
        time_ms_later: the same without the first interval, if there are others.
        tables: counts by table; "now" fields are those of the latest interval.
        policy: the numbers of the policy as it last reported them; of batches in parts, those of all intervals.
        ranks: what each rank sent in the latest `ranks_steps` steps, in which there were as many ranks.
    """

    def __init__(self, *, first_step: int = 0, first_samples: int = 0) -> None:
        """A run that was continued begins at `first_step` steps and `first_samples` samples."""
        self.steps = 0
        self.samples = 0
        self.seconds = 0.0
        self.first: tuple[int, float] | None = None
        self.latest_skipped_share: float | None = None
        self.tables: dict[str, TableCounts] = {}
        self.policy: dict[str, float] = {}
        self.ranks: list[dict[str, float]] = []
        self.ranks_steps = 0
        self._in_parts = self._waited = 0.0  # batches
        self._first_step, self._first_samples = first_step, first_samples
        self._stage_ms: dict[str, float] = {}
        self._first_stage_ms: tuple[int, dict[str, float]] | None = None

    def add(self, record: IntervalRecord) -> float:
        """Add the next interval; returns the seconds it took (0 if its speed is not known)."""
        steps = record.step - self._first_step - self.steps
        samples = record.samples - self._first_samples - self.samples
        seconds = samples / record.samples_per_s if record.samples_per_s > 0 else 0.0
        self.steps += steps
        self.samples += samples
        self.seconds += seconds
        self.first = self.first or (samples, seconds)
        for stage, mean in record.time_ms.items():
            self._stage_ms[stage] = self._stage_ms.get(stage, 0.0) + mean * steps
        self._first_stage_ms = self._first_stage_ms or (self.steps, dict(self._stage_ms))
        self.latest_skipped_share = sum_tables(list(record.tables.values())).skipped_update_share
        for name, counts in record.tables.items():
            self.tables[name] = add_counts(self.tables.get(name, TableCounts()), counts)
        self._add_policy(record.policy, steps)
        if len(record.ranks) == len(self.ranks):
            self.ranks, self.ranks_steps = add_crossed(self.ranks, record.ranks), self.ranks_steps + steps
        else:  # the run goes on with others
            self.ranks, self.ranks_steps = list(record.ranks), steps
        return seconds

    def _add_policy(self, numbers: Mapping[str, float], steps: int) -> None:
        in_parts = numbers.get(IN_PARTS, 0.0) * steps
        self._in_parts += in_parts
        self._waited += numbers.get(WAITED, 0.0) * in_parts
        self.policy = {name: number for name, number in numbers.items() if name not in (IN_PARTS, WAITED)}
        if self._in_parts:
            self.policy |= {IN_PARTS: self._in_parts / self.steps, WAITED: self._waited / self._in_parts}

    @property
    def samples_per_s(self) -> float | None:
        return self.samples / self.seconds if self.seconds else None

    @property
    def samples_per_s_later(self) -> float | None:
        """Of all intervals but the first; None if there is no other, or the first is not known."""
        samples, seconds = self.first or (0, 0.0)
        return (self.samples - samples) / (self.seconds - seconds) if 0 < seconds < self.seconds else None

    @property
    def time_ms(self) -> dict[str, float]:
        return {stage: total / self.steps for stage, total in self._stage_ms.items()} if self.steps else {}

    @property
    def time_ms_later(self) -> dict[str, float]:
        steps, first = self._first_stage_ms or (0, {})
        if not 0 < steps < self.steps:
            return self.time_ms
        later = self.steps - steps
        return {stage: (total - first.get(stage, 0.0)) / later for stage, total in self._stage_ms.items()}


def run_summary(
    policy: str, totals: RunTotals, *, auc: float | None, log_loss: float | None, accuracy: float | None = None
) -> dict[str, Any]:
    """The object that `--json` prints: flat, but for `time_ms` and `policy_numbers`, what the policy itself reported
    last. What is not known or not finite is None.

    Shares of what was skipped are as counted in training: they include what a guard has undone later.

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
        "hit_rate": counts.hit_rate,
        "row_hit_rate": counts.row_hit_rate,
        "fetched_rows": counts.fetched,
        "written_back_rows": counts.written_back,
        "bytes_h2d": counts.bytes_h2d,
        "bytes_d2h": counts.bytes_d2h,
        "promoted": counts.promoted,
        "demoted": counts.demoted,
        "watched_rows": counts.watched_rows,
        "judged_row_share": counts.judged_row_share,
        "saturated_rows": counts.saturated_rows,
        "skipped_update_share": counts.skipped_update_share,
        "deferred_update_share": counts.deferred_update_share,
        "skipped_lookup_share": counts.skipped_lookup_share,
        "time_ms": totals.time_ms_later,
        "policy_numbers": totals.policy,
    }
    return {key: plain(value) for key, value in summary.items()}


def _policy(summary: Mapping[str, Any]) -> list[str]:
    numbers = ", ".join(f"{name} {number_text(name, value)}" for name, value in summary["policy_numbers"].items())
    return [f"policy reports: {numbers}"] if numbers else []


def _best(summary: Mapping[str, Any]) -> list[str]:
    """The best evaluation, and which weights later commands use; nothing of runs that did not look for it."""
    if "best" not in summary:
        return []
    found = summary["best"]
    what = (
        f"best {found['metric'].replace('_', ' ')} {score_text(found['value'])} after step {count_text(found['step'])}"
    )
    kept = "; eval, predict, export and load_run use the weights of that step, not the last ones"
    ended = "; training ended, as the evaluations after it were no better"
    return [what + (kept if found["kept"] else "") + (ended if found["ended_by_patience"] else "")]


def _target(summary: Mapping[str, Any]) -> list[str]:
    """Whether a run that was to stop at some quality did; nothing of others."""
    if "stop_at" not in summary:
        return []
    found = summary["stop_at"]
    what = f"target {found['metric'].replace('_', ' ')} {found['target']:g}: "
    if found["reached"]:
        return [
            f"{what}reached ({score_text(found['best'])}) after {count_text(found['step'])} steps, "
            f"{count_text(found['samples'])} samples, {found['seconds']:.1f} s of training"
        ]
    if found["best"] is None:
        return [f"{what}not reached; no evaluation has a value"]
    return [f"{what}not reached; best {score_text(found['best'])} after {count_text(found['best_step'])} steps"]


def _files(summary: Mapping[str, Any]) -> list[str]:
    if "host_bytes_read" not in summary:
        return []
    read, written = (bytes_text(summary[f"host_bytes_{what}"]) for what in ("read", "written"))
    return [f"files: {read} read, {written} written while training"]


def summary_text(summary: Mapping[str, Any], totals: RunTotals, *, table_rows: Mapping[str, int] | None = None) -> str:
    """The same for people: a few lines of totals, then a line for each of the ten largest tables.

    Args:
        summary: from `run_summary`.
        totals: of the run.
        table_rows: rows of each table, which say what is largest; without them the number of look-ups does.
    """
    lines = [
        f"policy {summary['policy']}: {count_text(summary['steps'])} steps, "
        f"{count_text(summary['samples'])} samples, {_speed(summary)}",
        f"auc {score_text(summary['auc'])}, log loss {score_text(summary['log_loss'])}, "
        f"accuracy {accuracy_text(summary['accuracy'])}{_more_quality(summary)}{_judged_on(summary)}",
        *_labels(summary),
        *_best(summary),
        *_target(summary),
        f"hit rate: {percent_text(summary['hit_rate'])} of look-ups, "
        f"{percent_text(summary['row_hit_rate'])} of each batch's rows",
        f"moved: {count_text(summary['fetched_rows'])} rows ({bytes_text(summary['bytes_h2d'])}) to the device, "
        f"{count_text(summary['written_back_rows'])} rows ({bytes_text(summary['bytes_d2h'])}) to the host",
        *_files(summary),
        *crossed_lines(summary),
        *skipping_lines(summary),
        *_latest_skipped(summary, totals),
        *_guard(summary),
        *_policy(summary),
        _times(summary),
        "",
        *_table_lines(totals.tables, table_rows, undone=bool(summary.get("guard_undone_batches"))),
    ]
    return "\n".join(lines) + "\n"


def _speed(summary: Mapping[str, Any]) -> str:
    whole, later = f"{count_text(summary['samples_per_s'])} samples/s", summary["samples_per_s_later"]
    return whole if later is None else f"{whole} ({count_text(later)} after the first interval, which compiles)"


def _times(summary: Mapping[str, Any]) -> str:
    later = "" if summary["samples_per_s_later"] is None else " after the first interval"
    return f"ms per step{later}: " + ", ".join(f"{stage} {mean:.2f}" for stage, mean in summary["time_ms"].items())


def _more_quality(summary: Mapping[str, Any]) -> str:
    """Calibration and GAUC, where they are known."""
    calibration, gauc = summary.get("calibration"), summary.get("gauc")
    text = "" if calibration is None else f", calibration {calibration:.3f}"
    within = count_text(summary["gauc_groups"]) if "gauc_groups" in summary else ""
    return text if gauc is None else f"{text}, gauc {score_text(gauc)} within {within} groups"


def _labels(summary: Mapping[str, Any]) -> list[str]:
    """A line for each of several labels, judged on the same samples; nothing of one."""
    return [
        f"  label {name}: auc {score_text(one['auc'])}, log loss {score_text(one['log_loss'])}, "
        f"accuracy {accuracy_text(one['accuracy'])}"
        for name, one in summary.get("labels", {}).items()
    ]


def _judged_on(summary: Mapping[str, Any]) -> str:
    match summary.get("auc_of"):
        case "evaluation":
            return f", on {count_text(summary['eval_samples'])} samples held out of training"
        case "training":
            return ", of training's own predictions, each made before its batch was learnt"
    return ""


def skipping_lines(summary: Mapping[str, Any]) -> list[str]:
    """Skipping is the one thing that changes what is trained: said if it happened or was guarded, nothing otherwise."""
    kept, undone = summary.get("guard_kept", summary), summary.get("guard_undone", {})
    lines = [*_undone(undone), *_dropped(kept, undone), *_not_written(kept), *_watched(summary)]
    if summary.get("guard_exact"):
        lines.append("not written: nothing. The trained tables are those of a run that skips nothing")
    return lines


def _latest_skipped(summary: Mapping[str, Any], totals: RunTotals) -> list[str]:
    """The share at the end of training: rows are judged after some visits, so a short run skips late and little."""
    share = totals.latest_skipped_share
    if not summary["skipped_update_share"] or not share or share <= summary["skipped_update_share"]:
        return []
    return [f"not written in the last interval: {percent_text(share)}; rows are judged after some visits, so it grows"]


def _undone(undone: Mapping[str, Any]) -> list[str]:
    what = []
    if undone.get("skipped_update_share"):
        updates, lookups = percent_text(undone["skipped_update_share"]), percent_text(undone["skipped_lookup_share"])
        what.append(f"{updates} of row updates ({lookups} of look-ups)")
    if undone.get("skipped_input_share"):
        what.append(f"{percent_text(undone['skipped_input_share'])} of the inputs")
    return [f"skipped and then undone by the guard: {' and '.join(what)}"] if what else []


def _dropped(kept: Mapping[str, Any], undone: Mapping[str, Any]) -> list[str]:
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


def _not_written(kept: Mapping[str, Any]) -> list[str]:
    if not kept["skipped_update_share"]:
        return []
    skipped, deferred = kept["skipped_update_share"], kept["deferred_update_share"] or 0.0
    reasons = []
    if deferred:
        reasons.append(f"{percent_text(deferred)} deferred, their gradients applied with a later one")
    if skipped > deferred:
        reasons.append(f"{percent_text(skipped - deferred)} dropped, because their rows were saturated")
    return [
        f"not written: {percent_text(skipped)} of row updates ({percent_text(kept['skipped_lookup_share'])} of "
        f"look-ups): {'; '.join(reasons)}. The trained tables differ from a run that skips nothing"
    ]


def _watched(summary: Mapping[str, Any]) -> list[str]:
    """How many rows skipping looks at, of how many it knows something, and how many are at rest."""
    if not summary.get("watched_rows"):
        return []
    return [
        f"watched: {count_text(summary['watched_rows'])} rows, {percent_text(summary['judged_row_share'])} of them "
        f"with a verdict, {count_text(summary['saturated_rows'])} saturated at the end"
    ]


def _guard(summary: Mapping[str, Any]) -> list[str]:
    """What a guard decided and what it took; nothing without one."""
    if "guard_decisions" not in summary:
        return []
    verdicts = ", ".join(decision["verdict"] for decision in summary["guard_decisions"]) or "none"
    forks, steps = summary["guard_fork_batches"], summary["steps"]
    undone = summary["guard_undone_batches"]
    return [
        f"guard: decisions {verdicts}; skipping is allowed at {percent_text(summary['guard_allowance'])} of what the "
        f"policy asks for; forks trained {count_text(forks)} batches more ({percent_text(forks / max(steps, 1))}), "
        f"{count_text(summary['guard_judged_batches'])} were judged"
        + (f"; what was skipped in {count_text(undone)} batches has been undone" if undone else "")
    ]


def _table_lines(tables: Mapping[str, TableCounts], table_rows: Mapping[str, int] | None, *, undone: bool) -> list[str]:
    sizes = table_rows or {name: counts.lookups for name, counts in tables.items()}
    names = sorted(tables, key=lambda name: -sizes.get(name, 0))
    shown = {name: tables[name] for name in names[:MAX_TABLES]}
    if rest := [tables[name] for name in names[MAX_TABLES:]]:
        shown[f"{len(rest)} other tables"] = sum_tables(rest)
    header = ["table", "look-ups", "hit rate", "resident", "to device", "to host"]
    rows = [_cells(name, counts) for name, counts in shown.items()]
    if any(counts.skipped_updates for counts in tables.values()):
        header += ["saturated", "skipped" if undone else "not written"]  # of what was undone tables keep no books
        for row, counts in zip(rows, shown.values(), strict=True):
            row += [count_text(counts.saturated_rows), percent_text(counts.skipped_update_share)]
    return aligned([header, *rows])


def _cells(name: str, counts: TableCounts) -> list[str]:
    return [
        name,
        count_text(counts.lookups),
        percent_text(counts.hit_rate),
        count_text(counts.resident_rows),
        bytes_text(counts.bytes_h2d),
        bytes_text(counts.bytes_d2h),
    ]
