"""Run the CPU benchmarks, each in a process, and write their tables to `build/benchmarks/cpu.md`.

    python -m benchmarks.run_all                       # about an hour on two quiet cores
    python -m benchmarks.run_all --quick               # two minutes
    python -m benchmarks.run_all --json results.json   # {"ratios": {...}, "figures": {...}, "absent": {name: reason}}
    python -m benchmarks.run_all --only turns plan --dlrm ~/src/dlrm

`benchmarks/install_peers.sh` makes an environment with all peers; `gpu.plans` runs what needs a GPU.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks import harness
from benchmarks.bars import Bar
from benchmarks.ending import run_module
from benchmarks.harness import Report, Table

BENCHMARKS = (
    "plan",
    "step",
    "turns",
    "reader",
    "startup",
    "memory",
)
MOST_SECONDS = 3_600.0  # of one benchmark
DOCUMENT = Path(__file__).resolve().parent.parent / "build/benchmarks/cpu.md"
BEGIN, END = "<!-- results: written by python -m benchmarks.run_all -->", "<!-- end of results -->"
HEADING = "# Benchmark tables\n\n"


def run_one(name: str, size: str, dlrm: str | None) -> Report:
    """The report of one benchmark; if it fails, a report that says so."""
    arguments = [f"--{size}"] if size != "full" else []
    arguments += ["--dlrm", dlrm] if dlrm and name == "turns" else []
    return run_module(f"benchmarks.bench_{name}", *arguments, limit=MOST_SECONDS)


def as_json(report: Report, required: Sequence[str] = ()) -> dict[str, dict[str, float] | dict[str, str]]:
    """What `--json` holds: every required name is a ratio or has a reason why it is absent."""
    absent = dict(report.absent)
    for name in required:
        found = any(ratio == name or (name.endswith("*") and ratio.startswith(name[:-1])) for ratio in report.ratios)
        known = any(ratio.startswith(name.rstrip("*")) for ratio in absent)
        if not found and not known:
            absent[name] = "not measured in this run"
    return {"ratios": report.ratios, "figures": report.figures, "absent": absent}


def bars_table(report: Report, bars: Sequence[Bar]) -> Table:
    """Where we stand against the bars that have been measured."""
    table = Table("bars", ["what", "name", "bar", "measured", "reached"])
    values = report.ratios | report.figures
    for bar in bars:
        if bar.name in values:
            reached = bar.reached(values[bar.name])
            sign = ">=" if bar.at_least else "<="
            table.add(bar.title, f"`{bar.name}`", f"{sign} {bar.value:g}", values[bar.name], "yes" if reached else "NO")
    return table


def markdown(
    report: Report, command: str, quietness: str, *, machine: str | None = None, bars: Sequence[Bar] = ()
) -> str:
    """The section of the document."""
    ratios = Table("all ratios and figures", ["name", "value"])
    for name, value in (report.ratios | report.figures).items():
        ratios.add(f"`{name}`", value)
    absent = [f"- `{name}`: {reason}" for name, reason in report.absent.items()]
    parts = [
        f"Measured {date.today().isoformat()} with `{command}`.",
        f"{machine or harness.hardware()}. Before the run: {quietness}.",
        *([bars_table(report, bars).markdown()] if bars else []),
        *[table.markdown() for table in report.tables],
        ratios.markdown(),
        *(["Absent:", "\n".join(absent)] if absent else []),
        *[f"Note: {note}" for note in report.notes],
    ]
    return "\n\n".join(parts)


def write_document(path: Path, section: str, begin: str = BEGIN, end: str = END) -> None:
    """Put the section between its marks, at the end of the document if it has none yet."""
    text = path.read_text() if path.is_file() else HEADING
    if begin not in text:
        text = f"{text.rstrip()}\n\n{begin}\n{end}\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(f"{before}{begin}\n\n{section}\n\n{end}{after}")
    os.replace(temporary, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, size, text in harness.SIZES:
        parser.add_argument(flag, action="store_const", const=size, dest="size", default="full", help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write ratios, figures and what is absent as JSON")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, help="run only these")
    parser.add_argument("--dlrm", metavar="PATH", help="a checkout of facebookresearch/dlrm")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where the tables go (build/benchmarks/cpu.md)")
    options = parser.parse_args()
    quietness = harness.quietness()
    print(harness.hardware())
    print(quietness, flush=True)
    report = Report()
    if options.size != "full":
        report.notes.append("small sizes: a first impression.")
    for name in BENCHMARKS:
        if name in options.only:
            report.merge(run_one(name, options.size, options.dlrm))
            if options.json is not None:  # after each one: an hour's results survive a later fault
                options.json.write_text(json.dumps(as_json(report), indent=1) + "\n")
    command = shlex.join(["python", "-m", "benchmarks.run_all", *sys.argv[1:]])
    write_document(options.document, markdown(report, command, quietness))
    failed = [name for name in report.absent if name.startswith("bench_")]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
