"""Costs and savings of skipping, by mode: the study behind `docs/benchmarks/skipping.md`.

    python -m benchmarks.study_skipping --runs study.jsonl                    # all of it; resumes if stopped
    python -m benchmarks.study_skipping --runs study.jsonl --only rates       # these blocks
    python -m benchmarks.study_skipping --runs study.jsonl --seconds 1800     # start nothing later than that
    python -m benchmarks.study_skipping --runs study.jsonl --report           # train nothing, write the document
    python -m benchmarks.study_skipping --runs study.jsonl --publish FILE     # one short line per run

Runs are trained one after the other in a process, on one thread, by the code of `adaptive-train compare`. Real data is
read from the folder that ADAPTIVE_DATA names; sets that are not there are left out, and the document says so.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.study_cells import Block, Setting, blocks, cells
from benchmarks.study_runs import Runs, train
from benchmarks.study_verdicts import publish


def wanted(names: Sequence[str] | None) -> tuple[Block, ...]:
    """The blocks of these names, all by default.

    Raises:
        SystemExit: for a name that is none.
    """
    by_name = {block.name: block for block in blocks()}
    unknown = [name for name in names or [] if name not in by_name]
    if unknown:
        raise SystemExit(f"--only: expected blocks among {', '.join(by_name)}, got {' '.join(unknown)}")
    return tuple(by_name[name] for name in names) if names else tuple(by_name.values())


def run_blocks(
    chosen: Sequence[Block],
    runs: Runs,
    folder: Path,
    *,
    until: float,
    is_there: Callable[[Setting], bool],
) -> None:
    """Train what is not in the file yet; an error ends its own run only and is stored."""
    for block in chosen:
        for setting, way, seed in cells(block):
            if runs.get(setting, way, seed) is not None or not is_there(setting):
                continue
            if time.monotonic() > until:
                print("time is up", file=sys.stderr)
                return
            start = time.perf_counter()
            for run in train(setting, way, seed, folder=folder):
                runs.add(run)
                auc = run.summary.get("auc")
                result = run.error or f"auc {'-' if auc is None else f'{auc:.5f}'}"
                print(f"{block.name}: {setting.name} | {run.label} | seed {seed}: {result}", flush=True)
            print(f"  {time.perf_counter() - start:.1f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FILE", help="JSON lines, one per run")
    parser.add_argument("--only", nargs="+", metavar="BLOCK", help="blocks to train")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run later than that")
    parser.add_argument("--publish", type=Path, metavar="FILE", help="write one short line per run, train nothing")
    parser.add_argument("--report", action="store_true", help="write the document from what is there, train nothing")
    options = parser.parse_args(arguments)
    chosen, runs = wanted(options.only), Runs(options.runs)
    if options.publish:
        publish(runs, options.publish)
        return
    if not options.report:
        from benchmarks.study_sets import is_there

        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            until = time.monotonic() + options.seconds
            run_blocks(chosen, runs, Path(folder), until=until, is_there=is_there)
        return
    from benchmarks.study_report import write_document

    write_document(runs)


if __name__ == "__main__":
    main()
