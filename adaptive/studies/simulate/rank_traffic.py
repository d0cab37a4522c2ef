"""`simulate_rank_traffic`: count the bytes between ranks in a step, from ids alone.

Each batch is cut as ranks would cut it, the distinct rows of each block are found, and each row goes to its owner by
the formula of training (`adaptive.embeddings.ranks.owners`). So the bytes are those of the messages, not an estimate.
Ids do not show how rows move; the report says what a share of saturated rows would save.

Letters: W ranks, K blocks, T tables of a group, n rows that a rank requests from others, D width of a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, cut
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.embeddings.dense_step import is_sent_whole
from adaptive.embeddings.exchange.requests import MANY, choose_index_type
from adaptive.embeddings.planning.layout import Group, OwnedGroup, make_groups_without_keys, owned_groups
from adaptive.embeddings.planning.lookups import DistinctFinder, check_batch
from adaptive.embeddings.ranks.owners import BITS, SIZE, Owners
from adaptive.embeddings.ranks.transport import header_size
from adaptive.errors import ConfigError, InputError
from adaptive.models.factory import model_config
from adaptive.plugins import make_policy, with_rule
from adaptive.policy import drops_inputs
from adaptive.studies.simulate.simulated_run import OnProgress
from adaptive.system import StopRequest, stop_request
from adaptive.training.components import build_tables, dense_weights, inputs_of, open_data, total_steps

SCHEMA: Final = 1
EXCHANGES: Final = 3  # per step of the trainer: requests, vectors, gradients
VALUE: Final = 4  # bytes
MAX_RANKS: Final = SIZE  # each rank needs a bucket of rows


@dataclass
class SentBytes:
    """Bytes by kind of message."""

    requests: float = 0
    vectors: float = 0
    gradients: float = 0
    dense: float = 0
    predictions: float = 0
    headers: float = 0


@dataclass(frozen=True)
class RanksForecast:
    """Traffic of one number of ranks; means over batches and ranks.

    Attributes:
        bytes_saturated: all bytes, if gradients of saturated rows are not sent.
        owner_load: requests to the busiest owner over the mean.
        pooled_table_wise_bytes, pooled_row_wise_bytes: bytes if pooled vectors were sent instead of rows.
    """

    ranks: int
    blocks: int
    samples_per_rank: float
    distinct_rows_per_rank: float
    bytes: SentBytes
    bytes_in_all: float
    bytes_saturated: float
    owner_load: float
    pooled_table_wise_bytes: float
    pooled_row_wise_bytes: float
    whole_tables_would_pay: bool


@dataclass(frozen=True)
class TrafficForecast:
    """The object that `adaptive-train simulate --ranks ... --json` prints."""

    schema: int
    batches: int
    samples: int
    lookups: int
    batch_size: int
    blocks: int | None
    rows: int
    row_widths: Sequence[int]
    distinct_rows: float
    dense_weights: int
    saturated_share: float
    ranks: Sequence[RanksForecast]
    was_stopped: bool
    total_batches: int | None


def simulate_rank_traffic(
    config: TrainConfig,
    sizes: Sequence[int],
    *,
    saturated: float = 0.5,
    on_progress: OnProgress = lambda batches, total: None,
    stop: StopRequest | None = None,
) -> TrafficForecast:
    """Count the bytes that a rank sends in a step, by kind, for several numbers of ranks.

    Args:
        config: of the training; `batch_size` is that of all ranks together.
        sizes: numbers of ranks.
        saturated: assumed share of the requests that are for saturated rows, whose gradients are not sent.
        on_progress: called with counted batches and, if known, their total.
        stop: set by signals; after that no more batches are read.

    Raises:
        ConfigError: for an impossible number of ranks, or a skip rule that leaves inputs out.
        InputError: if there is no training data.
    """
    _check_sizes(sizes, config.ranks.blocks)
    _check_rule(config)
    dataset = open_data(config)
    inputs = inputs_of(dataset)
    shape = model_config(config.model, config.model_options, inputs)
    tables = build_tables(dataset, shape.embedding_dim, shape.widths)
    groups = make_groups_without_keys(shape.format_rows(tables), config.seed)
    weights = dense_weights(config, dataset)
    row_value = VALUE // 2 if config.ranks.wire == "bf16" else VALUE
    counted = [_Counted(size, config.ranks.blocks or size, groups, weights, row_value) for size in dict.fromkeys(sizes)]
    finders = [DistinctFinder(group) for group in groups]
    batches = samples = lookups = distinct = 0
    total = total_steps(config, dataset)
    was_stopped = False
    with nullcontext(StopRequest()) if stop is None else stop_request(stop) as stopped:
        for batch in _batches(config, dataset):
            if was_stopped := bool(stopped and batches):
                break
            check_batch(batch, groups)
            batches, samples, lookups = batches + 1, samples + batch.num_samples, lookups + len(batch.ids)
            distinct += sum(len(finder.find(batch).rows) for finder in finders)
            _count(batch, counted, groups, finders)
            on_progress(batches, total)
    if not batches:
        raise InputError(f"data {config.data}: expected training samples, got none")
    return TrafficForecast(
        schema=SCHEMA,
        batches=batches,
        samples=samples,
        lookups=lookups,
        batch_size=config.batch_size,
        blocks=config.ranks.blocks,
        rows=sum(group.num_rows for group in groups),
        row_widths=[group.embedding_dim for group in groups],
        distinct_rows=distinct / batches,
        dense_weights=weights,
        saturated_share=saturated,
        ranks=[ranks.means(batches, samples, saturated) for ranks in counted],
        was_stopped=was_stopped,
        total_batches=total,
    )


def _check_sizes(sizes: Sequence[int], blocks: int | None) -> None:
    most = MAX_RANKS if blocks is None else min(blocks, MAX_RANKS)
    for size in sizes:
        if not 2 <= size <= most:
            why = "" if most == MAX_RANKS else f" (ranks.blocks={blocks})"
            raise ConfigError(f"--ranks: expected 2 to {most:,} ranks{why}, got {size}")


def _check_rule(config: TrainConfig) -> None:
    """Raise ConfigError for a rule whose batches and weights only a training knows."""
    policy = make_policy(config.policy, config.policy_options)
    skip = with_rule(policy, config.skip)
    if skip is not None and drops_inputs(policy):
        raise ConfigError(
            f"--ranks: expected no skip rule that leaves inputs out, got {skip.rule or config.policy}: only a training "
            "knows which, and the weights of the others. Set skip.rule=off."
        )


def _batches(config: TrainConfig, dataset: Dataset) -> Iterator[Batch]:
    """Batches of all epochs, up to `steps`."""
    every = (batch for epoch in range(config.epochs) for batch in dataset.train(config.batch_size, epoch=epoch))
    return islice(every, config.steps)


@dataclass
class _Counted:
    """Counts for one number of ranks.

    Attributes:
        row_value: bytes of a value of rows and their gradients; rows in bfloat16 take 2.
        sent: by all ranks in all batches.
        rows: requested, including those of the rank itself.
        load: largest over mean requests of the owners, summed over batches.
    """

    size: int
    blocks: int
    groups: Sequence[Group]
    weights: int
    row_value: int
    owners: list[Owners] = field(init=False)
    sent: SentBytes = field(default_factory=SentBytes)
    rows: int = 0
    load: float = 0.0

    def __post_init__(self) -> None:
        shares = owned_groups(self.groups, 0, self.size)
        self.owners = [share.owners for share in shares if isinstance(share, OwnedGroup)]

    def add(self, batch: Batch, pieces: Sequence[Sequence["_Rows | None"]]) -> None:
        """Count a batch; `pieces` has the distinct rows in each group, for each block."""
        bounds = np.array([rank * self.blocks // self.size for rank in range(self.size + 1)])
        filled = np.add.reduceat(
            [block[0] is not None for block in pieces], bounds[:-1], dtype=np.int64
        )  # blocks with samples, by rank
        of_rank = np.repeat(np.arange(self.size), np.diff(bounds)).tolist()
        requests = np.zeros((self.size, self.size), np.int64)  # [rank, owner]
        for number in range(len(self.groups)):
            requests += self._add_group(number, [(rank, b[number]) for rank, b in zip(of_rank, pieces, strict=True)])
        self.rows += int(requests.sum())
        load = requests.sum(axis=0)
        self.load += float(load.max() / load.mean())
        others, blocks = self.size - 1, int(filled.sum())
        if is_sent_whole(self.size, self.blocks, self.weights):
            exchanges, dense = EXCHANGES, blocks * self.weights * others
        else:
            slices = np.diff([rank * self.weights // self.size for rank in range(self.size + 1)])
            exchanges, dense = EXCHANGES + 1, int(filled @ (self.weights - slices)) + self.weights * others
        self.sent.dense += VALUE * dense
        scores = VALUE * (2 + ("weight" in batch.extras)) * batch.num_samples
        self.sent.predictions += others * (24 * self.size + 8 * blocks + scores)
        self.sent.headers += exchanges * header_size(self.size) * others * self.size

    def _add_group(self, number: int, pieces: Sequence[tuple[int, "_Rows | None"]]) -> NDArray[np.int64]:
        """Count the rows of one group, each piece with its rank; return requests (ranks, owners)."""
        group, owners = self.groups[number], self.owners[number]
        requests = np.zeros((self.size, self.size), np.int64)
        many = 0
        for rank, rows in pieces:
            if rows is not None:
                owner = owners.buckets_of(rows.rows, rows.tables) * self.size >> BITS
                requests[rank] += np.bincount(owner, minlength=self.size)
                many += int(((rows.lookups >= MANY) & (owner != rank)).sum())
        crossing = int(requests.sum() - np.trace(requests))
        counts = 4 * len(group.tables) * self.blocks * (self.size - 1)
        self.sent.requests += counts + crossing * (choose_index_type(group).itemsize + 1) + 4 * many
        self.sent.vectors += min(self.row_value, group.dtype.itemsize) * group.embedding_dim * crossing
        self.sent.gradients += self.row_value * group.embedding_dim * crossing
        return requests

    def means(self, batches: int, samples: int, saturated: float) -> RanksForecast:
        """Means over batches and ranks."""
        each = batches * self.size
        sent = SentBytes(**{name: size / each for name, size in vars(self.sent).items()})
        pooled = sum(group.num_columns * group.embedding_dim for group in self.groups) * VALUE * samples / each
        total = sum(vars(sent).values())
        whole = 2 * (self.size - 1) / self.size * pooled
        return RanksForecast(
            ranks=self.size,
            blocks=self.blocks,
            samples_per_rank=samples / each,
            distinct_rows_per_rank=self.rows / each,
            bytes=sent,
            bytes_in_all=total,
            bytes_saturated=total - saturated * sent.gradients,
            owner_load=self.load / batches,
            pooled_table_wise_bytes=whole,
            pooled_row_wise_bytes=2 * (self.size - 1) * pooled,
            whole_tables_would_pay=whole < sent.requests + sent.vectors + sent.gradients,
        )


@dataclass(frozen=True)
class _Rows:
    """Distinct rows of a block in a group, arrays of shape (U,)."""

    rows: NDArray[np.int64]
    tables: NDArray[np.int64]
    lookups: NDArray[np.int32]


def _count(
    batch: Batch, counted: Sequence[_Counted], groups: Sequence[Group], finders: Sequence[DistinctFinder]
) -> None:
    """Count a batch once per number of blocks."""
    for blocks in dict.fromkeys(ranks.blocks for ranks in counted):
        bounds = [number * batch.num_samples // blocks for number in range(blocks + 1)]
        pieces = [
            [_rows(piece, group, finder) for group, finder in zip(groups, finders, strict=True)]
            for piece in cut(batch, np.diff(bounds).tolist())
        ]
        for ranks in counted:
            if ranks.blocks == blocks:
                ranks.add(batch, pieces)


def _rows(piece: Batch | None, group: Group, finder: DistinctFinder) -> _Rows | None:
    if piece is None:
        return None
    distinct = finder.find(piece)
    return _Rows(distinct.rows, group.tables_of(distinct.rows).astype(np.int64), distinct.counts)
