"""Summary of a run: the object that `--json` prints, and the same as text."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from adaptive.training.telemetry.formatting import (
    accuracy_text,
    aligned,
    bytes_text,
    count_text,
    number_text,
    percent_text,
    score_text,
)
from adaptive.training.telemetry.jsonl import plain
from adaptive.training.telemetry.record import (
    COUNT_FIELDS,
    LOOK_AHEAD_STAGES,
    RunTotals,
    TableCounts,
    share,
    sum_tables,
)

SCHEMA: Final = 1
MAX_TABLES: Final = 10  # lines of single tables; the rest share one


@dataclass(kw_only=True)
class RunSummary:
    """The object that `--json` prints. Numbers that are unknown or not finite are null.

    Fields with a default are left out of it where they say nothing about the run.
    """

    policy: str
    steps: int
    samples: int
    samples_per_s: float | None  # read: samples that a rule dropped count
    samples_per_s_later: float | None  # the same, without the first interval and those in which a kernel was compiled
    # Quality of the final evaluation, else of training's predictions.
    auc: float | None
    log_loss: float | None
    accuracy: float | None
    auc_of: str | None = None  # "evaluation", "training" or "files": the mean of followed files, judged before training
    eval_samples: int | None = None
    auc_exact: bool | None = None
    normalised_entropy: float | None = None
    calibration: float | None = None
    gauc: float | None = None
    gauc_groups: int | None = None
    files: int | None = None  # trained, with `follow`
    best: dict[str, Any] | None = None  # the best evaluation of a run with `save=best` or `patience`
    evaluations: list[dict[str, Any]] | None = None
    evaluation_work: list[dict[str, Any]] | None = None  # of training until each; times without those of evaluations
    # Rows and lookups; see `TableCounts`.
    hit_rate: float | None
    row_hit_rate: float | None
    admitted_rows: int
    evicted_rows: int
    fetched_rows: int
    written_back_rows: int
    bytes_h2d: int
    bytes_d2h: int
    hot_rows: int
    saturated_rows: int
    saturated_row_share: float | None
    device_rows: int | None = None
    host_bytes_read: int | None = None
    host_bytes_written: int | None = None
    # Skipped work as shares of all work.
    skipped_update_share: float | None
    deferred_update_share: float | None
    skipped_lookup_share: float | None
    skipped_input_share: float | None = None
    samples_read: int | None = None  # with those that a rule dropped
    effective_samples: int | None = None  # samples of equal weight that estimate the gradient as well as those trained
    weight_spread: float | None = None  # standard deviation of their weights over the mean
    # Keys of all tables with keys: with a row now; that got and lost rows in the run; lookups of others.
    live_keys: int | None = None
    admitted_keys: int | None = None
    expired_keys: int | None = None
    evicted_keys: int | None = None
    unadmitted_lookup_share: float | None = None
    time_ms: dict[str, float]
    policy_numbers: dict[str, float | None]  # as last reported by the policy
    ranks: int | None = None  # processes that have trained together
    compile_s: float | None = None  # seconds in which kernels were compiled before the first step
    seed: int | None = None
    rejected_lines: dict[str, int] | None = None
    out_of_range_ids: dict[str, int] | None = None
    truncated_sequences: dict[str, int] | None = None
    run_dir: str | None = None

    @classmethod
    def of(cls, policy: str, totals: RunTotals, quality: Mapping[str, Any], **more: Any) -> "RunSummary":
        """Return the summary of a run with these totals.

        Args:
            quality: at least `auc`, `log_loss` and `accuracy`.
            more: other fields.
        """
        counts = sum_tables(list(totals.tables.values()))
        of_rows = {
            shown.summary: getattr(counts, shown.name)
            for shown in COUNT_FIELDS
            if shown.summary and shown.applies_to(counts)
        }
        numbers = {
            "samples": totals.samples,
            "samples_per_s": totals.samples_per_s,
            "samples_per_s_later": totals.counted.samples_per_s,
            "time_ms": totals.counted.time_ms or totals.time_ms,
            "policy_numbers": totals.policy,
            **of_rows,
            **quality,
            **more,
        }
        return cls(policy=policy, steps=totals.steps, **plain(numbers))

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        numbers = {f.name: (getattr(self, f.name), f.default is MISSING) for f in fields(self)}
        shown = {name: value for name, (value, is_always) in numbers.items() if is_always or value is not None}
        return {"schema": SCHEMA, **shown}


def run_text(summary: RunSummary, totals: RunTotals, *, rows: int, misses: str, run: str) -> str:
    """The summary as the text of a run: what was read, where rows were, what was skipped, how fast, how good.

    Args:
        summary: of the run.
        totals: of the run.
        rows: of all tables.
        misses: see `Policy.misses`.
        run: directory of the run, quoted for a shell.
    """
    compiled = summary.compile_s
    once = f" (and {compiled:.0f} s to compile, once)" if compiled and compiled >= 0.5 else ""
    facts = {"placement": _placement(summary, totals, rows, misses)}
    if summary.hot_rows:
        facts["saturated"] = [
            f"{count_text(summary.saturated_rows)} of {count_text(summary.hot_rows)} popular rows: an update "
            "moves them by less than 5% of their length"
        ]
    facts["skipped"] = _skipped_facts(summary, totals)
    facts["speed"] = _speed_facts(summary, totals)
    if facts["skipped"]:
        policies = ",".join(dict.fromkeys(("lfu", summary.policy)))
        compare = f"  adaptive-train compare --config {run}/run.json --policies {policies}"
        facts["quality"] = ["not compared. Measure it on your data:", compare]
    facts["files"], facts["keys"] = _file_lines(summary), _key_facts(summary)
    lines = [
        f"{summary.policy}: {count_text(totals.read)} samples read in {totals.seconds:.1f} s{once}",
        *_quality_lines(summary),
        *_best_line(summary),
        "",
        *(f"{'' if n else name:<11} {line}" for name, fact in facts.items() for n, line in enumerate(fact)),
    ]
    return "\n".join(lines) + "\n"


def _placement(summary: RunSummary, totals: RunTotals, rows: int, misses: str) -> list[str]:
    resident = sum(counts.resident_rows for counts in totals.tables.values())
    others = "the others were fetched ahead" if misses == "prefetch" else "the others were used on the host"
    moved = f"{bytes_text(summary.bytes_h2d)} in, {bytes_text(summary.bytes_d2h)} out"
    return [
        f"{count_text(resident)} of {count_text(rows)} rows on the device; {percent_text(summary.hit_rate)} of "
        "lookups had their row there,",
        f"{others} ({moved})",
    ]


def _skipped_facts(summary: RunSummary, totals: RunTotals) -> list[str]:
    skipped, deferred = summary.skipped_update_share or 0.0, summary.deferred_update_share or 0.0
    facts = []
    if deferred:
        facts.append(f"{percent_text(deferred)} of row updates were postponed and applied together later")
    if skipped > deferred:
        facts.append(f"{percent_text(skipped - deferred)} of row updates were dropped")
    if share := summary.skipped_input_share:
        facts.append(f"{percent_text(share)} of the samples were left out")
    elif would_go := totals.policy.get("rule.skippable_share"):
        facts.append(f"no samples were left out: {percent_text(would_go)} could be, which costs more than it saves")
    return facts


def _speed_facts(summary: RunSummary, totals: RunTotals) -> list[str]:
    before, since = totals.plain.samples_per_s, totals.skipping.samples_per_s
    if before is None or since is None:
        speed = summary.samples_per_s_later or summary.samples_per_s
        return [f"{count_text(speed)} samples read per second"]
    line = f"{count_text(since)} samples/s since skipping began, {count_text(before)} before"
    if since < before:
        return [line, f"skipping does not pay here: {since / before:.2f} times; use --policy lfu"]
    return [f"{line}: {since / before:.1f} times as fast"]


def _key_facts(summary: RunSummary) -> list[str]:
    if summary.live_keys is None:
        return []
    events = ", ".join(f"{count_text(getattr(summary, f'{e}_keys'))} {e}" for e in ("admitted", "expired", "evicted"))
    return [f"{count_text(summary.live_keys)} have a row now; {events}"]


def details_text(summary: RunSummary, totals: RunTotals, table_rows: Mapping[str, int]) -> str:
    """What `run_text` leaves out: traffic, the policy's numbers, stages, and a line for each of the ten largest tables.

    `table_rows`: number of rows of each table.
    """
    later = summary.samples_per_s_later
    compiled = "" if later is None else f" ({count_text(later)} without the first interval)"
    numbers = ", ".join(f"{name} {number_text(name, value)}" for name, value in summary.policy_numbers.items())
    lines = [
        f"policy {summary.policy}: {count_text(summary.steps)} steps, {count_text(summary.samples)} samples, "
        f"{count_text(summary.samples_per_s)} samples/s{compiled}",
        f"hit rate: {percent_text(summary.hit_rate)} of lookups, "
        f"{percent_text(summary.row_hit_rate)} of distinct rows per batch",
        f"moved: {count_text(summary.fetched_rows)} rows ({bytes_text(summary.bytes_h2d)}) to the device, "
        f"{count_text(summary.written_back_rows)} rows ({bytes_text(summary.bytes_d2h)}) to the host",
        *_skipped_lines(summary, totals),
        *([f"policy reports: {numbers}"] if numbers else []),
        *_time_lines(summary),
        "",
        *_table_lines(totals.tables, table_rows),
    ]
    return "\n".join(lines) + "\n"


def _skipped_lines(summary: RunSummary, totals: RunTotals) -> list[str]:
    """Skipped lookups, and the share at the end of training, which grows as rows become saturated."""
    share, latest = summary.skipped_update_share, totals.latest_skipped_share or 0.0
    if not share:
        return []
    grown = f"; {percent_text(latest)} in the last interval, as more rows become saturated" if latest > share else ""
    of_lookups = percent_text(summary.skipped_lookup_share)
    return [f"skipped: {percent_text(share)} of row updates ({of_lookups} of lookups){grown}"]


def _quality_lines(summary: RunSummary) -> list[str]:
    """Lines of quality."""
    calibration, gauc = summary.calibration, summary.gauc
    more = "" if calibration is None else f", calibration {calibration:.3f}"
    if gauc is not None:
        more += f", GAUC {score_text(gauc)} over {count_text(summary.gauc_groups)} groups"
    match summary.auc_of:
        case "evaluation":
            more += f", on {count_text(summary.eval_samples)} held-out samples"
        case "files":
            files = len(summary.evaluations or ())
            more += (
                f", mean of the latest {files} files, {count_text(summary.eval_samples)} samples, before their training"
            )
        case "training":
            more += ", on training batches, each predicted before it was trained"
    quality = f"AUC {score_text(summary.auc)}, log loss {score_text(summary.log_loss)}"
    return [f"{quality}, accuracy {accuracy_text(summary.accuracy)}{more}"]


def _best_line(summary: RunSummary) -> list[str]:
    """A line of the best evaluation, if the run looks for it."""
    if not (best := summary.best):
        return []
    return [
        f"best {best['metric'].upper()} {score_text(best['value'])} after step {count_text(best['step'])}"
        + ("; eval, predict, export and load_run use the weights of that step, not the last ones" * best["saved"])
        + ("; training stopped because later evaluations were no better (patience)" * best["ended_by_patience"])
    ]


def _file_lines(summary: RunSummary) -> list[str]:
    if summary.host_bytes_read is None:
        return []
    read, written = bytes_text(summary.host_bytes_read), bytes_text(summary.host_bytes_written)
    return [f"host files: {read} read, {written} written during training"]


def _time_lines(summary: RunSummary) -> list[str]:
    """Lines of mean times: of the training thread, and of parallel work."""
    later = "" if summary.samples_per_s_later is None else " without the first interval"
    training, look_ahead = list[str](), list[str]()
    for stage, mean in summary.time_ms.items():
        (look_ahead if stage in LOOK_AHEAD_STAGES else training).append(f"{stage} {mean:.2f}")
    lines = [f"ms per step{later}: {', '.join(training)}"] if training else []
    if look_ahead:
        where = "overlaps with training, or part of wait if training plans"
        lines.append(f"ms per step of look-ahead ({where}): {', '.join(look_ahead)}")
    return lines


def _table_lines(tables: Mapping[str, TableCounts], table_rows: Mapping[str, int]) -> list[str]:
    names = sorted(tables, key=lambda name: -table_rows.get(name, 0))
    shown = {name: tables[name] for name in names[:MAX_TABLES]}
    if rest := [tables[name] for name in names[MAX_TABLES:]]:
        shown[f"{len(rest)} other tables"] = sum_tables(rest)
    header = ["table", "lookups", "hit rate", "rows on device", "to device", "to host"]
    rows = [
        [
            *(name, count_text(counts.lookups), percent_text(counts.hit_rate), count_text(counts.resident_rows)),
            *(bytes_text(counts.bytes_h2d), bytes_text(counts.bytes_d2h)),
        ]
        for name, counts in shown.items()
    ]
    if any(counts.skipped_updates for counts in tables.values()):
        header += ["saturated", "skipped"]
        for row, counts in zip(rows, shown.values(), strict=True):
            row.append(count_text(counts.saturated_rows))
            row.append(percent_text(counts.skipped_update_share))
    keyed = [[name, *key_cells(counts, table_rows.get(name))] for name, counts in shown.items() if counts.has_keys]
    return aligned([header, *rows]) + (aligned([["table", *KEY_COLUMNS], *keyed]) if keyed else [])


KEY_COLUMNS: Final = ("live keys", "of capacity", "admitted", "expired", "evicted", "lookups without a row")


def key_cells(counts: TableCounts, capacity: int | None) -> list[str]:
    """Return the cells of `KEY_COLUMNS` for a table."""
    taken = share(counts.live_keys, capacity or 0) if counts.has_keys else None
    events = map(count_text, (counts.admitted_keys, counts.expired_keys, counts.evicted_keys))
    return [count_text(counts.live_keys), percent_text(taken), *events, percent_text(counts.unadmitted_lookup_share)]
