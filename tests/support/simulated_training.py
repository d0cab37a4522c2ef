"""Trainings on a simulated device whose host never waits for a result, and on ordinary memory.

They run on one thread, which does the work of look-ahead and training in an order drawn by a seed. The "model" also
runs on the device: a gradient is a multiple of the vector plus a constant. So the host may be many batches ahead.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.engine import build as build_module
from adaptive.embeddings.engine.lookahead import LookAheadPass, _plan_and_move, _Stopped
from adaptive.embeddings.engine.pipeline import ReadyBatch
from adaptive.embeddings.planned_batch import GroupBatch
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.gpu import buffers, link, transfer
from adaptive.kernels.planning import books
from adaptive.optim import Adagrad, Adam
from adaptive.policies.hybrid import Hybrid
from adaptive.policy import Policy
from support.helpers import Scattered, ScatteredOnHost, random_batches
from support.simulated_streams import Simulation
from support.skip_rules import LeaveOut

Arrays = dict[str, NDArray[Any]]

TABLES = (
    TableConfig(name="a", num_embeddings=24, embedding_dim=4, features=("x", "y")),
    TableConfig(name="b", num_embeddings=20, embedding_dim=6, pooling="none"),
    TableConfig(name="c", num_embeddings=16, embedding_dim=4, pooling="mean"),
)
OF_KEYS = {"keys": "int64", "num_embeddings": 12, "expire": 3}
KEYED = [table.model_copy(update=OF_KEYS if table.embedding_dim == 4 else {}) for table in TABLES]  # not all groups
BATCHES = random_batches(TABLES, 20, seed=5, samples=2)
SKIP = SkipConfig(interval=3, hot_rows="100%", min_accesses=2, feedback_delay=5)


class Skips(Scattered):
    """Skips and defers by the sizes of updates, so that every number from the device is used."""

    def __init__(self) -> None:
        super().__init__()
        still = lambda rows: (rows.update_size < 0.3) & (rows.rows % 3 == 0)  # noqa: E731
        self.rule = LeaveOut(still, most=3, warmup=2)


class SkipsOnHost(Skips):
    misses: Literal["prefetch", "host"] = "host"


@dataclass(frozen=True)
class Case:
    policy: type[Policy] = Scattered
    depth: int = 2
    way: str = "staged"
    device_rows: str = "65%"
    ample: bool = False  # enough buffers, so that no thread waits for one
    lookups: str = "host"  # or "device", which searches them; every other batch is then only pooled
    keyed: bool = False  # ids are keys that come and go; nothing is read with batches in flight
    bad_from: int | None = None  # from this batch on, a flag on the device keeps all rows

    @property
    def forgets(self) -> bool:
        return self.lookups == "device"

    def build(self, device: str = "cpu-torch") -> TieredEmbeddingBag:
        lookups = "host" if device == "cpu" else self.lookups
        tier = TierConfig(
            device=device,
            device_rows=self.device_rows,
            transfer=self.way,  # type: ignore[arg-type]
            lookups=lookups,  # type: ignore[arg-type]
            poison=True,
        )
        optimizer = Adam(lr=0.05) if self.depth % 2 else Adagrad(lr=0.1)
        tables = KEYED if self.keyed else TABLES
        return TieredEmbeddingBag(tables, tier, policy=self.policy, optimizer=optimizer, skip=SKIP)


CASES = [
    Case(way="staged"),
    Case(way="direct", device_rows="60%"),
    Case(way="staged", device_rows="70%"),
    Case(way="direct", device_rows="70%", ample=True),
    Case(Skips, 3, "direct"),
    Case(Skips, 1, "staged", "50%", ample=True),
    Case(ScatteredOnHost, 2, "direct", "30%"),
    Case(ScatteredOnHost, 3, "direct", "75%", ample=True),
    Case(ScatteredOnHost, 1, "staged", "75%", ample=True),
    Case(SkipsOnHost, 1, "staged", "30%"),
    Case(Hybrid, 2, "direct", "0"),
    Case(depth=0, device_rows="35%", ample=True),
    Case(way="direct", device_rows="60%", ample=True, lookups="device"),
    Case(depth=1, device_rows="50%", lookups="device"),
    Case(way="direct", device_rows="80%", ample=True, keyed=True),
    Case(Skips, 1, "staged", "90%", keyed=True),
    Case(ScatteredOnHost, 3, "direct", "50%", ample=True, keyed=True),
    Case(SkipsOnHost, 2, "staged", "30%", keyed=True),
    Case(way="direct", ample=True, bad_from=11),
    Case(depth=3, way="staged", device_rows="80%", bad_from=7),
]


@contextmanager
def patched(module: ModuleType, **values: object) -> Iterator[None]:
    originals = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(originals)


@contextmanager
def small_buffers(ample: bool) -> Iterator[None]:
    many = 99 if ample else 1
    with (
        patched(link, SENDS=many),
        patched(buffers, SMALLEST=64, NUM_LISTS=1 + many, LIST_ROWS=3),
        patched(transfer, BLOCK_BYTES=70, NUM_BLOCKS=2),
    ):
        yield


@contextmanager
def simulated(seed: int) -> Iterator[Simulation]:
    simulation = Simulation(seed)
    with patched(build_module, streams_of=lambda device: simulation.streams):
        yield simulation


# --- a training that never waits for the device ----------------------------------------------------------------------


@dataclass
class Run:
    """Trains rows on the device only. `readings`: batch -> values of rows that were read after it."""

    embeddings: TieredEmbeddingBag
    depth: int
    random: np.random.Generator
    readings: dict[int, list[NDArray[np.float32]]]
    forgets: bool = False  # every other batch is pooled, and not updated
    bad_from: int | None = None
    pooled: dict[int, list[Tensor]] = field(default_factory=dict)  # the vectors of these

    def train(self, num_batches: int = len(BATCHES)) -> Arrays:
        pipeline = self.embeddings.runtime.pipeline
        one_pass, loop = LookAheadPass(pipeline, self.depth), (batch for batch in BATCHES)
        one_pass.owner = lambda: loop  # this is the loop
        pipeline.begin(self.depth, one_pass)
        pipeline.lookups_ahead.start_helpers()
        try:
            self._train(num_batches)
        finally:
            pipeline.lookups_ahead.end_helpers()
        self.assert_host_at_rest()
        self.catch_up()
        self.readings |= {
            ~number: [tensor.cpu().numpy().copy() for tensor in vectors] for number, vectors in self.pooled.items()
        }
        return dict(self.embeddings.rows.state_arrays())

    def _train(self, num_batches: int) -> None:
        pipeline = self.embeddings.runtime.pipeline
        ready = deque[ReadyBatch]()

        def train_until(number: int) -> None:
            """Train what the look-ahead waits for before hot rows leave; otherwise that is done."""
            while pipeline.trained < number:
                if not ready:
                    raise _Stopped  # planning goes on after the last training
                self.train_one(ready.popleft())
                self.read_sometimes()

        source = _plan_and_move(pipeline, iter(BATCHES), self.depth, train_until)
        try:
            while pipeline.trained < num_batches - 1:
                if self.may_plan() and (not ready or self.random.random() < 0.5):
                    ready.append(next(source))
                else:
                    self.train_one(ready.popleft())
                    self.disturb()
            with suppress(_Stopped):
                while self.may_plan():
                    next(source)
        finally:
            pipeline.end()

    def may_plan(self) -> bool:
        pipeline = self.embeddings.runtime.pipeline
        return pipeline.next_number < min(len(BATCHES), pipeline.trained + self.depth + 2)

    def assert_host_at_rest(self) -> None:
        """No copy to the host is in flight."""
        pipeline = self.embeddings.runtime.pipeline
        codes = [tiered.planner.tracker.codes for tiered in pipeline.tiered_groups]
        rows = [np.flatnonzero((of_group < 0) & (of_group & 1 != 0)) for of_group in codes]
        values = [tiered.host.read(on_host) for tiered, on_host in zip(pipeline.tiered_groups, rows, strict=True)]
        pipeline.finish_copies()
        for tiered, on_host, expected_values in zip(pipeline.tiered_groups, rows, values, strict=True):
            assert all(map(np.array_equal, expected_values, tiered.host.read(on_host)))

    def assert_flushed(self) -> None:
        """Rows that changed, and will not change in a batch in flight, are also on the host."""
        for tiered in self.embeddings.runtime.pipeline.tiered_groups:
            slots = np.flatnonzero(tiered.planner.slots.flags == books.CHANGED)
            on_host = tiered.host.read(tiered.planner.slots.rows[slots])
            assert all(map(np.array_equal, on_host, tiered.device.read(slots)))

    def train_one(self, ready: ReadyBatch) -> None:
        pipeline = self.embeddings.runtime.pipeline
        pipeline.start_training(ready)
        works = list(map(GroupBatch, pipeline.tiered_groups, ready.plans, ready.device_plans))
        is_bad, flag = self.bad_from is not None and ready.number >= self.bad_from, None
        if self.bad_from is not None and works[0]._tiered.device.takes_flags:
            flag = self.on_device(torch.zeros(()), lambda out: out.fill_(float(is_bad)))
        elif is_bad:
            pipeline.end_training(ready)
            return
        if self.forgets and ready.number % 2:
            self.pooled[ready.number] = [work.pool() for work in works]
            pipeline.end_training(ready)
            return
        slope, inputs = (
            pipeline.tiered_groups[0].device.send(np.array([0.25 + ready.number / 64], np.float32)),
            pipeline.inputs(ready),
        )
        dense, labels = inputs(ready.batch.dense), inputs(ready.batch.labels)  # sent ahead, with the plan
        for work in works:
            vectors = work.pool()
            work.add_gradients(
                self.on_device(vectors, lambda out, v=vectors: out.copy_(v * slope + (0.125 * dense[0, 0] + labels[0])))
            )
        pipeline.feedback.report(ready.number, [work.update(flag) for work in works])
        pipeline.end_training(ready)

    def on_device(self, like: Tensor, work: Callable[[Tensor], object]) -> Tensor:
        compute = self.embeddings.runtime.pipeline.mover.compute
        out = compute.empty(tuple(like.shape))
        compute.run(lambda: work(out))
        return out

    def disturb(self) -> None:
        """Sometimes read or flush rows while batches are in flight."""
        self.read_sometimes()
        if self.random.random() < 0.1:
            self.embeddings.rows.flush()
            self.assert_flushed()

    def read_sometimes(self) -> None:
        if self.random.random() < 0.2 and not self.embeddings.runtime.pipeline.has_keys:
            planned = self.embeddings.read(BATCHES[3])
            rows = [work._weights for work in planned.works]
            vectors = [work.pool() for work in planned.works]
            self.catch_up()
            arrays = [numbers.copy() for numbers in (*rows, *(tensor.cpu().numpy() for tensor in vectors))]
            self.readings[self.embeddings.runtime.pipeline.trained] = arrays

    def catch_up(self) -> None:
        compute = self.embeddings.runtime.pipeline.mover.compute
        compute.record().wait()


def expected(case: Case) -> tuple[Arrays, dict[int, list[NDArray[np.float32]]]]:
    """Results on a device tier of ordinary memory, without streams; rows are read after every batch."""
    if case not in _EXPECTED:
        readings: dict[int, list[NDArray[np.float32]]] = {}
        run = Run(case.build("cpu"), case.depth, np.random.default_rng(0), readings, case.forgets, case.bad_from)
        run.random = AlwaysLooks()  # type: ignore[assignment]
        _EXPECTED[case] = run.train(), readings
    return _EXPECTED[case]


_EXPECTED: dict[Case, tuple[Arrays, dict[int, list[NDArray[np.float32]]]]] = {}


class AlwaysLooks:
    """Draws with which every reading happens, and look-ahead only when necessary."""

    def __init__(self) -> None:
        self.draws = 0

    def random(self) -> float:
        self.draws += 1
        return 0.0


def same(result: NDArray[Any], expected: NDArray[Any]) -> bool:
    """True if both are equal; NaN (the size of a row without an update) equals NaN."""
    return np.array_equal(result, expected, equal_nan=expected.dtype.kind == "f")


def assert_right(case: Case, seed: int) -> None:
    arrays, readings = expected(case)
    with simulated(seed) as simulation, small_buffers(case.ample):
        run = Run(case.build(), case.depth, simulation.random, {}, case.forgets, case.bad_from)
        results = run.train()
    for name, array in arrays.items():
        assert same(results[name], array), name
    for number, numbers in run.readings.items():
        assert all(map(np.array_equal, numbers, readings[number])), f"rows read after batch {number}"


def assert_stops(case: Case, seed: int) -> None:
    """Batches that were planned and never trained leave nothing in flight."""
    with simulated(seed) as simulation, small_buffers(case.ample):
        run = Run(case.build(), case.depth, simulation.random, {}, case.forgets, case.bad_from)
        run.train(14)
        if case.lookups == "device":  # some batches had been searched ahead
            run.train()


def check(case: Case, seed: int) -> None:
    assert_right(case, seed)
    assert_stops(case, seed)
