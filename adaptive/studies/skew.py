"""`count_skew`: how unevenly a data set looks up the rows of its tables, exactly and from its ids alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import TrainConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder, check_batch
from adaptive.errors import InputError
from adaptive.studies.simulated_run import OnProgress
from adaptive.studies.simulation import number_keys
from adaptive.training.components import open_data, study_tables, total_steps
from adaptive.training.telemetry.formatting import Document, Note, Table, count_text, percent_text

SCHEMA: Final = 1
WIDTH: Final = 16  # of rows, which have no values here
LEGEND: Final = (
    "top 1%, top 10%: share of the table's lookups that go to its most frequent rows, 1% and 10% of all its rows. "
    "sharing a row: expected share of the ids whose row other ids have, too, in tables whose ids are hashed."
)


@dataclass(frozen=True)
class TableSkew:
    """The skew of one table; shares are None without a lookup.

    Attributes:
        used_rows: rows with a lookup.
        top_1_share, top_10_share: share of the lookups of the most frequent 1% and 10% of the rows.
        shared_ids_share: expected share of the ids that share a row; None if ids are not hashed.
    """

    table: str
    rows: int
    used_rows: int
    lookups: int
    top_1_share: float | None
    top_10_share: float | None
    shared_ids_share: float | None


@dataclass(frozen=True)
class Skew:
    """The object that `adaptive-train simulate --skew --json` prints."""

    schema: int
    batches: int
    samples: int
    tables: Sequence[TableSkew]


def count_skew(
    config: TrainConfig,
    *,
    on_progress: OnProgress = lambda batches, total: None,
) -> Skew:
    """Count the lookups of every row in the batches that training with `config` would read.

    Args:
        config: its data, batch size, steps and epochs are used.
        on_progress: called with the number of counted batches and, if known, their total.

    Raises:
        InputError: if there is no training data.
    """
    dataset = number_keys(open_data(config), None if config.steps is None else config.steps * config.batch_size)
    (group,) = make_groups(study_tables(config, dataset, WIDTH), config.seed)
    finder, counts = DistinctFinder(group), np.zeros(group.num_rows, np.int64)
    total, batches, samples = total_steps(config, dataset), 0, 0
    epochs = (dataset.train(config.batch_size, epoch=epoch) for epoch in range(config.epochs))
    for batch in islice((batch for epoch in epochs for batch in epoch), config.steps):
        distinct = finder.find(check_batch(batch, [group]))
        counts[distinct.rows] += distinct.counts
        batches, samples = batches + 1, samples + batch.num_samples
        on_progress(batches, total)
    if not batches:
        raise InputError(f"data {config.data}: expected training samples, got none")
    starts = group.table_starts.tolist()
    tables = [
        table_skew(table.name, counts[starts[number] : starts[number + 1]], dataset.hash_rows.get(table.name))
        for number, table in enumerate(group.tables)
    ]
    return Skew(SCHEMA, batches, samples, tables)


def table_skew(table: str, counts: NDArray[np.int64], hashed: int | None) -> TableSkew:
    """Return the skew of one table with the lookups (R,) of its rows; `hashed` of its rows take hashed ids.

    n ids use a row with probability 1 - exp(-n / rows), and an id is alone in its row with probability exp(-n / rows).
    So the share of the ids that are not alone is that of the rows in use.
    """
    falling, lookups = np.sort(counts)[::-1], int(counts.sum())

    def top(share: float) -> float | None:
        return float(falling[: math.ceil(share * len(counts))].sum()) / lookups if lookups else None

    return TableSkew(
        table,
        len(counts),
        used_rows=int(np.count_nonzero(counts)),
        lookups=lookups,
        top_1_share=top(0.01),
        top_10_share=top(0.1),
        shared_ids_share=float(np.count_nonzero(counts[:hashed]) / hashed) if hashed else None,  # not the missing ids'
    )


def skew_document(result: Skew) -> Document:
    """A line about the data, and a table with a line per table."""
    lookups = sum(table.lookups for table in result.tables)
    head = (
        f"{count_text(lookups)} lookups of {count_text(result.samples)} samples in {count_text(result.batches)} batches"
    )
    rows = [["table", "rows", "rows used", "lookups", "top 1%", "top 10%", "sharing a row"]]
    rows += [
        [
            table.table,
            *map(count_text, (table.rows, table.used_rows, table.lookups)),
            *map(percent_text, (table.top_1_share, table.top_10_share, table.shared_ids_share)),
        ]
        for table in result.tables
    ]
    return Document([Note(head), Table(rows), Note(LEGEND)])
