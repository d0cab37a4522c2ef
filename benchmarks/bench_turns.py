"""Whole training steps in long turns: planning cannot hide in the time of others.

    python -m benchmarks.bench_turns [--quick] [--set 'only=20 ids' seconds=1]

A turn is at least half a second of one variant alone, from an empty look-ahead until the last batch is trained; what
planning takes from training's cores is included. Every turn has its own batches. Variants: ours in one tier and with
10% of the rows on the device, each 4 batches ahead; the tables of FBGEMM, of TorchRec, `nn.EmbeddingBag` and those of
facebookresearch/dlrm, each under the dense part of plain torch and under ours; facebookresearch/dlrm as it is, from a
checkout; and our dense part alone. Ids: one a bag, or 20 on average; MLPs as in DLRM's
papers, and small ones, under which embeddings count most.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from adaptive.batch import Batch
from benchmarks import harness
from benchmarks.harness import Report, median_ms, paired
from benchmarks.peers_dlrm import DlrmTables
from benchmarks.peers_fbgemm import Fbgemm, TorchRec
from benchmarks.peers_torch import EmbeddingBags
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import CHECK_STEPS, Case, Embeddings, NotAvailable, Ours, Setup, hit_rate
from benchmarks.whole_step import (
    DenseAlone,
    Whole,
    WithModel,
    check_wholes,
    from_checkout,
    make_model,
    our_model,
    with_plain_model,
)


@dataclass(frozen=True)
class Turns:
    """A step, and the MLPs above its embeddings."""

    step: Case
    small: bool

    @property
    def title(self) -> str:
        ids = "" if self.step.mean_hot > 1 else ", 1 id a bag"
        return f"{self.step.title}{ids}, {'small' if self.small else 'large'} MLPs"

    @property
    def suffix(self) -> str:
        return f"{self.step.suffix}_{'small' if self.small else 'large'}"


@dataclass(frozen=True)
class Settings:
    rows: int = 5_000_000
    cases: tuple[Turns, ...] = tuple(
        Turns(Case(2048, dim, optimizer, hot), small)
        for dim, hot, optimizer, small in (
            (16, 20, "sgd", True), (16, 20, "rowwise_adagrad", True), (16, 20, "sgd", False),
            (16, 20, "rowwise_adagrad", False), (64, 20, "sgd", True), (64, 20, "sgd", False),
            (64, 20, "rowwise_adagrad", True), (64, 20, "rowwise_adagrad", False), (16, 1, "sgd", True),
            (16, 1, "sgd", False),
            (16, 1, "rowwise_adagrad", True), (16, 1, "rowwise_adagrad", False),
        )
    )  # fmt: skip
    policies: tuple[str, ...] = ("lfu", "lru")
    seconds: float = 0.5  # a turn takes at least
    rounds: int = 5
    fill: int = 12_000_000  # lookups planned before the first batch is trained
    most_steps: int = 300  # of a turn: batches are made before
    threads: str = "auto"  # that plan: a number or auto
    only: str = ""  # cases whose title contains this
    dlrm: str = ""  # path of a checkout of facebookresearch/dlrm


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=1_500_000, cases=Settings.cases[:1] + Settings.cases[7:8], rounds=3, fill=2_000_000),
    "smoke": Settings(
        rows=20_000, cases=(Turns(Case(64, 16, "sgd", 3), True),), policies=("lru",), seconds=0.01, rounds=2,
        fill=2_000, most_steps=3,
    ),
}  # fmt: skip


def run(settings: Settings) -> Report:
    report = Report()
    for case in settings.cases:
        if settings.only in case.title:
            report.merge(bench_turns(case, settings))
    return report


def bench_turns(case: Turns, settings: Settings) -> Report:
    """One case: all variants, in turns."""
    step, report = case.step, Report()
    setup = Setup(kaggle_tables(settings.rows, step.dim), step.optimizer, step.mean_hot == 1)
    ours, wholes = _variants(case, settings, setup, report)
    made = make_batches(setup.tables, CHECK_STEPS, step.batch, mean_hot=step.mean_hot)
    check_wholes(step, wholes, made)
    wholes["dense"] = DenseAlone(make_model(step, len(setup.tables), small=case.small), step)
    _fill(ours, settings, setup, step)
    num_steps = _steps_of_a_turn(wholes, settings, setup, step)
    times: harness.Times = {key: [] for key in wholes}
    for variant in ours.values():
        variant.statistics()
    for number in range(settings.rounds + 1):
        batches = make_batches(setup.tables, num_steps, step.batch, mean_hot=step.mean_hot, seed=100 + number)
        names, first = list(wholes), number % len(wholes)  # each round starts with another variant
        round_times = harness.take_turns(
            {key: lambda whole=wholes[key], batches=batches: turn(whole, batches) / num_steps  # type: ignore[misc]
             for key in names[first:] + names[:first]}, rounds=1, warm_up=0,
        )  # fmt: skip
        for key, seconds in round_times.items():
            times[key] += seconds if number else []  # the first round warms up
    _tell(report, case, setup, wholes, ours, times, num_steps)
    for whole in wholes.values():
        whole.close()
    wholes.clear()
    gc.collect()
    return report


def turn(whole: Whole, batches: Sequence[Batch]) -> float:
    """Seconds from an empty look-ahead until the last batch is trained."""
    whole.start(batches)
    start = time.perf_counter()
    for _ in batches:
        whole.step()
    whole.finish()
    return time.perf_counter() - start


def _variants(
    case: Turns, settings: Settings, setup: Setup, report: Report
) -> tuple[dict[str, Ours], dict[str, Whole]]:
    step, small = case.step, case.small
    ours = {"adaptive": Ours(setup, depth=4, plan_threads=settings.threads)}
    for policy in settings.policies:
        ours[policy] = Ours(setup, depth=4, policy=policy, device_rows="10%", plan_threads=settings.threads)
    names = {key: "single tier" if key == "adaptive" else f"10% device rows, {key}" for key in ours}
    wholes = {
        key: our_model(f"adaptive, {names[key]}, depth 4", variant, step, small=small) for key, variant in ours.items()
    }
    tables = partial(DlrmTables, Path(settings.dlrm))
    for key, kind in (("fbgemm", Fbgemm), ("torchrec", TorchRec), ("torch", EmbeddingBags), ("dlrm_tables", tables)):
        try:
            wholes |= _under_both(key, kind, case, setup, ours["adaptive"])
        except NotAvailable as error:
            report.absent[f"turns_vs_{key}_{case.suffix}"] = str(error)
    try:
        if step.mean_hot > 1:
            raise NotAvailable(
                "facebookresearch/dlrm as it is: logits beyond 16, as of many ids a bag, are lost in its probabilities"
            )
        wholes["dlrm"] = from_checkout(settings.dlrm, step, setup, ours["adaptive"], small=small)
    except NotAvailable as error:
        report.absent[f"turns_vs_dlrm_{case.suffix}"] = str(error)
    return ours, wholes


def _under_both(
    key: str, kind: Callable[[Setup], Embeddings], case: Turns, setup: Setup, ours: Ours
) -> dict[str, Whole]:
    """A peer's tables under the dense part of plain torch, and under ours."""
    step = case.step
    peer, model = kind(setup), make_model(step, len(setup.tables), small=case.small)
    peer.load(ours.weights())
    return {
        f"{key}_our_dense": WithModel(f"{peer.name}, our dense part", peer, model, model),
        key: with_plain_model(kind, step, setup, ours, small=case.small),
    }


def _fill(ours: dict[str, Ours], settings: Settings, setup: Setup, step: Case) -> None:
    """Let rows come onto the device as batches bring them, without training any."""
    size = step.batch * step.mean_hot * len(setup.tables)
    batches = make_batches(setup.tables, max(1, settings.fill // size), step.batch, mean_hot=step.mean_hot, seed=7)
    for variant in ours.values():
        for _ in variant.bag.look_ahead(batches, depth=0):
            pass


def _steps_of_a_turn(wholes: dict[str, Whole], settings: Settings, setup: Setup, step: Case) -> int:
    """So many that the fastest variant takes long enough; the dense part alone may be faster."""
    batches = make_batches(setup.tables, 10, step.batch, mean_hot=step.mean_hot, seed=8)[: settings.most_steps]
    fastest = float("inf")
    for key, whole in wholes.items():
        turn(whole, batches)  # kernels are compiled, memory is taken
        fastest = min(fastest, turn(whole, batches) / len(batches) if key != "dense" else fastest)
    return min(settings.most_steps, 1 + int(1.2 * settings.seconds / fastest))


def _tell(
    report: Report,
    case: Turns,
    setup: Setup,
    wholes: dict[str, Whole],
    ours: dict[str, Ours],
    times: harness.Times,
    num_steps: int,
) -> None:
    rounds = len(times["adaptive"])
    table = report.table(
        f"whole steps in long turns, {case.title}, {setup.num_rows:,} rows, {rounds} turns of {num_steps} steps",
        "variant", "ms a step", "over one tier", "plan ms", "wait ms", "hit rate",
    )  # fmt: skip
    for key, whole in wholes.items():
        over = paired(times[key], times["adaptive"])
        spent, rate = {}, None
        if key in ours:
            statistics = ours[key].statistics()
            spent = {name: statistics.times_ms.get(name, 0.0) / max(statistics.batches, 1) for name in ("plan", "wait")}
            rate = f"{hit_rate(statistics):.1%}"
        table.add(whole.name, median_ms(times[key]), over, spent.get("plan"), spent.get("wait"), rate)
    for key in times.keys() - ours.keys() - {"dense"}:
        report.ratios[f"turns_vs_{key}_{case.suffix}"] = paired(times[key], times["adaptive"])
    for key in ours.keys() - {"adaptive"}:
        report.ratios[f"turns_10pct_{key}_vs_single_{case.suffix}"] = paired(times["adaptive"], times[key])
    report.ratios[f"turns_over_dense_alone_{case.suffix}"] = paired(times["adaptive"], times["dense"])


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS, "dlrm")
