"""Quality of rows in bfloat16, rounded by chance or to nearest, against float32: AUC over seeds.

    python -m benchmarks.study_bfloat16 --runs FILE [--seeds 5] [--only NAME]    train what is missing in the file
    python -m benchmarks.study_bfloat16 --runs FILE --report                     print the table

The built-in streams and the real sets of `study_sets` (ADAPTIVE_DATA), with their settings. A difference is that of two
runs with one seed: they begin with the same values, rounded or not, and see the same samples.
"""

import statistics
from dataclasses import replace
from typing import Final

from benchmarks.harness import Table
from benchmarks.study_cells import ROW_OPTIMIZERS, Setting, Way, stream
from benchmarks.study_runs import Runs
from benchmarks.study_seeds import change_text, paired_aucs, run_study, train_cells
from benchmarks.study_sets import LARGE, is_there

FORMATS: Final = {
    "float32": {"row_dtype": "float32"},
    "stochastic": {"row_dtype": "bfloat16"},
    "nearest": {"row_dtype": "bfloat16", "row_rounding": "nearest"},
}
STEPS: Final = 1000  # at most, of a real set
MODEL: Final = {"embedding_dim": 16, "bottom_mlp": "32-16", "top_mlp": "64-32-1"}


def settings() -> tuple[Setting, ...]:
    """Two built-in streams under two row optimizers, and all real sets that are there."""
    streams = tuple(
        stream(kind, 200_000, evaluated=100_000, name=f", {rows}", model_options=MODEL, optimizer=ROW_OPTIMIZERS[rows])
        for kind in ("easy", "hard")
        for rows in ("rowwise_adagrad", "sgd")
    )
    short = (replace(setting, config={**setting.config, "steps": STEPS}) for setting in LARGE if is_there(setting))
    return (*streams, *short)


def way(setting: Setting, name: str) -> Way:
    options = {**setting.config["model_options"], **FORMATS[name]}
    return Way(name, "lfu", config={"skip": None, "model_options": options})


def train_missing(runs: Runs, seeds: range, only: str) -> None:
    chosen = [setting for setting in settings() if only in setting.name]
    cells = ((setting, way(setting, name), seed) for seed in seeds for setting in chosen for name in FORMATS)
    train_cells(runs, cells, "bfloat16")


def report(runs: Runs, seeds: range) -> Table:
    """Mean differences of AUC to float32, with their standard errors; the last row is of all runs."""
    names = list(FORMATS)[1:]
    table = Table("AUC of rows in bfloat16 less that of float32", ["data", "seeds", "float32", *names])
    everything: list[list[float]] = [[] for _ in names]
    for setting in settings():
        aucs, changes = paired_aucs(runs, setting, [way(setting, name) for name in FORMATS], seeds)
        if aucs:
            everything = [[*earlier, *of_setting] for earlier, of_setting in zip(everything, changes, strict=True)]
            table.add(setting.name, len(aucs[0]), f"{statistics.mean(aucs[0]):.4f}", *map(_text, changes))
    table.add("all", len(everything[0]), None, *map(_text, everything))
    return table


def _text(changes: list[float]) -> str:
    return change_text(changes, 5) if len(changes) > 1 else ", ".join(f"{change:+.5f}" for change in changes)


def main() -> None:
    run_study(__doc__, Runs, train_missing, report)


if __name__ == "__main__":
    main()
