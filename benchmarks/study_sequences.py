"""AUC of models that attend to sequences, next to a DLRM that sums them.

    python -m benchmarks.study_sequences --runs FILE [--seeds 5] [--only NAME]    train what is missing in the file
    python -m benchmarks.study_sequences --runs FILE --report                     print the table

All models see the same samples in the same order, with the same columns, rows, rates and number of steps. A difference
is that of two runs with one seed. Seeds begin at `FIRST`; those below chose the models' defaults.
"""

from typing import Final

from benchmarks.harness import Table
from benchmarks.study_cells import Setting, Way
from benchmarks.study_runs import Runs
from benchmarks.study_seeds import change_text, paired_aucs, run_study, spread_text, train_cells
from benchmarks.study_sets import is_there

FIRST: Final = 200
MODELS: Final = ("dlrm", "din")
SETTINGS: Final = tuple(
    Setting(name, name, {"batch_size": 64}) for name in ("jd-sequences", "diginetica-sequences", "taobao-shaped")
)


def way(model: str) -> Way:
    return Way(model, "lfu", config={"model": model, "skip": {"rule": "off"}})


def train_missing(runs: Runs, seeds: range, only: str) -> None:
    chosen = [setting for setting in SETTINGS if only in setting.name and is_there(setting)]
    cells = ((setting, way(model), seed) for seed in seeds for setting in chosen for model in MODELS)
    train_cells(runs, cells, "sequences")


def report(runs: Runs, seeds: range) -> Table:
    """AUC over seeds, and mean differences to `dlrm` with their standard errors."""
    table = Table("AUC", ["data", "seeds", *MODELS, *(f"{model} less dlrm" for model in MODELS[1:])])
    for setting in SETTINGS:
        aucs, gains = paired_aucs(runs, setting, [way(model) for model in MODELS], seeds)
        if aucs:
            table.add(setting.name, len(aucs[0]), *map(spread_text, aucs), *(change_text(gain, 4) for gain in gains))
    return table


def main() -> None:
    run_study(__doc__, Runs, train_missing, report, first=FIRST)


if __name__ == "__main__":
    main()
