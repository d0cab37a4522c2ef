"""Quality of rows or optimizer state in bfloat16, rounded by chance or to nearest, against float32: AUC over seeds.

    python -m benchmarks.study_bfloat16 --runs FILE [--seeds 5] [--only NAME]    train what is missing in the file
    python -m benchmarks.study_bfloat16 --runs FILE --report                     print the table

The built-in streams and the real sets of `study_sets` (ADAPTIVE_DATA), with their settings. A difference is that of two
runs with one seed: they begin with the same values, rounded or not, and see the same samples. With Adagrad and
Adam, rows are float32 and their state is bfloat16; in all other settings it is the other way round.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.harness import Table
from benchmarks.study_cells import ROW_OPTIMIZERS, Setting, Way, stream
from benchmarks.study_runs import Runs, train
from benchmarks.study_sets import LARGE, is_there

FORMATS: Final = {
    "float32": {"row_dtype": "float32"},
    "stochastic": {"row_dtype": "bfloat16"},
    "nearest": {"row_dtype": "bfloat16", "row_rounding": "nearest"},
}
OF_STATE: Final = ("adagrad", "adam")  # optimizers whose state is bfloat16, and not the rows
STEPS: Final = 1000  # at most, of a real set
MODEL: Final = {"embedding_dim": 16, "bottom_mlp": "32-16", "top_mlp": "64-32-1"}


def settings() -> tuple[Setting, ...]:
    """Two built-in streams under four row optimizers, and all real sets that are there."""
    streams = tuple(
        stream(kind, 200_000, evaluated=100_000, name=f", {rows}", model_options=MODEL, optimizer=ROW_OPTIMIZERS[rows])
        for kind in ("easy", "hard")
        for rows in ("rowwise_adagrad", "sgd", *OF_STATE)
    )
    short = (replace(setting, config={**setting.config, "steps": STEPS}) for setting in LARGE if is_there(setting))
    return (*streams, *short)


def way(setting: Setting, name: str) -> Way:
    changes, optimizer = dict(FORMATS[name]), setting.config.get("optimizer", {})
    if optimizer.get("name") in OF_STATE:
        optimizer = {**optimizer, "state_dtype": changes.pop("row_dtype")}
    options = {**setting.config["model_options"], **changes}
    return Way(name, "lfu", config={"skip": None, "model_options": options, "optimizer": optimizer})


def train_missing(runs: Runs, seeds: int, only: str) -> None:
    """Files that are made of real data stay next to the file of runs."""
    for seed in range(seeds):
        for setting in settings():
            for name in FORMATS:
                if only in setting.name and runs.get(setting, way(setting, name), seed) is None:
                    (run,) = train(setting, way(setting, name), seed, folder=runs.path.parent / "bfloat16")
                    runs.add(run)
                    print(run.key, run.summary.get("auc"), run.error or "", flush=True)


def report(runs: Runs, seeds: int) -> Table:
    """Mean differences of AUC to float32, with their standard errors; the last row is of all runs."""
    names = list(FORMATS)[1:]
    table = Table("AUC of rows in bfloat16 less that of float32", ["data", "seeds", "float32", *names])
    everything: dict[str, list[float]] = {name: [] for name in names}
    for setting in settings():
        by_format = {name: [runs.get(setting, way(setting, name), seed) for seed in range(seeds)] for name in FORMATS}
        whole = [of_seed for of_seed in zip(*by_format.values(), strict=True) if None not in of_seed]
        if not whole:
            continue
        auc = {
            name: [run.summary["auc"] for run in column]
            for name, column in zip(FORMATS, zip(*whole, strict=True), strict=True)
        }
        differences = {name: [a - b for a, b in zip(auc[name], auc["float32"], strict=True)] for name in names}
        for name in names:
            everything[name] += differences[name]
        table.add(setting.name, len(whole), f"{statistics.mean(auc['float32']):.4f}", *map(_text, differences.values()))
    table.add("all", len(everything[names[0]]), None, *map(_text, everything.values()))
    return table


def _text(differences: list[float]) -> str:
    if len(differences) < 2:
        return ", ".join(f"{difference:+.5f}" for difference in differences)
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return f"{statistics.mean(differences):+.5f} ± {error:.5f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    runs = Runs(options.runs)
    if not options.report:
        train_missing(runs, options.seeds, options.only)
    print(report(runs, options.seeds).markdown())


if __name__ == "__main__":
    main()
