"""`Lookups`: a batch's lookups, by row and by bag, independent of where rows are stored.

They depend on the batch alone. So helper threads (`tier.plan_threads`, for fast devices with large batches) find those
of several batches at once, ahead of planning. Without helpers they are found when the batch is read. A GPU can find
them, too (`tier.lookups`), and usually keeps the arrays of all lookups in any case (`tiers.gpu.lookups`).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive.arrays import Floats, Int32s, Int64s
from adaptive.batch import NO_SAMPLES, Batch, as_batch
from adaptive.config import TierConfig
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.plan import OnDevice, Pooling
from adaptive.errors import InputError, shown_id
from adaptive.kernels.planning import keys, lookups
from adaptive.kernels.planning.lookups import Distinct
from adaptive.kernels.scratch import LINE, ScratchPool, allocate
from adaptive.system import FEW_CORES, usable_cores

MOST_USES: Final = 2**31 - 1  # of an int32
# Of a batch that threads divide. Smaller ones are as fast, and compiling the loops takes 2 s of a first command.
SHARED_LOOKUPS: Final = 1 << 16
Features = tuple[Int64s, Int64s, Int32s]  # see `kernels.planning.lookups.distinct_rows`


def check_batch(batch: object, groups: Sequence[Group]) -> Batch:
    """Return the batch if it fits the tables.

    Raises:
        InputError: if it is not a `Batch`, has another number of features, no sample, or weights other than 1 for mean
            pooling.
    """
    batch = as_batch(batch)
    num_features = sum(len(group.features) for group in groups)
    if batch.num_samples and batch.num_features != num_features:
        raise InputError(f"expected a batch with {num_features} features, as the tables, got {batch.num_features}")
    if not batch.num_samples:
        raise InputError(NO_SAMPLES)
    if batch.weights is not None:
        for feature in (feature for group in groups for feature in group.features if feature.mean):
            if not (batch.weights[batch.feature_span(feature.position)] == 1).all():
                raise InputError(
                    f'feature {feature.name}: expected weights of 1 with pooling "mean", got others. Use pooling "sum" '
                    f'or "none".'
                )
    return batch


class DistinctFinder:
    """Finds the distinct rows of batches. Use one per thread: it has its own memory.

    Args:
        group: of tables.
        threads: that divide the tables in `find_lookups`; more than 1 for the training thread only.
    """

    def __init__(self, group: Group, threads: int = 1) -> None:
        self._group, self._threads = group, min(threads, len(group.tables))
        # One pool for each kind of array: a pool drops memory that does not fit the next request.
        self._memory, self._grouped, self._joined = ScratchPool(), ScratchPool(), ScratchPool()
        self._clear(16)

    def find_lookups(self, batch: Batch) -> "Lookups":
        """Find all lookups of a batch in the group. Raises `InputError` as `find` does.

        With keys, their lookups are not grouped: several keys may get the same row.
        """
        bags = lay_out_bags(self._group, batch)
        if self._group.has_keys:
            return Lookups(self.find(batch), bags, np.zeros(1, np.int64), np.zeros(0, np.int32), bags.scales)
        if self._threads > 1 and len(batch.ids) >= SHARED_LOOKUPS:
            return self._find_in_chunks(batch, bags)
        return group_lookups(self.find(batch), bags, self._grouped)

    def find(self, batch: Batch) -> Distinct:
        """Find the distinct rows of a batch.

        Raises:
            InputError: if an id is negative or too large; names feature, position, value and data line.
        """
        features = feature_lookups(self._group, batch)
        spans = features[1]
        has_all = len(spans) == batch.num_features
        num_lookups = len(batch.ids) if has_all else int((spans[:, 1] - spans[:, 0]).sum())
        distinct, bad = self.find_in_spans(features, num_lookups)
        if bad is not None:
            raise bad_id(self._group, batch, bad)
        return distinct

    def find_in_spans(self, features: Features, num_lookups: int) -> tuple[Distinct, int | None]:
        """Find the distinct rows of `num_lookups` lookups, table by table.

        Returns them, and the position of an id outside its table, or None. Any id is a key.
        """
        group, distinct = self._group, self._allocate(num_lookups)
        hash_table = self._places[0], self._used[0]
        if group.has_keys:
            size = int(keys.distinct_keys(features, group.table_keys, hash_table, tuple(distinct)))
            return distinct.shortened(size), None
        size = int(lookups.distinct_rows(0, features, group.table_rows, hash_table, tuple(distinct)))
        return distinct.shortened(size), -size - 1 if size < 0 else None

    def _find_in_chunks(self, batch: Batch, bags: "Bags") -> "Lookups":
        """`find_lookups` with all threads, each for a *chunk*: a run of tables."""
        group, num_lookups = self._group, int(bags.starts[-1])
        of_chunks = self._allocate(num_lookups)
        rows, counts = allocate(self._joined, (np.int64, num_lookups), (np.int32, num_lookups))
        segments, vectors, origins = _allocate_grouped(self._grouped, num_lookups, num_lookups, bags)
        size = int(
            lookups.find_and_group(
                np.zeros((self._threads + 1, 5), np.int64), feature_lookups(group, batch), group.table_rows,
                (self._places, self._used), tuple(of_chunks), (bags.starts, bags.vectors), (rows, counts, segments),
                (vectors, origins),
            )
        )  # fmt: skip
        if size < 0:
            raise bad_id(group, batch, -size - 1)
        distinct = Distinct(rows[:size], counts[:size], of_chunks.inverse, of_chunks.table_ends)
        return _lookups(distinct, bags, segments[: size + 1], vectors, origins)

    def _allocate(self, num_lookups: int) -> Distinct:
        """Memory for the distinct rows of so many lookups; clears hash tables that are full."""
        # Tables use the first places only, as many as their own lookups need; the others take no memory.
        num_places = max(16, 1 << (2 * num_lookups - 1).bit_length())
        if num_places > self._places.shape[1] or self._most_used + num_lookups > MOST_USES:
            self._clear(max(num_places, self._places.shape[1]))
        self._most_used += num_lookups
        of_lookups = (np.int64, num_lookups), (np.int32, num_lookups), (np.int32, num_lookups)
        return Distinct(*allocate(self._memory, *of_lookups, (np.int64, len(self._group.tables))))

    def _clear(self, places: int) -> None:
        self._places = np.zeros((self._threads, places), np.int32)
        self._used = np.ones((self._threads, LINE), np.int64)  # the first of each line; threads share no line
        self._most_used = 1  # at most so many in any line


def feature_lookups(group: Group, batch: Batch) -> Features:
    """The lookups in a batch of each feature of a group."""
    return batch.ids, batch.offsets[group.feature_ends * batch.num_samples], group.feature_columns[2]


def describe_sample(batch: Batch, sample: int) -> str:
    """Return the number of a sample, with its place in the data if the batch has it."""
    return f"sample {sample}" + (f" ({batch.origin.where(sample)})" if batch.origin is not None else "")


def bad_id(group: Group, batch: Batch, position: int) -> InputError:
    """Create the error for the id at a position of the batch, which is outside its table."""
    bag = int(np.searchsorted(batch.offsets, position, side="right")) - 1
    feature_position, sample = divmod(bag, batch.num_samples)
    feature = next(f for f in group.features if f.position == feature_position)
    table = group.tables[feature.table]
    where = f"{describe_sample(batch, sample)}, position {position - int(batch.offsets[bag])}"
    return InputError(
        f"feature {feature.name}, {where}: expected ids 0 to {table.num_embeddings - 1} of table {table.name}, got "
        f"{shown_id(int(batch.ids[position]))}. Correct the data, enlarge the table, or let the reader map such ids to "
        "one extra row (oov)."
    )


@dataclass(frozen=True)
class Bags:
    """The bags of a batch in one group: lookups -> vectors."""

    num_vectors: int
    vectors: Int32s  # (bags,)
    starts: Int64s  # (bags + 1,)
    tables: Int32s  # (bags,) table of the group
    scales: Floats  # (N,), or empty: all 1
    num_samples: int = 0  # > 0: `vectors` are those of `Pooling.num_samples`

    def pooling(self, inverse: Int32s, locations: Int64s) -> Pooling:
        """Describe the forward pass with the distinct rows at `locations` (U,)."""
        bags = self.num_vectors, self.vectors, self.starts, self.tables
        return Pooling(*bags, inverse, locations, self.scales, self.num_samples)


def group_lookups(distinct: Distinct, bags: "Bags", memory: ScratchPool) -> "Lookups":
    """Group the lookups of a batch by distinct row."""
    grouped = _allocate_grouped(memory, len(distinct.rows), len(distinct.inverse), bags)
    segments, vectors, origins = grouped
    segments[0] = 0
    outputs = segments[1:], vectors, origins
    lookups.fill_segments(distinct.inverse, distinct.counts, 0, bags.starts, bags.vectors, *outputs)
    return _lookups(distinct, bags, *grouped)


def _allocate_grouped(memory: ScratchPool, num_rows: int, num_lookups: int, bags: "Bags") -> list[NDArray[Any]]:
    """Memory for segments, vectors and origins."""
    of_lookups = (np.int32, num_lookups), (np.int64, len(bags.scales))
    return allocate(memory, (np.int64, num_rows + 1), *of_lookups)


def _lookups(distinct: Distinct, bags: "Bags", segments: Int64s, vectors: Int32s, origins: Int64s) -> "Lookups":
    return Lookups(distinct, bags, segments, vectors, bags.scales[origins] if len(bags.scales) else bags.scales)


@dataclass(frozen=True)
class Lookups:
    """Lookups of one batch in one group of tables: distinct rows, bags, and lookups by row."""

    distinct: Distinct
    bags: Bags
    segments: Int64s  # (U + 1,) start of each distinct row's lookups in `vectors` and `scales`
    vectors: Int32s  # (N,) vector whose gradient each lookup gets; empty: on the device
    scales: Floats  # (N,), or empty: all 1, or on the device
    on_device: OnDevice | None = None  # the arrays that a device keeps


class Search(Protocol):
    """A search for one batch's lookups in one group, which leaves them on a device."""

    def launch(self, finder: DistinctFinder) -> None:
        """Find them, or start the device; from any thread. Raises `InputError` as `DistinctFinder.find` does."""

    def lookups(self) -> Lookups:
        """Wait for the distinct rows and return the lookups. Once, from the planning thread."""


class Searcher(Protocol):
    """Finds batches' lookups in one group for a device."""

    def begin(self) -> None:
        """Prepare for a look-ahead: no batch is in flight."""

    def start(self, batch: Batch) -> Search:
        """Create a search, to be launched.

        From the planning thread, in batch order; each batch with a search is planned.
        """


def plan_threads(tier: TierConfig, *, on_cpu: bool, training_threads: int = 1) -> int:
    """Number of planning threads, including the look-ahead thread; 0: the threads that train plan, too.

    Args:
        tier: settings.
        on_cpu: of the tier.
        training_threads: that may plan between steps. If they take all of a few cores, a look-ahead thread would only
            make them wait for each other.
    """
    if tier.plan_threads != "auto":
        return tier.plan_threads
    if not on_cpu:
        return max(1, min(3, usable_cores() // 4))
    return 0 if 1 < usable_cores() <= min(training_threads, FEW_CORES) else 1


class LookupsAhead:
    """Finds the lookups of batches for a look-ahead.

    Args:
        groups: of tables.
        helpers: number of helper threads; 0: the calling thread finds them.
        searchers: for each group, the device's searcher or None: lookups stay on the host.
        enter_thread: called first in each helper thread.
        shared: number of threads that find lookups together without helpers; see `DistinctFinder`.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        helpers: int,
        searchers: Sequence[Searcher | None] | None = None,
        enter_thread: Callable[[], None] | None = None,
        shared: int = 1,
    ) -> None:
        self.helpers, self._enter_thread = helpers, enter_thread
        self._searchers = tuple(searchers or [None] * len(groups))
        self._working = False  # True during a look-ahead
        self._all_finders = [[DistinctFinder(group, shared) for group in groups] for _ in range(max(1, helpers))]
        self._finders: SimpleQueue[list[DistinctFinder]] = SimpleQueue()  # those that no thread uses now
        self._return_finders()
        self._pool: ThreadPoolExecutor | None = None

    def start_helpers(self) -> None:
        """Let helper threads find the lookups, until `end_helpers`."""
        self._working = True
        if self.helpers:
            self._pool = ThreadPoolExecutor(self.helpers, "adaptive-lookups", self._enter_thread)

    def end_helpers(self) -> None:
        """Join the helper threads; may be called again if an exception has ended it."""
        self._working = False
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def begin(self) -> None:
        """Prepare for a look-ahead: no batch is in flight."""
        self._return_finders()
        for searcher in self._searchers:
            if searcher is not None:
                searcher.begin()

    def _return_finders(self) -> None:
        """Make all finders available, also those that an interrupted thread has not returned."""
        self._finders = SimpleQueue()
        for finders in self._all_finders:
            self._finders.put(finders)

    @property
    def num_ahead(self) -> int:
        """Number of batches worth reading ahead now."""
        searches = any(searcher is not None for searcher in self._searchers)
        return max(self.helpers, int(searches)) if self._working else 0

    def start(self, batch: Batch) -> Callable[[], list[Lookups]]:
        """Start to find one `Lookups` per group. Call the result to wait for them."""
        searches = [None if searcher is None else searcher.start(batch) for searcher in self._searchers]
        if self._pool is None:
            results = self._make(batch, searches)
            return lambda: _finished(results)
        promise = self._pool.submit(self._make, batch, searches)
        return lambda: _finished(promise.result())

    def _make(self, batch: Batch, searches: Sequence[Search | None]) -> list[Lookups | Search]:
        finders, results = self._finders.get(), list[Lookups | Search]()
        try:
            for finder, search in zip(finders, searches, strict=True):
                if search is None:
                    results.append(finder.find_lookups(batch))
                else:
                    search.launch(finder)
                    results.append(search)
            return results
        finally:
            self._finders.put(finders)


def _finished(results: Sequence[Lookups | Search]) -> list[Lookups]:
    return [result if isinstance(result, Lookups) else result.lookups() for result in results]


def lay_out_bags(group: Group, batch: Batch) -> Bags:
    """Lay out the vectors of a batch.

    Pooled features fill columns of a (B, columns, D) block. The vectors of features without pooling follow, feature by
    feature, one per position.
    """
    samples = batch.num_samples
    if group.pools_in_order and batch.num_features == len(group.features):
        vectors, tables = group.pooled_bags(samples)
        return Bags(len(vectors), vectors, batch.offsets, tables, _scales(group, batch, len(batch.ids)), samples)
    sizes = [batch.num_lookups(feature.position) for feature in group.features]
    alone = sum(size for feature, size in zip(group.features, sizes, strict=True) if feature.column < 0)
    num_vectors = alone + samples * group.num_columns
    tables, scales = np.empty(num_vectors, np.int32), _scales(group, batch, sum(sizes))
    starts, vectors = np.empty(num_vectors + 1, np.int64), np.empty(num_vectors, np.int32)
    bags = starts, vectors, tables, scales
    lookups.lay_out_bags(batch.offsets, samples, group.feature_columns, group.num_columns, bags)
    return Bags(num_vectors, vectors, starts, tables, scales)


def _scales(group: Group, batch: Batch, num_lookups: int) -> Floats:
    """(N,) weights of the group's lookups, ones to overwrite for means, or empty: all 1."""
    if batch.weights is not None:
        parts = [batch.weights[batch.feature_span(feature.position)] for feature in group.features]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not group.pools_in_order and any(feature.mean for feature in group.features):
        return np.ones(num_lookups, np.float32)
    return np.zeros(0, np.float32)
