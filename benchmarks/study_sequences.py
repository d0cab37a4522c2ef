"""AUC of models that attend to sequences, next to a DLRM that sums them.

    python -m benchmarks.study_sequences --runs FILE [--seeds 5] [--only NAME]    train what is missing in the file
    python -m benchmarks.study_sequences --runs FILE --report                     print the table

All models see the same samples in the same order, with the same columns, rows, rates and number of steps. A difference
is that of two runs with one seed. Seeds begin at `FIRST`; those below chose the models' defaults.
"""

import argparse
import statistics
from pathlib import Path
from typing import Final

from benchmarks.harness import Table
from benchmarks.study_cells import Setting, Way
from benchmarks.study_runs import Runs, train
from benchmarks.study_sets import is_there

FIRST: Final = 200
MODELS: Final = ("dlrm", "din", "hstu")
SETTINGS: Final = tuple(
    Setting(name, name, {"batch_size": 64}) for name in ("jd-sequences", "diginetica-sequences", "taobao-shaped")
)


def way(model: str) -> Way:
    return Way(model, "lfu", config={"model": model, "skip": {"rule": "off"}})


def train_missing(runs: Runs, seeds: int, only: str) -> None:
    """Files that are made of real data stay next to the file of runs."""
    for seed in range(FIRST, FIRST + seeds):
        for setting in SETTINGS:
            for model in MODELS if only in setting.name and is_there(setting) else ():
                if runs.get(setting, way(model), seed) is None:
                    (run,) = train(setting, way(model), seed, folder=runs.path.parent / "sequences")
                    runs.add(run)
                    print(run.key, run.summary.get("auc"), run.error or "", flush=True)


def report(runs: Runs, seeds: int) -> Table:
    """AUC over seeds, and mean differences to `dlrm` with their standard errors."""
    table = Table("AUC", ["data", "seeds", *MODELS, *(f"{model} less dlrm" for model in MODELS[1:])])
    for setting in SETTINGS:
        of_seeds = [
            [run.summary["auc"] for model in MODELS if (run := runs.get(setting, way(model), seed)) is not None]
            for seed in range(FIRST, FIRST + seeds)
        ]
        columns = list(zip(*(aucs for aucs in of_seeds if len(aucs) == len(MODELS)), strict=True))
        if columns:
            gains = [[a - b for a, b in zip(column, columns[0], strict=True)] for column in columns[1:]]
            cells = [_spread(column, 4) for column in columns] + [_spread(gain, 4, mean=True) for gain in gains]
            table.add(setting.name, len(columns[0]), *cells)
    return table


def _spread(values: "tuple[float, ...] | list[float]", digits: int, *, mean: bool = False) -> str:
    """Mean ± standard deviation, or with a sign ± the standard error of the mean."""
    deviation = statistics.stdev(values) if len(values) > 1 else float("nan")
    if mean:
        return f"{statistics.mean(values):+.{digits}f} ± {deviation / len(values) ** 0.5:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


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
