"""The kernels of `rows.cpu` on tensors of ordinary memory, with signatures of `rows.gpu`.

The GPU's code runs with them on a machine without one (`tier.device=cpu-torch`). Indices are checked here, because
numba's kernels check none: tests that leave out a wait must see an error, not a crash.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.kernels.rows.cpu import decay as decay_kernels
from adaptive.kernels.rows.cpu import deferred as deferred_kernels
from adaptive.kernels.rows.cpu import initial as initial_kernels
from adaptive.kernels.rows.cpu import move as move_kernels
from adaptive.kernels.rows.cpu import pool as pool_kernels
from adaptive.kernels.rows.cpu import update as update_kernels
from adaptive.kernels.scratch import empty_rows
from adaptive.kernels.vector.bfloat16 import NO_KEYS, number_as_stored

Array = NDArray[Any]


def pool(
    weights: Tensor,
    host_weights: Tensor | None,
    row_locations: Tensor,
    inverse: Tensor,
    bag_vectors: Tensor,
    bag_starts: Tensor,
    scales: Tensor,
    out: Tensor,
    num_samples: int = 0,
) -> None:
    """As `gpu.pool.pool`."""
    num_bags = len(out) if num_samples else len(bag_vectors)
    if not num_bags:
        return
    if num_samples:
        bags = np.arange(num_bags, dtype=np.int32)
        vectors = bags % num_samples * (num_bags // num_samples) + bags // num_samples
    else:
        vectors = _below(len(out), bag_vectors).astype(np.int32, copy=False)
    near, far = _array(weights), _rows_or_none(host_weights, weights)
    lookups = _below(len(row_locations), inverse).astype(np.int32, copy=False)
    starts = _array(bag_starts) if len(bag_starts) else np.arange(num_bags + 1)
    _check_segments(starts, len(lookups))
    where = _array(row_locations)
    _check_locations(where[lookups], near, far)
    bags_of_rows = vectors, starts, lookups, where, _array(scales)
    pool_kernels.pool_range(0, num_bags, _array(out), bags_of_rows, near, far)


def update(
    weights: Tensor,
    state: Tensor,
    slots: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    kind: int,
    settings: list[float],
    corrections: Tensor,
    norms: Tensor,
    *,
    hot: Tensor,
    squares: Tensor | None = None,
    keys: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """As `gpu.update.update`; `hot` is not used."""
    if _is_set(found_inf):
        norms[0].fill_(torch.nan)
        return
    places, lookups = _below(len(weights), slots), _below(len(gradients), vectors)
    tables, count, width = (_array(weights), _array(state)), len(places), weights.shape[1]
    rule, results = (kind, np.array(settings, np.float32), _array(corrections)), (_keys(keys), _array(norms))
    if squares is not None:
        of_rows, sums = (places, lookups.astype(np.int64)), (_array(gradients), _array(squares))
        deferred_kernels.apply_sums(0, count, 0, of_rows, sums, *tables, rule, results)
        return
    ends = _array(segments)
    _check_segments(ends, len(lookups))
    sent = places, ends, lookups.astype(np.int32, copy=False), _array(scales), _array(gradients)
    tiers = *tables, tables[0][:0], tables[1][:0]
    update_kernels.update_range(0, count, sent, tiers, rule, results, empty_rows(1, width))


def decay(
    weights: Tensor, slots: Tensor, factor: float, keys: Tensor | None = None, *, found_inf: Tensor | None = None
) -> None:
    """As `gpu.decay.decay`."""
    if not _is_set(found_inf):
        decay_kernels.decay(0, _below(len(weights), slots), np.float32(factor), _keys(keys), _array(weights), 1)


def accumulate(
    entries: Tensor,
    segments: Tensor,
    vectors: Tensor,
    scales: Tensor,
    gradients: Tensor,
    sums: Tensor,
    squares: Tensor,
    pending: Tensor,
    *,
    hot: Tensor,
    found_inf: Tensor | None = None,
) -> None:
    """As `gpu.deferred.accumulate`; `hot` is not used."""
    if _is_set(found_inf):
        return
    places, ends = _below(len(sums), entries), _array(segments)
    lookups = _below(len(gradients), vectors).astype(np.int32, copy=False)
    _check_segments(ends, len(lookups))
    sent = places, ends, lookups, _array(scales), _array(gradients)
    tables = _array(sums), _array(squares), _array(pending)
    deferred_kernels.accumulate(0, len(places), sent, tables, empty_rows(1, sums.shape[1]))


def copy_rows(
    to: Tensor, to_state: Tensor, to_rows: Tensor, source: Tensor, source_state: Tensor, source_rows: Tensor
) -> None:
    """As `gpu.move.copy_rows`."""
    targets, sources = _below(len(to), to_rows), _below(len(source), source_rows)
    assert len(targets) == len(sources)
    move_kernels.copy_rows(_array(to), _array(to_state), targets, _array(source), _array(source_state), sources)


def initial_rows(
    weights: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: Tensor,
    table_starts: Tensor,
    table_keys: Tensor,
    table_bounds: Tensor,
    first_state: float,
    *,
    row_keys: Tensor | None = None,
) -> None:
    """As `gpu.initial.initial_rows`."""
    places, starts = _below(len(weights), slots), _array(table_starts)
    tables = starts, _array(table_keys).view(np.uint64), _array(table_bounds)
    numbers = _below(int(starts[-1]), rows)
    of_rows = _array(weights), _array(state), places, numbers
    first = of_rows[1].dtype.type(number_as_stored(first_state, of_rows[1].dtype))
    if row_keys is None:
        initial_kernels.initial_rows(*of_rows, *tables, first)
    else:
        initial_kernels.initial_rows_by_key(*of_rows, _array(row_keys), *tables, first)


def _array(tensor: Tensor) -> Array:
    """Return the tensor's memory."""
    assert tensor.is_contiguous()
    array: Array = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
    return array


def _keys(keys: Tensor | None) -> Array:
    return NO_KEYS if keys is None else _array(keys).view(np.uint64)


def _is_set(found_inf: Tensor | None) -> bool:
    return found_inf is not None and bool(_array(found_inf) != 0)


def _rows_or_none(rows: Tensor | None, like: Tensor) -> Array:
    return _array(like)[:0] if rows is None else _array(rows)


def _below(size: int, numbers: Tensor) -> Array:
    """Return numbers (n,) as an array; each must be from 0 to size - 1."""
    array = _array(numbers)
    assert not len(array) or (array.min() >= 0 and array.max() < size)
    return array


def _check_locations(locations: Array, near: Array, far: Array) -> None:
    """Check that locations (n,) are of existing rows."""
    assert not len(locations) or (locations.max() < len(near) and locations.min() >= -len(far))


def _check_segments(starts: Array, count: int) -> None:
    """Check that `starts` (n + 1,) ascend, from 0 to `count` at most."""
    assert starts[0] >= 0 and starts[-1] <= count and (np.diff(starts) >= 0).all()
