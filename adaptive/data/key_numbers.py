"""`number_keys`: 64-bit keys as rows, for studies of a data set that train no tables with keys."""

from dataclasses import replace

import numpy as np

from adaptive.batch import Batch
from adaptive.data.dataset import Changed, Dataset, Feature, tables_of
from adaptive.data.rows.batcher import Fitted
from adaptive.data.rows.vocabularies import KeyCounter

READ_SAMPLES = 16_384


def number_keys(dataset: Dataset, most: int | None = None) -> Dataset:
    """Return the data set with a row for each key, the most frequent first; itself if it has no keys.

    Reads the training part once. Keys get their rows at once and never lose them, and any number of keys has rows.

    Args:
        most: samples to read, at least; keys that only later ones have share a row.
    """
    tables = tables_of(dataset)
    keyed = [(position, table) for position, table in enumerate(tables) if table in dataset.key_rules]
    if not keyed:
        return dataset
    counters, num_read = {table: KeyCounter() for _, table in keyed}, 0
    for batch in dataset.train(READ_SAMPLES):
        for position, table in keyed:
            keys = batch.ids[batch.feature_span(position)]
            counters[table].add(keys, np.ones(len(keys), np.bool_))
        num_read += batch.num_samples
        if most is not None and num_read >= most:
            break
    rows = {table: Fitted(counter.vocabulary(1)) for table, counter in counters.items()}

    def numbered(batch: Batch) -> Batch:
        ids = batch.ids.copy()
        for position, table in keyed:
            span = batch.feature_span(position)
            rows[table].fill(batch.ids[span], np.ones(span.stop - span.start, np.bool_), ids[span])
        return replace(batch, ids=ids).mark_unshared()

    result = Changed(dataset, numbered)
    result.features = tuple(
        Feature(feature.name, rows[table].num_embeddings) if table in rows else feature
        for feature, table in zip(dataset.features, tables, strict=True)
    )
    result.key_rules = {}
    return result
