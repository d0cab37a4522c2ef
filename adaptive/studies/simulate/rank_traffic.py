"""`simulate_rank_traffic`: what several ranks would send each other in a step of training, counted from ids alone.

Every batch is cut as ranks would cut it, the distinct rows of each block are found, and each is dealt to its owner by
the formula of training (`adaptive.embeddings.ranks.owners`). So bytes are those of the messages, not an estimate; what
rows do (saturate, wait) ids do not tell, and is told as what a share of them would save.

Letters: W ranks, K blocks, T tables of a group, n rows that a rank asks of others, D width of a row.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, cut
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.embeddings.dense_step import goes_whole
from adaptive.embeddings.exchange.requests import MANY, index_type
from adaptive.embeddings.planning.layout import Group, OwnedGroup, make_groups, own_share
from adaptive.embeddings.planning.lookups import DistinctFinder, check_batch
from adaptive.embeddings.ranks.owners import BITS, SIZE, Owners
from adaptive.embeddings.ranks.wire import header_size
from adaptive.errors import ConfigError, InputError
from adaptive.models.factory import model_config
from adaptive.studies.simulate.simulated_run import Told, total_batches
from adaptive.system import StopRequest, stop_request
from adaptive.training.build import build_tables, dense_weights, inputs_of, open_data

SCHEMA: Final = 1
KINDS: Final = ("requests", "vectors", "gradients", "dense", "predictions", "headers")
EXCHANGES: Final = 3  # of a step of the trainer: requests, vectors, gradients with all that goes beside them
VALUE: Final = 4  # bytes
MOST_RANKS: Final = SIZE  # each has a bucket of rows at least


def simulate_rank_traffic(
    config: TrainConfig,
    sizes: Sequence[int],
    *,
    saturated: float = 0.5,
    embedding_dim: int | None = None,
    told: Told | None = None,
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Bytes that a rank sends in a step, by kind, for several numbers of ranks.

    Args:
        config: of the training; `batch_size` is that of all ranks together.
        sizes: numbers of ranks.
        saturated: share of the requests that is taken to be for saturated rows, whose gradients are not sent.
        embedding_dim: width of a row; None: the model's.
        told: called now and then.
        stop: signals set it while batches are counted; then no more are read.

    Returns:
        What `adaptive-train simulate --ranks ... --json` prints.

    Raises:
        ConfigError: for numbers of ranks that cannot be.
        InputError: if there is no training data.
    """
    _check_sizes(sizes, config.ranks.blocks)
    dataset = open_data(config)
    inputs = inputs_of(dataset)
    shape = model_config(config.model, config.model_options, inputs)
    width = shape.embedding_dim if embedding_dim is None else embedding_dim
    groups = make_groups(build_tables(dataset, width, {} if embedding_dim else shape.widths), config.seed)
    weights, labels = dense_weights(config, dataset), len(inputs.labels) or 1
    row_value = VALUE // 2 if config.ranks.wire == "bf16" else VALUE
    counted = [
        _Counted(size, config.ranks.blocks or size, groups, weights, labels, row_value) for size in dict.fromkeys(sizes)
    ]
    finders = [DistinctFinder(group) for group in groups]
    batches = samples = lookups = 0
    distinct = np.zeros(len(groups), np.int64)
    total = total_batches(config, dataset)
    was_stopped = False
    with nullcontext(StopRequest()) if stop is None else stop_request(stop) as stopped:
        for batch in _batches(config, dataset):
            if stopped and batches:
                was_stopped = True
                break
            check_batch(batch, groups)
            batches, samples, lookups = batches + 1, samples + batch.num_samples, lookups + len(batch.ids)
            distinct += [len(finder.find(batch).rows) for finder in finders]
            _count(batch, counted, groups, finders)
            if told is not None:
                told(batches, total)
    if not batches:
        raise InputError(f"data {config.data}: no training samples")
    return {
        "schema": SCHEMA,
        "batches": batches,
        "samples": samples,
        "lookups": lookups,
        "batch_size": config.batch_size,
        "blocks": config.ranks.blocks,
        "rows": sum(group.num_rows for group in groups),
        "row_widths": [group.embedding_dim for group in groups],
        "distinct_rows": int(distinct.sum()) / batches,
        "dense_weights": weights,
        "saturated_share": saturated,
        "ranks": [one.facts(batches, samples, saturated) for one in counted],
        "was_stopped": was_stopped,
        "asked_batches": total,
    }


def _check_sizes(sizes: Sequence[int], blocks: int | None) -> None:
    most = MOST_RANKS if blocks is None else min(blocks, MOST_RANKS)
    for size in sizes:
        if not 2 <= size <= most:
            why = "" if most == MOST_RANKS else f" (ranks.blocks={blocks})"
            raise ConfigError(f"--ranks {size}: needed are 2 ranks or more, at most {most:,}{why}")


def _batches(config: TrainConfig, dataset: Dataset) -> Iterator[Batch]:
    """Those of all epochs, as far as they are asked for."""
    every = (batch for epoch in range(config.epochs) for batch in dataset.train(config.batch_size, epoch=epoch))
    return islice(every, config.steps)


@dataclass
class _Counted:
    """One number of ranks, and what has been counted for it."""

    size: int
    blocks: int
    groups: Sequence[Group]
    weights: int
    labels: int
    row_value: int  # bytes, of rows and their gradients
    owners: list[Owners] = field(init=False)
    sent: dict[str, int] = field(init=False)  # bytes, of all ranks and batches
    rows: int = 0  # asked for, of oneself, too
    load: float = 0.0  # of owners: largest over mean, summed over batches

    def __post_init__(self) -> None:
        shares = own_share(self.groups, 0, self.size)
        self.owners = [share.owners for share in shares if isinstance(share, OwnedGroup)]
        self.sent = dict.fromkeys(KINDS, 0)

    def add(self, batch: Batch, found: Sequence[Sequence["_Rows | None"]]) -> None:
        """Count a batch; `found`: of each block the distinct rows in each group."""
        bounds = np.array([rank * self.blocks // self.size for rank in range(self.size + 1)])
        of_rank = np.repeat(np.arange(self.size), np.diff(bounds))
        there = np.add.reduceat([block[0] is not None for block in found], bounds[:-1], dtype=np.int64)
        asked = np.zeros((self.size, self.size), np.int64)  # by whom, of whom
        for number, (group, owners) in enumerate(zip(self.groups, self.owners, strict=True)):
            of_group = np.zeros_like(asked)
            many = 0
            for rank, block in zip(of_rank.tolist(), found, strict=True):
                if (rows := block[number]) is not None:
                    whose = owners.buckets_of(rows.rows, rows.tables) * self.size >> BITS
                    of_group[rank] += np.bincount(whose, minlength=self.size)
                    many += int(((rows.lookups >= MANY) & (whose != rank)).sum())
            asked += of_group
            crossing = int(of_group.sum() - np.trace(of_group))
            counts = 4 * len(group.tables) * self.blocks * (self.size - 1)
            self.sent["requests"] += counts + crossing * (index_type(group).itemsize + 1) + 4 * many
            size = self.row_value * group.embedding_dim * crossing
            self.sent["vectors"] += size
            self.sent["gradients"] += size
        self.rows += int(asked.sum())
        load = asked.sum(axis=0)
        self.load += float(load.max() / load.mean())
        others, blocks = self.size - 1, int(there.sum())
        if goes_whole(self.size, self.blocks, self.weights):
            exchanges, dense = EXCHANGES, blocks * self.weights * others
        else:
            slices = np.diff([rank * self.weights // self.size for rank in range(self.size + 1)])
            exchanges, dense = EXCHANGES + 1, int(there @ (self.weights - slices)) + self.weights * others
        self.sent["dense"] += VALUE * dense
        scores = 2 * VALUE * self.labels * batch.num_samples
        self.sent["predictions"] += others * (16 * self.size + 8 * blocks + scores)
        header = header_size(self.size)
        self.sent["headers"] += exchanges * header * others * self.size

    def facts(self, batches: int, samples: int, saturated: float) -> dict[str, Any]:
        """Means over batches and ranks."""
        each = batches * self.size
        sent = {name: size / each for name, size in self.sent.items()}
        pooled = sum(group.num_columns * group.embedding_dim for group in self.groups) * VALUE * samples / each
        total = sum(sent.values())
        by_row = sent["requests"] + sent["vectors"] + sent["gradients"]
        whole = 2 * (self.size - 1) / self.size * pooled
        return {
            "ranks": self.size,
            "blocks": self.blocks,
            "samples_per_rank": samples / each,
            "distinct_rows_per_rank": self.rows / each,
            "bytes": sent,
            "bytes_in_all": total,
            "bytes_saturated": total - saturated * sent["gradients"],
            "owner_load": self.load / batches,
            "pooled_table_wise_bytes": whole,
            "pooled_row_wise_bytes": 2 * (self.size - 1) * pooled,
            "whole_tables_would_pay": whole < by_row,
        }


@dataclass(frozen=True)
class _Rows:
    """Distinct rows of a block in a group, (U,) each."""

    rows: NDArray[np.int64]
    tables: NDArray[np.int64]
    lookups: NDArray[np.int32]


def _count(
    batch: Batch, counted: Sequence[_Counted], groups: Sequence[Group], finders: Sequence[DistinctFinder]
) -> None:
    """Ranks that cut a batch into as many blocks see the same ones."""
    for blocks in dict.fromkeys(one.blocks for one in counted):
        bounds = [number * batch.num_samples // blocks for number in range(blocks + 1)]
        pieces = cut(batch, np.diff(bounds).tolist())
        found = [[_rows(piece, *one) for one in zip(groups, finders, strict=True)] for piece in pieces]
        for one in counted:
            if one.blocks == blocks:
                one.add(batch, found)


def _rows(piece: Batch | None, group: Group, finder: DistinctFinder) -> _Rows | None:
    if piece is None:
        return None
    found = finder.find(piece)
    return _Rows(found.rows, group.tables_of(found.rows).astype(np.int64), found.counts)
