"""What several test files build: batches, tables, policies, a short training, and its slow twin."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import reference
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.planner import Planner
from adaptive.embeddings.planning.sizing import least_device_rows
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD, RowOptimizer
from adaptive.policies.lru import LRU
from adaptive.policy import Policy, RowStats, SkipRule

Floats = NDArray[np.float32]
Int64s = NDArray[np.int64]
Skipped = set[tuple[str, int]]  # (table, id)


# --- batches -----------------------------------------------------------------------------------------------------


def bags(*ids: Sequence[int], weights: Sequence[float] | None = None) -> Batch:
    """A batch of one feature: `bags([1, 2], [3])` has two samples."""
    return featured(ids, weights=weights)


def featured(*features: Sequence[Sequence[int]], weights: Sequence[float] | None = None) -> Batch:
    """A batch of several features: `featured([[1, 2], [3]], [[0], []])` has two features and two samples."""
    flat = [bag for feature in features for bag in feature]
    offsets = np.cumsum([0, *map(len, flat)]).astype(np.int64)
    samples = len(features[0])
    return Batch(
        dense=np.zeros((samples, 1), np.float32),
        ids=np.array([i for bag in flat for i in bag], np.int64),
        offsets=offsets,
        labels=np.zeros(samples, np.float32),
        weights=None if weights is None else np.array(weights, np.float32),
    )


def random_batches(
    tables: Sequence[TableConfig],
    num: int,
    *,
    seed: int = 0,
    samples: int = 5,
    max_bag: int = 3,
    weighted: bool = False,
) -> list[Batch]:
    """Batches with skewed ids, many repeated, some bags empty, and read-only arrays."""
    rng = np.random.default_rng(seed)
    rows = [table.num_embeddings for table in tables for _ in table.feature_names]
    batches = []
    for _ in range(num):
        sizes = rng.integers(0, max_bag + 1, len(rows) * samples)
        limits = np.repeat(np.repeat(rows, samples), sizes)
        ids = (rng.random(len(limits)) ** 2 * limits).astype(np.int64)
        batch = Batch(
            dense=rng.normal(size=(samples, 1)).astype(np.float32),
            ids=ids,
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            labels=rng.integers(0, 2, samples).astype(np.float32),
            weights=rng.normal(size=len(ids)).astype(np.float32) if weighted else None,
        )
        for array in (batch.dense, batch.ids, batch.offsets, batch.labels):
            array.flags.writeable = False
        batches.append(batch.mark_unshared())
    return batches


def table_rows(tables: Sequence[TableConfig], batch: Batch) -> dict[str, set[int]]:
    """Table -> the ids that a batch looks up in it."""
    features = [table.name for table in tables for _ in table.feature_names]
    found: dict[str, set[int]] = {table.name: set() for table in tables}
    for name, (first, last) in zip(features, pairwise(batch.offsets[:: batch.num_samples]), strict=True):
        found[name] |= set(batch.ids[first:last].tolist())
    return found


def rows_held(tables: Sequence[TableConfig], batches: Sequence[Batch], depth: int) -> dict[int, int]:
    """Width -> slots without which some batch, with `depth` batches before it, does not fit."""
    needed = dict.fromkeys((table.embedding_dim for table in tables), 0)
    looked_up = [table_rows(tables, batch) for batch in batches]
    for last in range(len(batches)):
        window = looked_up[max(0, last - depth) : last + 1]
        for width in needed:
            names = [table.name for table in tables if table.embedding_dim == width]
            held = sum(len(set().union(*(rows[name] for rows in window))) for name in names)
            needed[width] = max(needed[width], held)
    return needed


def least_rows(tables: Sequence[TableConfig], batches: Sequence[Batch], depth: int) -> int:
    """Fewest device rows with which a look-ahead of `depth` works; tables of a width are one group."""
    groups, held = make_groups(tables, 0), rows_held(tables, batches, depth)
    return least_device_rows(groups, [held[group.embedding_dim] for group in groups])


# --- policies ----------------------------------------------------------------------------------------------------


class LFU(Policy):
    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses


class LFUOnHost(LFU):
    misses: Literal["prefetch", "host"] = "host"


class Fixed(Policy):
    """Low rows deserve the device, whatever happens."""

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return -rows.rows


class Scattered(Policy):
    """Scores that look random and depend on row and batch."""

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return (rows.rows * 2654435761 + rows.step * 97) % 1013


class ScatteredOnHost(Scattered):
    misses: Literal["prefetch", "host"] = "host"


class Windowed(Policy):
    """The row that is needed latest, as far as is known, leaves first."""

    window = 2

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return -rows.next_access.astype(np.float64)


class WindowedOnHost(Windowed):
    misses: Literal["prefetch", "host"] = "host"


# --- an embedding and its books ----------------------------------------------------------------------------------


def one_table(
    num_embeddings: int = 10,
    device_rows: str = "100%",
    policy: Policy | type[Policy] = LRU,
    *,
    optimizer: RowOptimizer = SGD(lr=1.0),  # noqa: B008 (immutable)
    skip: SkipConfig | SkipRule | None = None,
    **tier: Any,
) -> TieredEmbeddingBag:
    """One table `t` of width 4 with slots poisoned; released rows are as few as possible, so plans can be foretold."""
    settings = TierConfig(**{"device_rows": device_rows, "poison": True, "eviction_share": 0.0} | tier)
    tables = [TableConfig(name="t", num_embeddings=num_embeddings, embedding_dim=4, init_bound=1.0)]
    return TieredEmbeddingBag(tables, settings, policy=policy, optimizer=optimizer, skip=skip)


def planner_of(embeddings: TieredEmbeddingBag, group: int = 0) -> Planner:
    """The books of one group."""
    return embeddings.runtime.pipeline.tiered_groups[group].planner


def resident(embeddings: TieredEmbeddingBag) -> dict[int, int]:
    """Row -> slot, for the first group."""
    rows = planner_of(embeddings).slots.rows
    return {int(row): slot for slot, row in enumerate(rows) if row >= 0}


def step_all(embeddings: TieredEmbeddingBag, batches: Iterable[Batch], *, depth: int = 0) -> list[Planned]:
    """Train on the sum of all vectors, so that every look-up adds a gradient of ones."""
    done = []
    with closing(embeddings.look_ahead(batches, depth=depth)) as coming:  # an error of a batch ends it at once
        for planned in coming:
            sum_of(embeddings(planned)).backward()
            embeddings.step()
            done.append(planned)
    return done


def assert_equal_rows(one: TieredEmbeddingBag, other: TieredEmbeddingBag) -> None:
    """All that is saved of rows, to the bit."""
    arrays, expected = one.rows.state_arrays(), other.rows.state_arrays()
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, expected[name], equal_nan=array.dtype.kind == "f"), name


def sum_of(vectors: Mapping[str, Tensor]) -> Tensor:
    """The sum of all numbers."""
    return torch.stack([tensor.sum() for tensor in vectors.values()]).sum()


# --- training ----------------------------------------------------------------------------------------------------


class Readout(nn.Module):
    """A logistic model over vectors of any width, pooled or not. No matrix product: its bits depend on addresses."""

    def __init__(self, tables: Sequence[TableConfig], seed: int = 0) -> None:
        super().__init__()
        self.features = [(name, table) for table in tables for name in table.feature_names]
        generator = torch.Generator().manual_seed(seed)
        widths = [table.embedding_dim for _, table in self.features]
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(width, generator=generator)) for width in widths)
        self.slope = nn.Parameter(torch.zeros(()))

    def forward(self, vectors: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The loss."""
        logits = self.slope * torch.tensor(batch.dense[:, 0])
        for feature, ((name, table), weights) in enumerate(zip(self.features, self.parts, strict=True)):
            values = (vectors[name].contiguous() * weights).sum(1)
            if table.pooling == "none":
                sizes = [last - first for first, last in reference.bag_spans(batch, feature)]
                samples = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
                values = torch.zeros(len(sizes)).index_add(0, samples, values)
            logits = logits + values
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(batch.labels))

    def numbers(self) -> list[Floats]:
        return [parameter.detach().numpy().copy() for parameter in self.parameters()]


@dataclass
class Trained:
    """All numbers that a training makes, and what it left out."""

    weights: dict[str, Floats]
    state: dict[str, Floats]
    dense: list[Floats]
    losses: list[float]
    skipped: list[Skipped] = field(default_factory=list)

    def assert_equals(self, other: "Trained") -> None:
        """Bit for bit; not a number anywhere is a fault as well."""
        assert self.losses == other.losses
        for name, weights in self.weights.items():
            assert np.isfinite(weights).all(), f"table {name} is not finite"
            assert np.array_equal(weights, other.weights[name]), f"table {name} differs"
            assert np.array_equal(self.state[name], other.state[name]), f"state of table {name} differs"
        assert all(map(np.array_equal, self.dense, other.dense)), "dense weights differ"


def train(
    embeddings: TieredEmbeddingBag, tables: Sequence[TableConfig], batches: Iterable[Batch], depth: int
) -> Trained:
    """Train rows and a `Readout` with any tiers, policy and look-ahead."""
    return train_more(embeddings, Trainee(tables), batches, depth)


class Trainee:
    """The dense side of a training, which can go on over several calls and outlive an error."""

    def __init__(self, tables: Sequence[TableConfig]) -> None:
        self.tables = tables
        self.model = Readout(tables)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses: list[float] = []
        self.skipped: list[Skipped] = []

    def learn(self, vectors: Mapping[str, Tensor], batch: Batch) -> None:
        loss = self.model(vectors, batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(float(loss.detach()))

    def loss_gradients(self, vectors: dict[str, Floats], batch: Batch) -> dict[str, Floats]:
        """For `reference.train_reference`."""
        leaves = {name: torch.tensor(values, requires_grad=True) for name, values in vectors.items()}
        self.learn(leaves, batch)
        return {name: _gradient(leaf) for name, leaf in leaves.items()}


def _gradient(leaf: Tensor) -> Floats:
    gradient: Floats = torch.zeros_like(leaf).numpy() if leaf.grad is None else leaf.grad.numpy()
    return gradient


def train_more(embeddings: TieredEmbeddingBag, trainee: Trainee, batches: Iterable[Batch], depth: int) -> Trained:
    """Train on `batches`; an error leaves `trainee` at the last batch that was stepped."""
    for planned in embeddings.look_ahead(batches, depth=depth):
        trainee.learn(embeddings(planned), planned.batch)
        assert embeddings.optimizer.bad_gradients() == []
        trainee.skipped.append(skipped_rows(embeddings, trainee.tables, planned))
        embeddings.step()
    return snapshot(embeddings, trainee)


def snapshot(embeddings: TieredEmbeddingBag, trainee: Trainee) -> Trained:
    """All numbers as they are now."""
    weights = {table.name: embeddings.rows.table_weights(table.name) for table in trainee.tables}
    state = table_states(embeddings)
    return Trained(weights, state, trainee.model.numbers(), list(trainee.losses), list(trainee.skipped))


def table_states(embeddings: TieredEmbeddingBag) -> dict[str, Floats]:
    """Table -> (num_embeddings, S) optimizer state, from what a checkpoint would hold."""
    arrays, found = embeddings.rows.state_arrays(), {}
    for number, tiered in enumerate(embeddings.runtime.pipeline.tiered_groups):
        first = reference.initial_state(tiered.host.optimizer, tiered.group.embedding_dim)
        state = np.tile(first, (tiered.group.num_rows, 1))
        state[arrays[f"rows{number}.changed"]] = arrays[f"rows{number}.state"]
        for table, (start, stop) in zip(tiered.group.tables, pairwise(tiered.group.table_starts), strict=True):
            found[table.name] = state[start:stop]
    return found


def skipped_rows(embeddings: TieredEmbeddingBag, tables: Sequence[TableConfig], planned: Planned) -> Skipped:
    """The rows that a planned batch looks up and will not update."""
    skipped = {(name, row) for name, rows in table_rows(tables, planned.batch).items() for row in rows}
    for tiered, work in zip(embeddings.runtime.pipeline.tiered_groups, planned.works, strict=True):
        assert work.plan is not None
        rows, starts = work.plan.written_rows, tiered.group.table_starts
        numbers = np.searchsorted(starts, rows, side="right") - 1
        skipped -= {(tiered.group.tables[n].name, int(row - starts[n])) for n, row in zip(numbers, rows, strict=True)}
    return skipped


def train_slowly(
    tables: Sequence[TableConfig],
    batches: Sequence[Batch],
    optimizer: RowOptimizer,
    *,
    seed: int = 0,
    skipped: Sequence[Skipped] = (),
) -> Trained:
    """The same training without tiers, by `tests/reference.py`, leaving out the updates of `skipped` (by batch)."""
    trainee = Trainee(tables)
    if not any(skipped):
        values = reference.train_reference(
            tables,
            batches,
            optimizer,
            seed=seed,
            loss_gradients=trainee.loss_gradients,
        )
    else:
        values = _train_skipping(tables, batches, optimizer, seed, trainee.loss_gradients, skipped)
    weights = {name: weights for name, (weights, _) in values.items()}
    state = {name: state for name, (_, state) in values.items()}
    return Trained(weights, state, trainee.model.numbers(), trainee.losses, list(skipped))


def _train_skipping(
    tables: Sequence[TableConfig],
    batches: Sequence[Batch],
    optimizer: RowOptimizer,
    seed: int,
    loss_gradients: Callable[[dict[str, Floats], Batch], dict[str, Floats]],
    skipped: Sequence[Skipped],
) -> dict[str, tuple[Floats, Floats]]:
    values = {
        table.name: (reference.initial_table(table, seed), reference.initial_states(table, optimizer))
        for table in tables
    }
    homes = [(name, table) for table in tables for name in table.feature_names]
    for batch, left_out in zip(batches, skipped, strict=True):
        vectors = {
            name: reference.feature_vectors(values[table.name][0], batch, feature, table.pooling)
            for feature, (name, table) in enumerate(homes)
        }
        gradients = loss_gradients(vectors, batch)
        for table in tables:
            mine = [feature for feature, (_, home) in enumerate(homes) if home is table]
            spans = [reference.bag_spans(batch, f) for f in mine]
            ids = np.concatenate([batch.ids[span[0][0] : span[-1][1]] for span in spans])
            parts = [reference.lookup_gradients(gradients[homes[f][0]], batch, f, table.pooling) for f in mine]
            kept = np.array([(table.name, int(row)) not in left_out for row in ids], np.bool_)
            reference.update_table(optimizer, values[table.name], ids[kept], np.concatenate(parts)[kept])
    return values


# --- exact answers and worst schedules ---------------------------------------------------------------------------


def after_sums(initial: Floats, batches: Iterable[Batch]) -> Floats:
    """What `step_all` leaves of one table of one feature with SGD(lr=1): each look-up takes 1 from its row."""
    weights = initial.copy()
    for batch in batches:
        rows, counts = np.unique(batch.ids, return_counts=True)
        weights[rows] -= counts[:, None].astype(np.float32)
    return weights


def wait_for_look_ahead(embeddings: TieredEmbeddingBag, planned: Planned, depth: int, num_batches: int) -> None:
    """Let the look-ahead thread run as far ahead as it may while `planned` is not trained: the worst schedule."""
    pipeline, deadline = embeddings.runtime.pipeline, time.monotonic() + 600  # only a hang comes to it
    if pipeline.plans_in_turn:
        return
    while pipeline.next_number < min(planned.number + depth + 1, num_batches):
        assert time.monotonic() < deadline, "the look-ahead does not look ahead"
        time.sleep(0.0005)
    with pipeline.lock:  # the rows of the latest plan have moved
        pass


def look_ahead_threads() -> list[threading.Thread]:
    """Look-ahead threads that are alive."""
    return [thread for thread in threading.enumerate() if thread.name == "adaptive-look-ahead"]
