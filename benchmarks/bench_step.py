"""The embedding part of a DLRM's step, against other libraries.

    python -m benchmarks.bench_step [--quick] [--set rows=1000000 'only=width 64, sgd']

Forward, backward and update of the embeddings alone, with a fixed gradient. Our planning, which runs ahead in its own
thread during training, has a separate column; "over ours with planning" includes it, as if one thread did everything
(depth 0). `bench_turns` measures whole steps.

Peers get their inputs as tensors, prepared before the clock starts; all start from the same weights, and their
weights are compared after some steps before anything is timed.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.system import available_bytes
from benchmarks import harness
from benchmarks.harness import Report, check_equal, median_ms, paired
from benchmarks.peers_fbgemm import Fbgemm
from benchmarks.peers_torch import EmbeddingBags, JoinedTable
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import (
    CHECK_STEPS,
    Case,
    Embeddings,
    NotAvailable,
    Optimizer,
    Ours,
    Setup,
    fixed_gradient,
    hit_rate,
)

TOLERANCE = 2e-3  # of the change: sums of a popular row's gradients are rounded in another order by each library
PEERS: dict[str, Callable[[Setup], Embeddings]] = {
    "torch": EmbeddingBags,
    "torch_joined": JoinedTable,
    "fbgemm": Fbgemm,
}
PHASES = ("plan", "forward", "backward", "update")


SGD_FAMILY: tuple[Optimizer, ...] = ("sgd", "rowwise_adagrad", "adagrad")
ALL: tuple[Optimizer, ...] = (*SGD_FAMILY, "adam")
GRID = (
    *(Case(2048, dim, optimizer) for dim, optimizer in product((16, 64, 128), ALL)),
    *(Case(16384, dim, optimizer) for dim, optimizer in product((16, 64, 128), SGD_FAMILY)),
    *(Case(2048, dim, optimizer, 20) for dim, optimizer in product((16, 64, 128), SGD_FAMILY)),
    Case(16384, 16, "sgd", 20),
    Case(16384, 16, "rowwise_adagrad", 20),
)


@dataclass(frozen=True)
class Settings:
    rows: int = 10_000_000
    rounds: int = 15
    warm_up: int = 3
    cases: tuple[Case, ...] = GRID
    only: str = ""  # cases whose title contains this
    memory_share: float = 0.6  # of what is free; tables shrink to it


SETTINGS = {
    "full": Settings(),
    "quick": Settings(
        rows=1_000_000,
        rounds=7,
        warm_up=2,
        cases=(*(Case(2048, 16, optimizer) for optimizer in ALL), Case(2048, 64, "sgd"),
               Case(2048, 64, "rowwise_adagrad"), Case(2048, 16, "sgd", 20)),
    ),
    "smoke": Settings(
        rows=20_000, rounds=2, warm_up=1, cases=(Case(64, 16, "sgd"), Case(64, 16, "adam"), Case(64, 4, "adagrad", 3)),
    ),
}  # fmt: skip


def run(settings: Settings) -> Report:
    report = Report()
    for case in settings.cases:
        if settings.only in case.title:
            report.merge(bench_embeddings(case, settings))
    return report


def make_setup(case: Case, settings: Settings, variants: int) -> Setup:
    """Return the tables of a case, with fewer rows if all variants would not fit in memory."""
    widths = {"sgd": 1, "rowwise_adagrad": 1, "adagrad": 2, "adam": 3}
    row_bytes = 4 * case.dim * widths[case.optimizer] + 32
    fitting = int(settings.memory_share * available_bytes() / (variants * row_bytes))
    return Setup(kaggle_tables(min(settings.rows, fitting), case.dim), case.optimizer, case.mean_hot == 1)


def make_peers(
    kinds: dict[str, Callable[[Setup], Embeddings]], setup: Setup, ours: Ours
) -> tuple[dict[str, Embeddings], dict[str, str]]:
    """The peers that can take part, with our weights; and why the others cannot."""
    peers: dict[str, Embeddings] = {}
    reasons: dict[str, str] = {}
    for key, kind in kinds.items():
        try:
            peers[key] = kind(setup)
        except NotAvailable as error:
            reasons[key] = str(error)
        else:
            peers[key].load(ours.weights())
    return peers, reasons


@dataclass
class Line:
    """A running variant: each `step` takes one batch and adds a row of seconds per phase."""

    embeddings: Embeddings
    inputs: Iterator[Any]
    gradient: Tensor
    phases: list[list[float]]

    def step(self) -> float:
        marks = [time.perf_counter()]
        inputs = next(self.inputs)
        marks.append(time.perf_counter())
        pooled = self.embeddings.pool(inputs)
        marks.append(time.perf_counter())
        torch.autograd.backward(pooled, self._gradients(pooled))
        marks.append(time.perf_counter())
        self.embeddings.update()
        marks.append(time.perf_counter())
        self.phases.append([after - before for before, after in pairwise(marks)])
        return marks[-1] - marks[1]

    def _gradients(self, pooled: Any) -> list[Tensor]:
        if isinstance(pooled, list):
            return self._columns
        return [self.gradient]

    def __post_init__(self) -> None:
        self._columns = [column.contiguous() for column in self.gradient.unbind(1)]


def bench_embeddings(case: Case, settings: Settings) -> Report:
    setup = make_setup(case, settings, len(PEERS) + 1)
    ours = Ours(setup)
    peers, reasons = make_peers(PEERS, setup, ours)
    variants: dict[str, Embeddings] = {"adaptive": ours, **peers}
    batches = make_batches(
        setup.tables, CHECK_STEPS + settings.warm_up + settings.rounds, case.batch, mean_hot=case.mean_hot
    )
    gradient = fixed_gradient(setup, case.batch)
    check_embeddings(case, setup, variants, batches[:CHECK_STEPS], gradient)
    ours.statistics()
    lines = {
        key: Line(variant, variant.stream(batches[CHECK_STEPS:]), gradient, []) for key, variant in variants.items()
    }
    times = harness.take_turns(
        {key: line.step for key, line in lines.items()}, rounds=settings.rounds, warm_up=settings.warm_up
    )
    report = _embedding_report(case, setup, lines, times, hit_rate_of(ours))
    for key, reason in reasons.items():
        report.absent[f"embedding_vs_{key}_{case.suffix}"] = reason
    for variant in variants.values():
        variant.close()
    del lines, peers, variants, ours
    gc.collect()
    return report


def hit_rate_of(ours: Ours) -> float:
    ours.stop()
    return hit_rate(ours.statistics())


def check_embeddings(
    case: Case, setup: Setup, variants: dict[str, Embeddings], batches: Sequence[Batch], gradient: Tensor
) -> None:
    """Train all variants on a few batches and compare their rows (at most 4,096 a table).

    Adam counts steps per row here and per table elsewhere: it gets one batch several times, where both agree.
    """
    steps = [batches[0]] * len(batches) if case.optimizer == "adam" else list(batches)
    ids = one_each(setup.tables, steps)
    before = {key: variant.rows(ids) for key, variant in variants.items()}
    for variant in variants.values():
        line = Line(variant, variant.stream(steps), gradient, [])
        for _ in steps:
            line.step()
        assert next(line.inputs, None) is None, "more batches than expected"  # our look-ahead ends when it is read
    expected: NDArray[np.float32] = variants["adaptive"].rows(ids)
    for key, variant in variants.items():
        if not np.array_equal(before[key], before["adaptive"]):
            raise harness.NotEqual(f"{case.title}: {variant.name} starts from other weights")
        check_equal(
            f"{case.title}: {variant.name}", variant.rows(ids), expected, before=before["adaptive"], tolerance=TOLERANCE
        )


def _embedding_report(case: Case, setup: Setup, lines: dict[str, Line], times: harness.Times, hits: float) -> Report:
    report = Report()
    table = report.table(
        f"embedding part, {case.title}, {setup.num_rows:,} rows, {len(times['adaptive'])} rounds (ms)",
        "variant", *PHASES, "embedding part", "over ours", "over ours with planning", "hit rate",
    )  # fmt: skip
    rounds = len(times["adaptive"])
    ours = lines["adaptive"].phases[-rounds:]
    with_plan = [sum(phases) for phases in ours]
    for key, line in lines.items():
        phases = [median_ms([row[i] for row in line.phases[-rounds:]]) for i in range(len(PHASES))]
        over, over_planned = paired(times[key], times["adaptive"]), paired(times[key], with_plan)
        is_ours = key == "adaptive"
        cells = (None, None, f"{hits:.0%}") if is_ours else (over, over_planned, None)
        table.add(line.embeddings.name, *(phases if is_ours else [None, *phases[1:]]), median_ms(times[key]), *cells)
        if not is_ours:
            report.ratios[f"embedding_vs_{key}_{case.suffix}"] = over
    others = [key for key in lines if key != "adaptive"]
    if others:
        best = min(others, key=lambda key: median_ms(times[key]))
        report.ratios[f"embedding_vs_best_{case.suffix}"] = paired(times[best], times["adaptive"])
        report.ratios[f"embedding_with_planning_vs_best_{case.suffix}"] = paired(times[best], with_plan)
    return report


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
