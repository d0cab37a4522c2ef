"""Rows of an Arrow record batch into a block, as the tokeniser fills it from lines of text."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.data.arrow import types
from adaptive.data.arrow.values import States, ValueReader, Values, missing
from adaptive.data.kernels import arrow as kernels
from adaptive.data.kernels import text
from adaptive.data.rows.format import Block, Column, TextFormat
from adaptive.data.rows.row_source import Keepers

_LABELS = (text.LABEL_BINARY, text.LABEL_THRESHOLD, text.LABEL_SET)
_TIMES = (text.TIME_NUMBER, text.TIME_ISO)
_DENSE = (text.DENSE_INTEGER, text.DENSE_FLOAT)
_NO_STATES = np.empty(0, np.int8)


@dataclass(frozen=True)
class Filled:
    """What became of R rows: the numbers of those that were written, and of the bad ones number, cause and column."""

    rows: NDArray[np.int64]
    bad: tuple[tuple[int, int, Column], ...] = ()


@dataclass(frozen=True)
class _Bags:
    """The values of one bag column: row r has those from `ends[r]` to `ends[r + 1]`."""

    values: Values
    ends: NDArray[np.int64]


class Filler:
    """Writes record batches whose columns are those of `form`, in order, into blocks.

    Args:
        window: rows with a time outside [from, to) are passed over.
        keepers: are given the texts of these columns.
    """

    def __init__(self, form: TextFormat, window: tuple[float, float], keepers: Keepers) -> None:
        self._form, self._window = form, window
        kinds = [column.item if column.kind == text.KEY_BAG else column.kind for column in form.columns]
        self._readers = [
            ValueReader(kind, form.max_line_bytes, form.null_keys(), keepers.get(column.name))
            for kind, column in zip(kinds, form.columns, strict=True)
        ]
        self._slots = form.slots()
        self._positives = form.layout().positives

    def fill(self, batch: Any, block: Block, first: int) -> Filled:
        """Write the good rows of a batch of R rows into a block, which has room for all, from row `first` on."""
        size = batch.num_rows
        causes, at_fault = np.zeros(size, np.int8), np.zeros(size, np.int64)
        bags, keep = list[_Bags](), np.ones(size, np.bool_)
        for number, (column, reader) in enumerate(zip(self._form.columns, self._readers, strict=True)):
            array = batch.column(number)
            if column.kind == text.KEY_BAG:
                bags.append(_bags(array, reader, column))
                states = _states_of(bags[-1])
            else:
                states = self._single(
                    column, self._slots[number], reader.read(array), block, slice(first, first + size)
                )
            if states is not None and (states > 0).any():
                new = (states > 0) & (causes == 0)
                causes[new], at_fault[new] = states[new], number
            if column.kind in _TIMES:
                times = block.columns.times[first : first + size]
                keep &= (self._window[0] <= times) & (times < self._window[1])
        return self._finish(block, first, (causes, at_fault), keep, bags)

    def _finish(
        self,
        block: Block,
        first: int,
        faults: tuple[States, NDArray[np.int64]],
        keep: NDArray[np.bool_],
        bags: list[_Bags],
    ) -> Filled:
        causes, at_fault = faults
        good = keep & (causes == 0)
        rows = np.flatnonzero(good)
        if bags:
            _fill_bags(bags, rows, block, first)
        if len(rows) < len(good):
            _move(block, first, rows)
        bad = [(int(row), int(causes[row]), self._form.columns[at_fault[row]]) for row in np.flatnonzero(causes)]
        return Filled(rows, tuple(bad))

    def _single(self, column: Column, slot: int, found: Values, block: Block, where: slice) -> States | None:
        """Write a column with one value a row -> what is wrong with its rows; None: nothing."""
        states, columns = found.states, block.columns
        if column.kind in _DENSE:
            return _dense(column, found, columns.dense[where, slot])
        if column.kind in _LABELS:
            return self._labels(column, found, columns.labels[where])
        if column.kind in _TIMES:
            columns.times[where] = found.numbers
            bad = ~np.isfinite(found.numbers) if states is None else (states != 0) | ~np.isfinite(found.numbers)
            return np.where(bad, text.TIME, 0).astype(np.int8) if bad.any() else None
        columns.keys[slot, where] = found.keys
        if states is None:
            columns.present[slot, where] = True
            return None
        np.equal(states, 0, out=columns.present[slot, where])
        if column.required:
            return np.where(states == kernels.MISSING_VALUE, np.int8(text.MISSING), states)
        return states

    def _labels(self, column: Column, found: Values, out: NDArray[np.float32]) -> States | None:
        if column.kind == text.LABEL_SET:
            out[:] = np.isin(found.keys, self._positives)
            bad = np.zeros(len(out), np.bool_)
        elif column.kind == text.LABEL_THRESHOLD:
            out[:] = found.numbers >= self._form.threshold
            bad = np.isnan(found.numbers)
        else:
            out[:] = found.numbers
            bad = (out != 0) & (out != 1)
        bad = bad if found.states is None else bad | (found.states != 0)
        return np.where(bad, text.LABEL, 0).astype(np.int8) if bad.any() else None


def _dense(column: Column, found: Values, out: NDArray[np.float32]) -> States | None:
    states = found.states
    fits = kernels.dense_column(found.numbers, _NO_STATES if states is None else states, out)
    if fits or column.kind == text.DENSE_INTEGER:
        return states
    return np.where(np.isinf(out) & (found.state() == 0), np.int8(text.NUMBER), found.state())


def _bags(array: Any, reader: ValueReader, column: Column) -> _Bags:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_text(array.type):
        array = pc.split_pattern(array.cast(pa.large_string()), pattern=column.inner)
    if not pa.types.is_large_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    ends = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    sizes = np.diff(ends)
    if array.null_count:
        sizes = np.where(missing(array) == 0, sizes, 0)  # a null may have values, which do not count
        starts = ends[:-1]
        picks = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        items = array.values.take(pa.array(picks))
    else:
        items = array.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return _Bags(reader.read(items), np.concatenate([[0], np.cumsum(sizes)]))


def _states_of(bags: _Bags) -> States | None:
    if bags.values.states is None:
        return None
    out = np.empty(len(bags.ends) - 1, np.int8)
    kernels.bag_states(bags.values.states, bags.ends, out)
    return out


def _fill_bags(bags: list[_Bags], rows: NDArray[np.int64], block: Block, first: int) -> None:
    """The bags of the good rows, columns side by side; their slots are in the order of the columns."""
    starts = np.cumsum([0, *(len(bag.values.keys) for bag in bags)])
    ends = np.stack([bag.ends + start for bag, start in zip(bags, starts[:-1], strict=True)])
    keys = np.concatenate([bag.values.keys for bag in bags])
    states = np.concatenate([bag.values.state() for bag in bags])
    begin = int(block.columns.bag_ends[first * len(bags)])
    while len(block.columns.bag_keys) < begin + len(keys):
        block.grow_bags()
    kernels.fill_bags(rows, ends, keys, states, first, block.columns.bag_keys, block.columns.bag_ends)


def _move(block: Block, first: int, rows: NDArray[np.int64]) -> None:
    """Close the gaps that bad rows leave: `rows`, counted from `first`, come to stand one after another."""
    source, target, columns = first + rows, slice(first, first + len(rows)), block.columns
    for by_row in (columns.labels, columns.dense, columns.times):
        by_row[target] = by_row[source]
    for by_column in (columns.keys, columns.present):
        by_column[:, target] = by_column[:, source]
