"""Rows and state in bfloat16 against float32: the embedding part of a step, and whole steps in long turns.

    python -m benchmarks.bench_bfloat16 [--quick] [--set 'only=width 64, sgd' rows=5000000]

A ratio is the time of float32 over that of bfloat16; with Adagrad and Adam, that of rows in bfloat16 with state in
float32 over that with both in bfloat16. All start from the same values; after a step rows differ by rounding only.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchmarks import harness
from benchmarks.bench_step import PHASES, Line
from benchmarks.bench_turns import turn
from benchmarks.harness import Report, median_ms, paired
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import Case, Optimizer, Ours, Setup, fixed_gradient
from benchmarks.whole_step import our_model

HALVES, BOTH = "bfloat16", "bfloat16, state too"
OF_ROWS: tuple[Optimizer, ...] = ("sgd", "rowwise_adagrad")
OF_STATE: tuple[Optimizer, ...] = ("adagrad", "adam")  # optimizers whose state may be bfloat16
UNIT = 2.0**-7  # largest distance between two neighboring bfloat16 values, over their size


@dataclass(frozen=True)
class Settings:
    rows: int = 5_000_000
    rounds: int = 9
    warm_up: int = 2
    turn_steps: int = 12  # steps of a turn
    turn_rounds: int = 5
    cases: tuple[Case, ...] = tuple(
        Case(2048, dim, optimizer, hot)
        for widths, optimizers in (((64, 128), OF_ROWS), ((16, 64), OF_STATE))
        for dim, hot, optimizer in product(widths, (20, 1), optimizers)
    )
    whole: tuple[int, ...] = (64,)  # widths of whole steps
    only: str = ""  # cases whose title contains this


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_000_000, rounds=5, turn_rounds=3),
    "smoke": Settings(
        rows=20_000,
        rounds=2,
        warm_up=1,
        turn_steps=2,
        turn_rounds=1,
        cases=(Case(64, 16, "sgd", 3), Case(64, 8, "adam")),
        whole=(16,),
    ),
}


def run(settings: Settings) -> Report:
    report = Report()
    for case in settings.cases:
        if settings.only in case.title:
            report.merge(bench_case(case, settings))
    return report


def bench_case(case: Case, settings: Settings) -> Report:
    report = Report()
    tables = kaggle_tables(settings.rows, case.dim)
    setups = {
        dtype: Setup(tuple(table.model_copy(update={"dtype": dtype}) for table in tables), case.optimizer,
                     case.mean_hot == 1)
        for dtype in ("float32", "bfloat16")
    }  # fmt: skip
    if case.optimizer in OF_STATE:
        setups[BOTH] = replace(setups[HALVES], state_dtype="bfloat16")
    variants = {dtype: Ours(setup, depth=4) for dtype, setup in setups.items()}
    check_rows(case, variants, setups["float32"])
    count = settings.warm_up + settings.rounds
    batches = make_batches(tables, count, case.batch, mean_hot=case.mean_hot, seed=1)
    gradient = fixed_gradient(setups["float32"], case.batch)
    lines = {dtype: Line(variant, variant.stream(batches), gradient, []) for dtype, variant in variants.items()}
    times = harness.take_turns(
        {dtype: line.step for dtype, line in lines.items()}, rounds=settings.rounds, warm_up=settings.warm_up
    )
    table = report.table(f"embedding part, {case.title}, {settings.rows:,} rows", "rows", "ms", *PHASES)
    for dtype, line in lines.items():
        phases = np.median(line.phases[settings.warm_up :], axis=0) * 1000
        table.add(dtype, median_ms(times[dtype]), *phases.tolist())
    report.ratios[f"bfloat16_embedding_{case.suffix}"] = paired(times["float32"], times[HALVES])
    if BOTH in times:
        report.ratios[f"bfloat16_state_embedding_{case.suffix}"] = paired(times[HALVES], times[BOTH])
    for variant in variants.values():
        variant.stop()
    if case.dim in settings.whole:
        report.merge(bench_turns(case, settings, variants))
    for variant in variants.values():
        variant.close()
    return report


def bench_turns(case: Case, settings: Settings, variants: dict[str, Ours]) -> Report:
    """Whole steps under small MLPs, in turns from an empty look-ahead until the last batch is trained."""
    report, tables = Report(), kaggle_tables(settings.rows, case.dim)
    wholes = {dtype: our_model(dtype, variant, case, small=True) for dtype, variant in variants.items()}
    times: harness.Times = {dtype: [] for dtype in wholes}
    for number in range(settings.turn_rounds + 1):
        batches = make_batches(tables, settings.turn_steps, case.batch, mean_hot=case.mean_hot, seed=100 + number)
        for dtype in sorted(wholes, reverse=bool(number % 2)):
            seconds = turn(wholes[dtype], batches) / len(batches)
            times[dtype] += [seconds] if number else []  # the first round warms up
    table = report.table(f"whole steps in long turns, {case.title}, small MLPs", "rows", "ms a step")
    for dtype in wholes:
        table.add(dtype, median_ms(times[dtype]))
    report.ratios[f"bfloat16_turns_{case.suffix}"] = paired(times["float32"], times[HALVES])
    return report


def check_rows(case: Case, variants: dict[str, Ours], setup: Setup) -> None:
    """Train a batch; rows differ by the rounding of their initial values and of one step.

    Raises:
        harness.NotEqual: if they differ by more.
    """
    batches = make_batches(setup.tables, 1, case.batch, mean_hot=case.mean_hot)
    ids, gradient = one_each(setup.tables, batches), fixed_gradient(setup, case.batch)
    before = variants["float32"].rows(ids)
    for variant in variants.values():
        Line(variant, variant.stream(batches), gradient, []).step()
        variant.stop()
    floats, *others = (variant.rows(ids) for variant in variants.values())
    bound = UNIT * (np.abs(before) + np.abs(floats))
    if not (floats != before).any() or not all((np.abs(halves - floats) <= bound).all() for halves in others):
        raise harness.NotEqual(f"{case.title}: rows in bfloat16 differ from float32 by more than rounding")


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
