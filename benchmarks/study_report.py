"""The study's tables, between markers in `build/benchmarks/skipping.md`.

A table stands between `<!-- table NAME -->` and `<!-- end of NAME -->`. Every number in it is from
`adaptive.studies.compare.verdicts`: means over seeds, differences paired by seed, Student's t intervals.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from adaptive.storage.durable import write_atomic
from adaptive.studies.compare.verdicts import judge
from adaptive.training.telemetry.formatting import percent_text
from benchmarks.study_cells import Block, Setting, blocks
from benchmarks.study_runs import Runs
from benchmarks.study_verdicts import Pairs, calibration_of, changes_of, outcomes, pairs_of, speed_of

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "build/benchmarks/skipping.md"
BUDGET: Final = 0.0005

Facts = Mapping[str, Any]
Cells = list[str]


def write_document(runs: Runs, document: Path = DOCUMENT) -> None:
    """Renew the tables of the document for which there are runs; others stay."""
    made = {block.name: (verdict_table if block.bar else block_table)(block, runs) for block in blocks()}
    text = document.read_text("utf-8") if document.is_file() else "".join(map(empty_section, made))
    document.parent.mkdir(parents=True, exist_ok=True)
    for name, table in made.items():
        text = put(text, name, table) if table else text
    write_atomic(document, text.encode())


def empty_section(name: str) -> str:
    """The heading and the markers of a table."""
    return f"## {name}\n\n<!-- table {name} -->\n<!-- end of {name} -->\n\n"


def put(text: str, name: str, table: str) -> str:
    """Replace what stands between the markers of `name`; a text without them stays as it is."""
    begin, end = f"<!-- table {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{table}\n\n{end}", text)


# --- tables --------------------------------------------------------------------------------------------------------


def block_table(block: Block, runs: Runs) -> str:
    """A line for each setting and way that has a run."""
    head = ["data", "way", "AUC", "change of AUC [95%]", "log loss", "updates", "lookups", "inputs", "seeds"]
    lines = [_line(setting, facts) for setting in block.settings for facts in judged(block, setting, runs)]
    return markdown([head, *lines]) if lines else ""


def _line(setting: Setting, facts: Facts) -> Cells:
    is_control = facts["policy"] == "off"
    shares = ("skipped_update_share", "skipped_lookup_share", "skipped_input_share")
    return [
        setting.name,
        facts["policy"],
        f"{facts['auc']:.5f}",
        "control" if is_control else change_text(facts),
        "" if is_control else f"{facts['log_loss_difference']:+.5f}",
        *(percent_text(facts[name]) if facts.get(name) else "" for name in shares),
        str(len(facts["seeds"])),
    ]


def verdict_table(block: Block, runs: Runs) -> str:
    """A line for each setting and way, with tests against the block's bar and its time next to the control's."""
    assert block.bar is not None
    ways = [
        (setting, facts, pairs_of(block, setting, facts["policy"], runs))
        for setting in block.settings
        for facts in judged(block, setting, runs)
    ]
    tested = [[] if facts["policy"] == "off" else pairs for _, facts, pairs in ways]
    by_score = {}
    for score, sign in (("auc", 1), ("log_loss", -1)):
        changes = [[sign * change for change in changes_of(pairs, score)] for pairs in tested]
        by_score[score] = outcomes(changes, block.bar)
    head = ["data", "way", "inputs", "updates", "AUC", "change of AUC [95%]", f"within {block.bar:g}", "log loss"]
    head += [f"within {block.bar:g}", "calibration", "time to AUC", "data per second", "seeds"]
    lines = [
        _tested_line(*way, auc, loss)
        for way, auc, loss in zip(ways, by_score["auc"], by_score["log_loss"], strict=True)
    ]
    return markdown([head, *lines]) if lines else ""


def _tested_line(setting: Setting, facts: Facts, pairs: Pairs, auc: str, loss: str) -> Cells:
    is_control, to_auc = facts["policy"] == "off", facts["to_auc"] or {}
    ratio, calibration, speed = to_auc.get("cpu_seconds_ratio"), calibration_of(pairs), speed_of(pairs)
    return [
        setting.name,
        facts["policy"],
        *(
            percent_text(facts[name]) if facts.get(name) else ""
            for name in ("skipped_input_share", "skipped_update_share")
        ),
        f"{facts['auc']:.5f}",
        "control" if is_control else change_text(facts),
        "" if is_control else auc,
        "" if is_control else f"{facts['log_loss_difference']:+.5f}",
        "" if is_control else loss,
        "-" if calibration is None else f"{calibration:.3f}",
        "-" if is_control or ratio is None else f"{ratio:.2f}, {to_auc['reached']} of {to_auc['runs']}",
        "-" if is_control or speed is None else f"{speed:.2f}",
        str(len(facts["seeds"])),
    ]


# --- judging -------------------------------------------------------------------------------------------------------


def judged(block: Block, setting: Setting, runs: Runs) -> list[Facts]:
    """Return a comparison's results for the ways of a block, without ways that have no run."""
    results = (
        runs.get(setting, way, seed, control=control)
        for way in block.ways
        for control in (None, "chance", "label")
        for seed in range(block.first_seed, block.first_seed + block.seeds)
    )
    outcomes = [run.outcome for run in results if run is not None]
    if not outcomes:
        return []
    facts: list[Facts] = [asdict(policy) for policy in judge(outcomes, auc_budget=BUDGET, to_auc="auto").policies]
    return [one for one in facts if one["seeds"]]


def change_text(facts: Facts) -> str:
    """Mean difference to the control, with its interval."""
    mean, bounds = facts["auc_difference"], facts["auc_difference_ci"]
    if mean is None:
        return "-"
    return f"{mean:+.5f}" if bounds is None else f"{mean:+.5f} [{bounds[0]:+.5f}, {bounds[1]:+.5f}]"


def markdown(rows: Sequence[Cells]) -> str:
    """The first row is the head; the first two columns are texts."""
    head, *rest = rows
    line = ["---", "---", *("---:" for _ in head[2:])]
    return "\n".join(_joined(cells) for cells in (head, line, *rest))


def _joined(cells: Cells) -> str:
    return "| " + " | ".join(cells) + " |"
