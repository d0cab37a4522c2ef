"""Vectors from elsewhere into tables, and tables of the shapes of torch's own modules."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from adaptive.batch.named import as_float32, as_numbers
from adaptive.config import TableConfig
from adaptive.embeddings.engine.pipeline import Lane, Pipeline
from adaptive.embeddings.engine.saving.gathering import own_rows
from adaptive.errors import ConfigError
from adaptive.kernels.rows.cpu.steps import FIRST
from adaptive.optim import RowOptimizer

AT_ONCE: Final = 1 << 18  # rows: what is copied in between is bounded


def fill_table(
    pipeline: Pipeline, lane: Lane, table: int, vectors: NDArray[np.float32], optimizer: RowOptimizer
) -> None:
    """Give the first rows of a table (numbered in its group) these values (n, D), and optimizer state as at first.

    Raises:
        ConfigError: if a look-ahead is running, or the shape is another.
        InputError: if vectors are no numbers, masked, or do not fit float32; no row has changed then.
    """
    group = lane.group
    size, width = group.tables[table].num_embeddings, group.embedding_dim
    if pipeline.running:
        raise ConfigError("vectors cannot be loaded while a look-ahead is running; exhaust or close its iterator first")
    if vectors.ndim != 2 or vectors.shape[1] != width or len(vectors) > size:
        raise ConfigError(
            f"table {group.tables[table].name}: (n, {width}) vectors, n up to {size}, are needed, found {vectors.shape}"
        )
    what = f"table {group.tables[table].name}: vectors"
    vectors = as_numbers(what, vectors)
    if vectors.dtype.kind == "f" and vectors.dtype.itemsize > 4:
        for start in range(0, len(vectors), AT_ONCE):
            as_float32(f"{what} from row {start}", vectors[start : start + AT_ONCE])
    first_state = float(optimizer.settings()[FIRST])
    with pipeline.lock:
        pipeline.finish_copies()
        for start in range(0, len(vectors), AT_ONCE):
            part = np.array(vectors[start : start + AT_ONCE], np.float32)
            rows = group.whole.table_starts[table] + np.arange(start, start + len(part))
            rows, part = own_rows(group, rows, part)
            pipeline.put(lane, rows, part, np.full((len(part), lane.host.state.shape[1]), first_state, np.float32))
        lane.device.forget_watched()
        pipeline.finish_copies()


def tables_like(modules: Mapping[str, nn.Module]) -> list[TableConfig]:
    """A table for each `nn.EmbeddingBag` or `nn.Embedding`, of its name, size and pooling.

    Raises:
        ConfigError: for another module, or a setting that tables here do not have.
    """
    return [_table_like(name, module) for name, module in modules.items()]


def _table_like(name: str, module: nn.Module) -> TableConfig:
    if not isinstance(module, nn.EmbeddingBag | nn.Embedding):
        raise ConfigError(f"{name}: an nn.EmbeddingBag or nn.Embedding is needed, found {type(module).__name__}")
    pooling = module.mode if isinstance(module, nn.EmbeddingBag) else "none"
    refused = {
        "max_norm": module.max_norm is not None,
        "padding_idx": module.padding_idx is not None,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        'mode="max"': pooling == "max",
    }
    if found := [setting for setting, is_set in refused.items() if is_set]:
        raise ConfigError(f"{name}: {', '.join(found)} of {type(module).__name__} is not supported")
    return TableConfig.model_validate(
        {
            "name": name,
            "num_embeddings": module.num_embeddings,
            "embedding_dim": module.embedding_dim,
            "pooling": pooling,
        }
    )
