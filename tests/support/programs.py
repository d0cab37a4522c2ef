"""Random programs of library calls: small data structures drawn from a seed, which `program_runs` executes.

A program trains a few small tables for up to four passes. Each pass has its own batches, look-ahead depth and calls
between passes; each batch has its own act. `draw_program(seed)` always returns the same program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from support.example_policies import RECSHARD, S3FIFO, SIEVE
from support.helpers import random_batches

T = TypeVar("T")
Rng = np.random.Generator

KINDS: Final = (
    "train", "train", "train", "train", "nothing", "forward", "no_grad", "discard", "two_forwards", "two_backwards",
    "two_steps", "parts", "overflow", "unstepped", "left",
)  # fmt: skip
UNAPPLIED: Final = ("unstepped", "left")
MISUSES: Final = (
    "",
    "",
    "",
    "",
    "nested",
    "early step",
    "read batch",
    "other tables",
    "ended forward",
    "ended backward",
    "load",
    "writes",
)
DEEDS: Final = ("torch", "npz", "grow", "load_table", "rate", "flush", "read")
LOSSLESS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("lru", {}), ("lfu", {}), (SIEVE, {}), (S3FIFO, {}), ("hybrid", {}), ("device", {}), ("static", {}),
    (RECSHARD, {}), ("scratchpipe", {"window": 2}),
)  # fmt: skip
MOST_DEPTH: Final = 4  # and the feedback delay: verdicts are equal up to there


@dataclass(frozen=True)
class Act:
    """The calls of the training loop for one batch.

    Attributes:
        kind: see `program_runs.Loop.act`.
        view: `module`, `stack` or `side_by_side`: how vectors are asked for.
        without: feature (position) that the loss does not depend on; -1: none.
        clip: largest norm of all gradients, or None.
        rate: learning rate of rows from here on, or None.
        scale: `none`, `step` (by `grad_scale`) or `scaler` (`torch.amp.GradScaler`).
        looks: reads another batch and compares tables and saved state behind the step.
        misuse: a call that must raise an error and change nothing.
    """

    kind: str = "train"
    view: str = "module"
    without: int = -1
    clip: float | None = None
    rate: float | None = None
    scale: str = "none"
    looks: bool = False
    misuse: str = ""


@dataclass(frozen=True)
class Pass:
    """One look-ahead, and what is done before it.

    Attributes:
        deeds: calls with no look-ahead running, each with a seed for what it draws.
        batches: the source.
        acts: of each batch in training order; repeated where a policy makes more batches.
        stop: number of batches after which the look-ahead is closed, or None.
        fault: number of batches after which the source raises, or None.
        reuses: the source writes over the arrays of a batch when the next one is asked for.
    """

    deeds: tuple[tuple[str, int], ...]
    batches: tuple[Batch, ...]
    acts: tuple[Act, ...]
    stop: int | None = None
    fault: int | None = None
    reuses: bool = False


@dataclass(frozen=True)
class Place:
    """Tiers, policy and depth: nothing that may change a number."""

    policy: str
    options: dict[str, Any]
    device_rows: str
    depth: int
    host_files: bool = False
    plan_threads: int = 1
    device: str = "cpu"


@dataclass(frozen=True)
class Program:
    """Two places and a lossless policy in each, or one policy and skip rule for both that change what is trained."""

    seed: int
    tables: tuple[TableConfig, ...]
    optimizer: RowOptimizer
    passes: tuple[Pass, ...]
    places: tuple[Place, Place]
    skip: SkipConfig | None = None

    @property
    def is_lossless(self) -> bool:
        """The oracle trains the same: batches are trained as they come, and no update is skipped or deferred."""
        return self.skip is None

    @property
    def num_batches(self) -> int:
        return sum(len(one.batches) for one in self.passes)

    def __str__(self) -> str:
        lines = [f"program {self.seed}: {self.optimizer}", *map(str, self.tables), *map(str, self.places)]
        lines += [f"skip {self.skip}"]
        for one in self.passes:
            lines += [f"pass: {one.deeds}, {len(one.batches)} batches, stop {one.stop}, fault {one.fault}"]
            lines += [f"    {act}" for act in one.acts]
        return "\n".join(lines)


def draw_program(seed: int) -> Program:
    """The program of this seed."""
    rng = np.random.default_rng([seed, 7])
    lossy = rng.random() < 0.35
    tables = _tables(rng)
    weighted = rng.random() < 0.3 and all(table.pooling != "mean" for table in tables)
    named = rng.random() < 0.5
    optimizer = _optimizer(rng)
    length = int(rng.integers(6, 14)) if lossy else int(rng.integers(1, 7))
    now, passes = tables, []
    for number in range(int(rng.integers(1, 4))):
        deeds = tuple(
            (pick(rng, DEEDS), int(rng.integers(1 << 30))) for _ in range(int(rng.integers(0, 3)) if number else 0)
        )
        deeds = tuple(sorted(deeds, key=lambda deed: deed[0] != "grow"))  # batches are of the grown tables
        for deed, own in deeds:
            now = grown(now, own) if deed == "grow" else now
        passes.append(_pass(rng, now, deeds, length, weighted=weighted, named=named, lossy=lossy))
    skip, policy = _lossy(rng) if lossy else (None, None)
    most = max(batch.num_samples for one in passes for batch in one.batches)
    places = [_place(rng, now, most, policy) for _ in range(2)]
    if lossy or any(batch.part_sizes for one in passes for batch in one.batches):
        places[1] = replace(places[1], device=places[0].device)  # from its kind follows how sums over parts are rounded
    if places[0].policy in ("fae", "hotline"):
        places[1] = replace(places[1], device_rows=places[0].device_rows)  # from it follows what they call hot
    return Program(seed, tables, optimizer, tuple(passes), (places[0], places[1]), skip)


def pick(rng: Rng, items: Sequence[T]) -> T:
    return items[int(rng.integers(len(items)))]


def grown(tables: Sequence[TableConfig], seed: int) -> tuple[TableConfig, ...]:
    """These tables, some of them larger."""
    more = np.random.default_rng(seed).integers(0, 9, len(tables))
    return tuple(
        table.model_copy(update={"num_embeddings": table.num_embeddings + int(extra)})
        for table, extra in zip(tables, more, strict=True)
    )


def _tables(rng: Rng) -> tuple[TableConfig, ...]:
    widths = (pick(rng, (1, 4, 8)),) if rng.random() < 0.4 else (1, 3, 4, 8, 20)
    poolings = pick(rng, (("sum",), ("sum", "mean"), ("sum", "mean", "none"), ("sum", "none")))
    found = []
    for number in range(int(rng.integers(1, 5))):
        names = tuple(f"t{number}f{feature}" for feature in range(int(rng.integers(1, 3))))
        found.append(
            TableConfig(
                name=f"t{number}",
                num_embeddings=int(rng.integers(3, 50)),
                embedding_dim=pick(rng, widths),
                pooling=pick(rng, poolings),  # type: ignore[arg-type]
                features=names,
                init_bound=pick(rng, (None, None, 0.5)),
                lr_scale=pick(rng, (1.0, 1.0, 1.0, 0.5, 0.0)),
            )
        )
    return tuple(found)


def _optimizer(rng: Rng) -> RowOptimizer:
    """None divides by less than 0.01: see `oracle`."""
    decay = pick(rng, (0.0, 0.0, 0.1))
    eps = pick(rng, (0.01, 0.1))
    return pick(
        rng,
        (
            SGD(lr=0.5, weight_decay=decay),
            Adagrad(lr=0.1, eps=1e-10, initial_accumulator=eps, weight_decay=decay),
            Adagrad(lr=0.05, eps=eps, weight_decay=decay),
            RowwiseAdagrad(lr=0.1, eps=1e-8, initial_accumulator=eps, weight_decay=decay),
            RowwiseAdagrad(lr=0.05, eps=eps, weight_decay=decay),
            Adam(lr=0.05, eps=eps, weight_decay=decay),
            Adam(lr=0.05, eps=eps, beta1=0.5, beta2=0.9),
        ),
    )


def _pass(
    rng: Rng, tables: tuple[TableConfig, ...], deeds: tuple[tuple[str, int], ...], length: int, **how: bool
) -> Pass:
    size = pick(rng, (1, 2, 5, 8))
    drawn = random_batches(
        tables, length, seed=int(rng.integers(1 << 30)), samples=size, max_bag=pick(rng, (1, 3)),
        weighted=how["weighted"],
    )  # fmt: skip
    batches = [_shuffled(rng, tables, batch) if how["named"] else batch for batch in drawn]
    acts = tuple(_act(rng, tables, lossy=how["lossy"]) for _ in batches)
    for number, act in enumerate(acts):
        if size > 1 and (act.kind == "parts" or rng.random() < 0.1):
            first = int(rng.integers(1, size))
            batches[number] = replace(batches[number], part_sizes=(first, size - first))
    chance, at = rng.random(), int(rng.integers(0, length + 1))
    # Policies that skip or arrange have learnt from batches that were planned and then dropped: no stops there.
    stop = at if chance < 0.2 and not how["lossy"] else None
    fault = at if 0.2 <= chance < 0.35 and not how["lossy"] else None
    return Pass(deeds, tuple(batches), acts, stop, fault, reuses=rng.random() < 0.3)


def _shuffled(rng: Rng, tables: Sequence[TableConfig], batch: Batch) -> Batch:
    """The batch with its features by name, in another order."""
    names = [name for table in tables for name in table.feature_names]
    order = [int(place) for place in rng.permutation(len(names))]
    return replace(batch, features=tuple(names)).reordered(order)


def _act(rng: Rng, tables: Sequence[TableConfig], *, lossy: bool) -> Act:
    kind = pick(rng, KINDS) if rng.random() < 0.6 else "train"
    if lossy and kind in UNAPPLIED:  # ends the look-ahead, see `_pass`
        kind = "parts"
    pooled = all(table.pooling != "none" for table in tables)
    views = ["module", *(["side_by_side"] if pooled else [])]
    if pooled and len({table.embedding_dim for table in tables}) == 1:
        views.append("stack")
    view = pick(rng, views)
    features = sum(len(table.feature_names) for table in tables)
    return Act(
        kind=kind,
        view=view,
        without=int(rng.integers(features)) if view == "module" and features > 1 and rng.random() < 0.2 else -1,
        clip=pick(rng, (0.02, 0.2, 10.0)) if rng.random() < 0.2 else None,
        rate=float(rng.uniform(0, 0.4)) if rng.random() < 0.2 else None,
        scale=pick(rng, ("none", "none", "none", "step", "scaler")),
        looks=rng.random() < 0.2,
        misuse=pick(rng, MISUSES),
    )


def _lossy(rng: Rng) -> tuple[SkipConfig, tuple[str, dict[str, Any]]]:
    """A policy that arranges, or one with a skip rule, with settings under which much is skipped in few batches."""
    rules: list[dict[str, Any]] = [
        {"skip": "defer", "warmup": 0},
        {"skip": "support.skip_rules:Waits", "most": 5, "warmup": 2},
        {"skip": "support.skip_rules:Skips", "bound": pick(rng, (0.3, 0.9)), "warmup": 2},
        {"skip": "predicted", "warmup": 2, "factor": 2.0},
    ]
    arranging: list[tuple[str, dict[str, Any]]] = [
        ("fae", {"block": 4, "held_back": 4, "measure_every": 2, "small_table_bytes": int(rng.choice([0, 300]))}),
        ("hotline", {"learn": 2}),
        ("random_drop", {"share": 0.3}),
    ]
    policy, rule = pick(rng, arranging), None
    if rng.random() < 0.6:
        options = pick(rng, rules)
        own = "+".join(f"{name}={value}" for name, value in options.items() if name != "skip")
        rule, policy = f"{options['skip']}+{own}", pick(rng, (*LOSSLESS[:4], *arranging[1:2]))
    skip = SkipConfig(
        rule=rule, interval=int(rng.integers(1, 4)), hot_rows="100%", min_accesses=2,
        feedback_delay=MOST_DEPTH,
    )  # fmt: skip
    return skip, policy


def _place(rng: Rng, tables: Sequence[TableConfig], samples: int, policy: tuple[str, dict[str, Any]] | None) -> Place:
    """`samples`: of the largest batch, whose bags have at most 3 lookups."""
    name, options = policy or pick(rng, LOSSLESS)
    rows = [table.num_embeddings for table in tables]
    least = sum(min(n, 6 * samples * len(table.feature_names)) for n, table in zip(rows, tables, strict=True))
    slots = str(int(least + (sum(rows) - least) * pick(rng, (0.0, 0.0, 0.3, 1.0))))
    fixed = {"device": "100%", "hybrid": "0", "fae": pick(rng, ("0", slots, "auto"))}
    return Place(
        policy=name,
        options=options,
        device_rows=fixed.get(name, slots),
        depth=int(rng.integers(0, MOST_DEPTH + 1)),
        host_files=rng.random() < 0.15,
        plan_threads=pick(rng, (1, 1, 1, 2)),
        device="cpu-torch" if rng.random() < 0.1 else "cpu",
    )
