"""Slow, obvious twins of the fast code, in plain numpy and Python. Written for reading; never to be made fast.

A twin has the name of what it mirrors and gives the same bits: all arithmetic on rows is float32, in the order in
which the documents of the fast code say it happens. Nothing here imports a kernel.

Letters: B samples, F features, N look-ups, V vectors, U distinct rows, D width of a row, S width of its state.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.counters import Counter
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad

Floats = NDArray[np.float32]
Int64s = NDArray[np.int64]
f32 = np.float32

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio
STREAM = 0xD1342543DE82EF95  # between the keys of a row's parts


# --- initial values ----------------------------------------------------------------------------------------------


def table_key(name: str, seed: int) -> int:
    """The 64-bit seed of one table."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little")


def mix(x: int) -> int:
    """The finaliser of SplitMix64 on integers without a limit."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def initial_row(key: int, index: int, dim: int, bound: float) -> Floats:
    """(D,) the values of a row that was never updated: 24 random bits each, uniform in [-bound, bound)."""
    row_key = mix((key + index * GOLDEN) % WORD)
    words = [mix((row_key + (column + 1) * GOLDEN) % WORD) for column in range(dim)]
    units = np.array([(word >> 40) / 2**23 - 1 for word in words], f32)  # exact
    return f32(bound) * units


def initial_rows(table: TableConfig, seed: int, indices: Iterable[int]) -> list[Floats]:
    """(D,) for each index, in float32."""
    bound = 1 / math.sqrt(table.num_embeddings) if table.init_bound is None else table.init_bound
    key = table_key(table.name, seed)
    return [initial_row(key, index, table.embedding_dim, bound) for index in indices]


def initial_table(table: TableConfig, seed: int) -> Floats:
    """(num_embeddings, D)"""
    rows = initial_rows(table, seed, range(table.num_embeddings))
    return np.stack(rows if table.dtype == "float32" else [as_bfloat16(row) for row in rows])


# --- bfloat16 ----------------------------------------------------------------------------------------------------


def rounding_key(table: TableConfig, seed: int, index: int, batch: int) -> int:
    """The key that rounds a row in batch number `batch`; 0: to nearest."""
    if table.rounding == "nearest":
        return 0
    of_row = (table_key(table.name, seed) + index * GOLDEN) % WORD
    return mix(of_row ^ mix((batch + GOLDEN) % WORD)) | 1


def as_bfloat16(values: Floats, key: int = 0) -> Floats:
    """(D,) float32 values that bfloat16 has, rounded with a key: see `adaptive.kernels.vector.bfloat16`."""
    rounded = []
    for column, bits in enumerate(values.view(np.uint32).tolist()):
        if (bits & 0x7FFF_FFFF) > 0x7F80_0000:  # NaN stays NaN
            rounded.append(bits & 0xFFFF_0000 | 0x40_0000)
            continue
        added = 0x7FFF + (bits >> 16 & 1)
        if key:
            x = (key + (column // 2 + 1) * 0x9E3779B9) % 2**32
            x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
            x = (x ^ x >> 13 ^ key >> 32) * 0xC2B2AE35 % 2**32
            x ^= x >> 16
            added = x >> 16 if column % 2 else x & 0xFFFF
        rounded.append((bits + added) & 0xFFFF_0000)
    return np.array(rounded, np.uint32).view(f32)


# --- sums --------------------------------------------------------------------------------------------------------


def weighted_sum(rows: Floats, scales: Floats | None = None) -> Floats:
    """(D,) rows (n, D), each times its scale, added one after the other, starting from the first; zeros if none."""
    if len(rows) == 0:
        return np.zeros(rows.shape[1], f32)
    terms = rows if scales is None else scales[:, None] * rows
    total: Floats = terms[0].copy()
    for term in terms[1:]:
        total = total + term
    return total


def summed_gradient(gradients: Floats, scales: Floats | None = None) -> Floats:
    """(D,) the gradients of a row's lookups (n, D), in chunks of 64 from the first; then the chunks in order."""
    starts = range(0, len(gradients), 64)
    chunks = [weighted_sum(gradients[s : s + 64], None if scales is None else scales[s : s + 64]) for s in starts]
    return weighted_sum(np.stack(chunks))


def square_sum(values: Floats) -> np.float32:
    """Sum of squares in the documented order: value d goes to part d % 4, then (0 + 1) + (2 + 3)."""
    parts = np.zeros(4, f32)
    for d, value in enumerate(values):
        parts[d % 4] += value * value
    return f32((parts[0] + parts[1]) + (parts[2] + parts[3]))


def norm(values: Floats) -> np.float32:
    return f32(math.sqrt(square_sum(values)))


def row_at(location: int, device_weights: Floats, host_weights: Floats) -> Floats:
    """A location is a slot, or ~row of the host."""
    row: Floats = device_weights[location] if location >= 0 else host_weights[~location]
    return row


def pool(
    num_vectors: int,
    bag_vectors: NDArray[np.int32],
    bag_starts: Int64s,
    locations: Int64s,
    scales: Floats,
    device_weights: Floats,
    host_weights: Floats,
) -> Floats:
    """(V, D): vector bag_vectors[b] is the sum of bag b in look-up order."""
    dim = device_weights.shape[1]
    out = np.zeros((num_vectors, dim), f32)
    for bag, vector in enumerate(bag_vectors):
        span = slice(bag_starts[bag], bag_starts[bag + 1])
        rows = [row_at(location, device_weights, host_weights) for location in locations[span]]
        out[vector] = weighted_sum(np.array(rows, f32).reshape(-1, dim), scales[span] if len(scales) else None)
    return out


# --- optimizers --------------------------------------------------------------------------------------------------


def initial_state(optimizer: RowOptimizer, dim: int) -> Floats:
    """(S,) the state of a row that was never updated."""
    if isinstance(optimizer, SGD):
        return np.zeros(0, f32)
    if isinstance(optimizer, Adagrad):
        return np.full(dim, optimizer.initial_accumulator, f32)
    if isinstance(optimizer, RowwiseAdagrad):
        return np.full(1, optimizer.initial_accumulator, f32)
    if isinstance(optimizer, FTRL):
        return np.zeros(2 * dim, f32)
    assert isinstance(optimizer, Adam)
    return np.zeros(2 * dim + 1, f32)


def gradient_squares(optimizer: RowOptimizer, gradient: Floats) -> Floats:
    """What the state grows by under a gradient (D,): Adagrad's and FTRL's by (D,), or (1,) row-wise; nothing under SGD.

    Adam's second moment moves towards the mean of the squares: (D + 1,), the last counts the gradient.
    """
    if isinstance(optimizer, Adagrad | FTRL):
        return gradient * gradient
    if isinstance(optimizer, RowwiseAdagrad):
        return np.array([square_sum(gradient) / f32(len(gradient))], f32)
    if isinstance(optimizer, Adam):
        return np.append(gradient * gradient, f32(1))
    return np.zeros(0, f32)


@dataclass(frozen=True)
class Deferred:
    """Gradients of one row that were put off: their sum (D,), and that of their squares, for Adam with their number."""

    gradient: Floats
    squares: Floats


def put_off(optimizer: RowOptimizer, gradient: Floats, earlier: Deferred | None) -> Deferred:
    """One more visit's gradient, or the first; with no others it is the very gradient, -0.0 included."""
    squares = gradient_squares(optimizer, gradient)
    if earlier is None:
        return Deferred(gradient, squares)
    return Deferred(earlier.gradient + gradient, earlier.squares + squares)


def update_row(
    optimizer: RowOptimizer,
    weights: Floats,
    state: Floats,
    gradient: Floats,
    squares: Floats | None = None,
    key: int | None = None,
) -> np.float32:
    """One step of one row, in place: weights (D,), state (S,), gradient (D,). Returns the L2 norm of the change.

    squares: those of the gradients of which `gradient` is the sum; None: its own.
    key: rounds the weights to bfloat16, 0 to nearest; None: float32.
    """
    grown_by = gradient_squares(optimizer, gradient) if squares is None else squares
    if optimizer.weight_decay:  # decoupled: before the step, whose gradient and state do not know of it
        weights *= f32(max(0.0, 1 - optimizer.lr * optimizer.weight_decay))
        if key is not None:
            weights[:] = as_bfloat16(weights, mix(key))
    if isinstance(optimizer, SGD):
        delta: Floats = f32(optimizer.lr) * gradient
    elif isinstance(optimizer, Adagrad):
        state += grown_by
        delta = f32(optimizer.lr) * gradient / (np.sqrt(state) + f32(optimizer.eps))
    elif isinstance(optimizer, RowwiseAdagrad):
        state += grown_by
        delta = f32(optimizer.lr) / (np.sqrt(state[0]) + f32(optimizer.eps)) * gradient
    elif isinstance(optimizer, FTRL):
        before = weights.copy()
        weights[:] = ftrl_row(optimizer, weights, state, gradient, grown_by)
        delta = before - weights
    else:
        assert isinstance(optimizer, Adam)
        delta = adam_delta(optimizer, state, gradient, grown_by)
    if not isinstance(optimizer, FTRL):
        weights -= delta
    if key is not None:
        weights[:] = as_bfloat16(weights, key)
    return norm(delta)


def ftrl_row(optimizer: FTRL, weights: Floats, state: Floats, gradient: Floats, squares: Floats) -> Floats:
    """(D,) the new weights; state: z (D,) and n (D,), column by column as in the paper's algorithm 1.

    A column that has seen no gradient, n = 0, has the z whose weight is its own.
    """
    lr, beta, l1, l2 = optimizer.settings()[:4]
    if lr == 0:
        return weights
    z, n = np.split(state, 2)
    new = weights.copy()
    for d, (weight, g) in enumerate(zip(weights, gradient, strict=True)):
        start = z[d]
        if n[d] == 0:
            start = -(weight * (beta / lr + l2) + np.sign(weight) * l1)
        total = n[d] + squares[d]
        sigma = (np.sqrt(total) - np.sqrt(n[d])) / lr
        z[d], n[d] = start + (g - sigma * weight), total
        if total == 0 or np.isinf(total):
            continue
        if abs(z[d]) <= l1:
            new[d] = 0
        else:
            new[d] = -((z[d] - np.sign(z[d]) * l1) / ((beta + np.sqrt(total)) / lr + l2))
    return new


def adam_delta(optimizer: Adam, state: Floats, gradient: Floats, squares: Floats) -> Floats:
    """state: first moment (D,), second moment (D,), number of the row's updates (1,).

    gradient: the sum of k gradients; squares (D + 1,): the sum of their squares, and k. They count as k updates with
    their mean.
    """
    first, second, count = np.split(state, [len(gradient), 2 * len(gradient)])
    k = squares[-1]
    keep1, keep2 = power(f32(optimizer.beta1), int(k)), power(f32(optimizer.beta2), int(k))
    count += k
    first[:] = keep1 * first + (f32(1) - keep1) * (gradient / k)
    second[:] = keep2 * second + (f32(1) - keep2) * (squares[:-1] / k)
    size = k * adam_step_size(optimizer, int(count[0]))
    delta: Floats = size * first / (np.sqrt(second) + f32(optimizer.eps))
    return delta


def power(base: np.float32, exponent: int) -> np.float32:
    """base**exponent, the product of base**1, base**2, base**4, ... in this order, of which exponent is the sum."""
    found = f32(1)
    while exponent:
        if exponent % 2:
            found = found * base
        base, exponent = base * base, exponent // 2
    return found


def adam_step_size(optimizer: Adam, count: int) -> np.float32:
    """Learning rate and bias corrections of a row's update number `count`, from 1."""
    return f32(optimizer.lr * math.sqrt(1 - optimizer.beta2**count) / (1 - optimizer.beta1**count))


# --- planning ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distinct:
    """See `adaptive.embeddings.planning.lookups.Distinct`."""

    rows: list[int]
    counts: list[int]
    inverse: list[int]
    table_ends: list[int]


def distinct_rows(ids_by_table: Sequence[Sequence[int]], table_starts: Sequence[int]) -> Distinct:
    """Distinct rows table by table, in order of first look-up. ids_by_table: the look-ups of each table, in order."""
    found = Distinct([], [], [], [])
    place: dict[int, int] = {}
    for start, ids in zip(table_starts, ids_by_table, strict=False):
        for row in (start + int(i) for i in ids):
            if row not in place:
                place[row] = len(found.rows)
                found.rows.append(row)
                found.counts.append(0)
            found.counts[place[row]] += 1
            found.inverse.append(place[row])
        found.table_ends.append(len(found.rows))
    return found


def group_by_row(inverse: Sequence[int], num_rows: int) -> list[list[int]]:
    """The look-ups of each distinct row, in order."""
    return [[p for p, v in enumerate(inverse) if v == u] for u in range(num_rows)]


def enter_batch(
    books: dict[str, list[int]], rows: Sequence[int], counts: Sequence[int], ends: Sequence[int], batch: int
) -> Int64s:
    """(tables, counters) what is counted when a batch's distinct rows are looked for on the device.

    The books of rows (codes, accesses) and of slots (used, counted) change for those that are there."""
    tally = np.zeros((len(ends), len(Counter)), np.int64)
    for u, (row, count) in enumerate(zip(rows, counts, strict=True)):
        table = sum(end <= u for end in ends)
        slot = books["codes"][row] - 1
        tally[table, [Counter.LOOKUPS, Counter.UNIQUE_ROWS]] += (count, 1)
        if slot >= 0:
            tally[table, [Counter.LOOKUP_HITS, Counter.ROW_HITS]] += (count, 1)
            books["accesses"][row] += count
            books["used"][slot] = batch
            books["counted"][slot] = books["accesses"][row]
    return tally


def idle_slots(
    rows: Sequence[int], used: Sequence[int], oldest_held: int, start: int, limit: int
) -> tuple[list[int], int]:
    """At most `limit` slots with a row last used before `oldest_held`, from `start` on and around; the next start."""
    around = [*range(start, len(rows)), *range(start)]
    idle = [slot for slot in around if rows[slot] >= 0 and used[slot] < oldest_held]
    return idle[:limit], idle[limit] if len(idle) > limit else start


def lowest_slots(
    slots: Sequence[int], columns: Mapping[str, Sequence[int]], order: Sequence[str], count: int
) -> list[int]:
    """The `count` lowest slots by these columns, of equal ones the first, in their order."""
    ranked = sorted(range(len(slots)), key=lambda place: [columns[name][slots[place]] for name in order])
    return [slots[place] for place in sorted(ranked[:count])]


def update_size(size: np.float32, norm: np.float32, length: np.float32, visits: int) -> np.float32:
    """The running mean of a row's update sizes, after an update of so many visits; NaN: none yet."""
    with np.errstate(divide="ignore"):  # a row of zeros that moves: inf
        new = f32(0) if norm == 0 else f32(norm / length)
    share = f32(0.125)
    if visits > 1:
        new, stays = f32(new / f32(math.sqrt(visits))), f32(1)
        for _ in range(visits):
            stays *= f32(0.875)
        share = f32(1) - stays
    with np.errstate(invalid="ignore"):  # infinite twice: NaN
        return new if np.isnan(size) else f32(size + share * (new - size))


# --- a whole training --------------------------------------------------------------------------------------------


def bag_spans(batch: Batch, feature: int) -> list[tuple[int, int]]:
    """[first, last) look-up of the feature's bag in each sample."""
    at = feature * batch.num_samples
    return [(int(batch.offsets[at + b]), int(batch.offsets[at + b + 1])) for b in range(batch.num_samples)]


def lookup_scales(batch: Batch, spans: Sequence[tuple[int, int]], pooling: str) -> list[np.float32]:
    """What each look-up of one feature is multiplied by."""
    if batch.weights is not None:
        return [batch.weights[p] for first, last in spans for p in range(first, last)]
    if pooling == "mean":
        return [f32(1) / f32(last - first) for first, last in spans for _ in range(first, last)]
    return [f32(1) for first, last in spans for _ in range(first, last)]


def feature_vectors(weights: Floats, batch: Batch, feature: int, pooling: str) -> Floats:
    """(B, D) pooled, or (positions, D)."""
    spans = bag_spans(batch, feature)
    first = spans[0][0]
    rows = weights[batch.ids[first : spans[-1][1]]]
    scales = np.array(lookup_scales(batch, spans, pooling), f32)
    if pooling == "none":
        return scales[:, None] * rows
    bags = [slice(start - first, stop - first) for start, stop in spans]
    return np.stack([weighted_sum(rows[bag], scales[bag]) for bag in bags])


def lookup_gradients(gradient: Floats, batch: Batch, feature: int, pooling: str) -> Floats:
    """(look-ups of the feature, D): the gradient of a feature's vectors, handed to each look-up."""
    spans = bag_spans(batch, feature)
    scales = np.array(lookup_scales(batch, spans, pooling), f32)
    if pooling != "none":
        gradient = np.repeat(gradient, [last - first for first, last in spans], axis=0)
    return scales[:, None] * gradient


LossGradients = Callable[[dict[str, Floats], Batch], dict[str, Floats]]


def train_reference(
    tables: Sequence[TableConfig],
    batches: Sequence[Batch],
    optimizer: RowOptimizer,
    *,
    seed: int,
    loss_gradients: LossGradients,
    initial: Callable[[TableConfig, int], Floats] = initial_table,
) -> dict[str, tuple[Floats, Floats]]:
    """Train with every table in one flat array: no tiers, no plans, no look-ahead, no policy, nothing skipped.

    For each batch: make the vectors of all features, ask for their gradients, then update each row that the batch
    looks up once, with its gradients summed in lookup order (feature by feature, sample by sample), by chunks of 64.

    Args:
        tables: features of batches come in their order, table by table.
        batches: weights of look-ups, if any, only with pooling "sum" and "none".
        seed: of the initial values.
        loss_gradients: from feature -> float32 vectors, (B, D) pooled or (positions, D) un-pooled, and the batch, to
            the loss's gradients of all of them, in the same shapes. Must not change the vectors.
        initial: from a table and the seed to its initial values.

    Returns:
        Table name -> (weights (num_embeddings, D), state (num_embeddings, S)), float32; rows never looked up hold
        their initial values. Tables in bfloat16 hold values that it has.
    """
    values = {table.name: (initial(table, seed), initial_states(table, optimizer)) for table in tables}
    homes = [(name, table) for table in tables for name in table.feature_names]
    for number, batch in enumerate(batches):
        vectors = {
            name: feature_vectors(values[table.name][0], batch, feature, table.pooling)
            for feature, (name, table) in enumerate(homes)
        }
        gradients = loss_gradients(vectors, batch)
        for table in tables:
            mine = [feature for feature, (_, home) in enumerate(homes) if home is table]
            parts = [lookup_gradients(gradients[homes[f][0]], batch, f, table.pooling) for f in mine]
            ids = [batch.ids[slice(bag_spans(batch, f)[0][0], bag_spans(batch, f)[-1][1])] for f in mine]
            keys = partial(rounding_key, table, seed, batch=number)
            lookups, halves = (np.concatenate(ids), np.concatenate(parts)), table.dtype == "bfloat16"
            update_table(optimizer, values[table.name], *lookups, keys, halves=halves)
    return values


def initial_states(table: TableConfig, optimizer: RowOptimizer) -> Floats:
    """(num_embeddings, S)"""
    return np.tile(initial_state(optimizer, table.embedding_dim), (table.num_embeddings, 1))


def update_table(
    optimizer: RowOptimizer,
    values: tuple[Floats, Floats],
    ids: Int64s,
    gradients: Floats,
    keys: Callable[[int], int] = lambda row: 0,
    *,
    halves: bool = False,
) -> None:
    """Update each distinct row of ids (n,) once, with its part of gradients (n, D); `halves`: weights are bfloat16."""
    weights, state = values
    for row in dict.fromkeys(ids.tolist()):
        gradient, key = summed_gradient(gradients[ids == row]), keys(row)
        update_row(optimizer, weights[row], state[row], gradient, key=key if halves else None)


# --- keys ----------------------------------------------------------------------------------------------------------


class KeyBook:
    """Which key of a table has which row: slow twin of `planning.key_tables.KeyTable`, with exact counts.

    Every admission has a row of its own, 1, 2, ..., so a key that comes back has a new one. Row 0 is for keys without
    a row.
    """

    def __init__(self, table: TableConfig, sweep_every: int) -> None:
        self.table, self.sweep_every = table, sweep_every
        self.rows: dict[int, int] = {}  # of keys that have one
        self.row_keys: list[int] = [0]  # of all rows ever
        self.latest: dict[int, int] = {}  # batch that looked a key up, of keys with a row
        self.counts: dict[int, int] = {}
        self.clock = -1.0
        self.sweeps: list[tuple[int, float]] = []

    def look_up(self, number: int, keys: Sequence[int], time: float = 0) -> list[int]:
        """The row of each lookup of batch `number`."""
        self._expire(number)
        self.clock = max(self.clock, time)
        distinct = list(dict.fromkeys(keys))
        new = []
        for key in distinct:
            if key not in self.rows:
                self.counts[key] = self.counts.get(key, 0) + list(keys).count(key)
                if self.table.admit == 1 or self.counts[key] >= self.table.admit:
                    new.append(key)
        self._make_room(len(new), set(distinct))
        for key in new[: self.table.num_embeddings - len(self.rows)]:
            self.rows[key] = len(self.row_keys)
            self.row_keys.append(key)
        for key in distinct:
            if key in self.rows:
                self.latest[key] = number
        return [self.rows.get(key, 0) for key in keys]

    def _expire(self, number: int) -> None:
        if self.table.expire is None or number % self.sweep_every or number == 0:
            return
        if self.table.expire_batches is not None:
            first = number - self.table.expire_batches
        else:
            assert self.table.expire_seconds is not None
            self.sweeps.append((number, self.clock))
            past = [n for n, clock in self.sweeps if clock < self.clock - self.table.expire_seconds]
            first = max(past, default=0)
        self._forget([key for key in self.rows if self.latest[key] < first])

    def _make_room(self, needed: int, spared: set[int]) -> None:
        capacity = self.table.num_embeddings
        shortage = needed - (capacity - len(self.rows))
        if shortage > 0 and self.table.when_full == "evict":
            idle = sorted((self.latest[key], key) for key in self.rows if key not in spared)
            self._forget([key for _, key in idle[: max(shortage, capacity // 64)]])

    def _forget(self, keys: Sequence[int]) -> None:
        for key in keys:
            del self.rows[key], self.latest[key]

    def initial(self, seed: int) -> Floats:
        """(rows, D) initial values of all rows ever."""
        rows = initial_rows(self.table, seed, ((key + 2**63) % WORD for key in self.row_keys[1:]))
        return np.stack([np.zeros(self.table.embedding_dim, f32), *rows])


def count_in_sketch(cells: list[list[int]], places: Sequence[int], count: int) -> int:
    """Count-min with conservative update: the new count of a key with this cell in each line."""
    new = min(min(line[place] for line, place in zip(cells, places, strict=True)) + count, 255)
    for line, place in zip(cells, places, strict=True):
        line[place] = max(line[place], new)
    return new


# --- counting look-ups -------------------------------------------------------------------------------------------


def numbered(batch_ids: Int64s, offsets: Int64s, samples: int, starts: Sequence[int]) -> list[list[list[int]]]:
    """[feature][sample] -> its look-ups as numbers through all tables; `starts`: first row of each feature's table."""
    return [
        [
            [start + int(i) for i in batch_ids[offsets[f * samples + s] : offsets[f * samples + s + 1]]]
            for s in range(samples)
        ]
        for f, start in enumerate(starts)
    ]


def hot_inputs(lookups: Sequence[Sequence[Sequence[int]]], hot: set[int]) -> list[bool]:
    """Which samples look up hot rows only."""
    return [all(row in hot for feature in lookups for row in feature[s]) for s in range(len(lookups[0]))]


# --- the prediction by which inputs are skipped ------------------------------------------------------------------


def bags_of(lookups: Int64s, offsets: Int64s, num_samples: int) -> list[tuple[int, Int64s]]:
    """(sample, rows of one of its bags), in the order of the lookups."""
    spans = pairwise(offsets)
    return [(bag % num_samples, lookups[start:end]) for bag, (start, end) in enumerate(spans)]


def learn_clicks(
    lookups: Int64s, offsets: Int64s, dense: Floats, labels: Floats, rate: float, block: int, *pairs: Floats
) -> Floats:
    """(B,) residuals, block of samples after block; each then takes one Adagrad step per lookup and dense input."""
    rows, dense_weights, bias = pairs
    bags = bags_of(lookups, offsets, len(labels))
    residuals = np.empty(len(labels), f32)

    def step(pair: Floats, gradient: np.float32) -> None:
        pair[1] += gradient * gradient
        pair[0] -= f32(rate) * gradient / np.sqrt(pair[1] + f32(0.1))

    for first in range(0, len(labels), block):
        samples = range(first, min(first + block, len(labels)))
        for sample in samples:
            logit = bias[0, 0]
            for value, (weight, _) in zip(dense[sample], dense_weights, strict=True):
                logit += value * weight
            for row in (row for owner, bag in bags if owner == sample for row in bag):
                logit += rows[row, 0]
            residuals[sample] = f32(1 / (1 + math.exp(-float(logit)))) - labels[sample]
        for sample, row in ((owner, row) for owner, bag in bags if owner in samples for row in bag):
            step(rows[row], residuals[sample])
        for sample in samples:
            for value, pair in zip(dense[sample], dense_weights, strict=True):
                step(pair, residuals[sample] * value)
            step(bias[0], residuals[sample])
    return residuals
