"""The results of `lookups` by torch operations: distinct rows in order, lookups by row.

They equal those of `lookups`, number by number. A stable sort groups the lookups by row, in lookup order; cumulative
sums then count flags. All sizes follow from the number of lookups, so nothing waits for a device, and no two lookups
write to the same place, so results do not depend on the order of writes.

Letters: N lookups of a group, N > 0, U distinct rows, T tables of the group, B bags. Rows are group rows, so those of a
table are adjacent.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """The bags of a batch on a device: lookups -> vectors; see `tiers.device.DeviceBags`."""

    num_vectors: int
    num_samples: int  # > 0: bag b fills vector b % num_samples * (V // num_samples) + b // num_samples
    vectors: Tensor  # (B,) int32; empty: by `num_samples`
    starts: Tensor  # (B + 1,) int64; empty: each bag has one lookup
    scales: Tensor  # (N,) float32; empty: all 1


@dataclass(frozen=True)
class LookupTensors:
    """Output tensors. `rows` and `counts` have N + 1 places, with undefined values from U on."""

    rows: Tensor  # (N + 1,) int32 or int64, as the input rows
    counts: Tensor  # (N + 1,) int32 lookups of each
    table_ends: Tensor  # (T,) int64 end of each table's rows
    inverse: Tensor  # (N,) int32 lookup -> distinct row
    vectors: Tensor  # (N,) int32 the vector of each lookup, by row
    scales: Tensor  # (N,) float32 their scales; empty: all 1


@dataclass(frozen=True)
class Sorted:
    """The lookups, sorted by row."""

    order: Tensor  # (N,) lookup at each place
    starts: Tensor  # (N,) first place of the same row
    numbers: Tensor  # (N,) distinct row at each place


def find_lookups(rows: Tensor, lookup_ends: Tensor, bags: Bags, out: LookupTensors) -> None:
    """Fill `out` from each lookup's row (N,) and the end of each table's lookups (T,) int64."""
    by_row = number_rows(rows, lookup_ends, out)
    group_lookups(by_row, bags, out)


def number_rows(rows: Tensor, lookup_ends: Tensor, out: LookupTensors) -> Sorted:
    """Fill the distinct rows, in order of first lookup and so by table, as the lookups are."""
    values, order = torch.sort(rows, stable=True)
    size, places = len(rows), _count(rows)
    begins = torch.ones(size, dtype=torch.bool, device=rows.device)  # the first lookup of its row
    torch.ne(values[1:], values[:-1], out=begins[1:])
    number = torch.cumsum(begins, 0) - 1  # of the row at each sorted place
    # Each row's first place is written once; all other lookups write to the extra place. A running maximum would give
    # the same, but torch's uses one thread block for a whole batch.
    heads = torch.empty(size + 1, dtype=torch.int64, device=rows.device)
    heads[torch.where(begins, number, size)] = places
    starts = heads[number]
    comes_first = torch.empty_like(begins)
    comes_first[order] = begins
    counts = torch.zeros(size + 1, dtype=torch.int64, device=rows.device)  # distinct rows before each lookup
    torch.cumsum(comes_first, 0, out=counts[1:])
    numbers = counts[order[starts]]
    out.inverse[order] = numbers.int()
    out.table_ends.copy_(counts[lookup_ends])
    ends = torch.ones_like(begins)
    ends[:-1] = begins[1:]
    to = torch.where(ends, numbers, size)  # the last lookup of each row writes, the others to the extra place
    out.counts[to] = (places - starts + 1).int()
    out.rows[to] = values
    return Sorted(order, starts, numbers)


def group_lookups(by_row: Sorted, bags: Bags, out: LookupTensors) -> None:
    """Fill the lookups by distinct row, those of a row in lookup order."""
    segments = torch.cumsum(out.counts, 0) - out.counts  # start of each row's lookups; undefined from U on
    to = segments[by_row.numbers] + _count(by_row.order) - by_row.starts
    out.vectors[to] = vectors_of_lookups(bags, len(by_row.order), by_row.order.device)[by_row.order].int()
    if len(bags.scales):
        out.scales[to] = bags.scales[by_row.order]


def vectors_of_lookups(bags: Bags, num_lookups: int, device: torch.device) -> Tensor:
    """(N,) the vector to which each lookup is added."""
    lookups = torch.arange(num_lookups, device=device)
    # The last bag that starts no later: empty bags with the same start come before it.
    bag = torch.searchsorted(bags.starts, lookups, right=True) - 1 if len(bags.starts) else lookups
    if len(bags.vectors):
        return bags.vectors[bag]
    columns = bags.num_vectors // bags.num_samples
    return bag % bags.num_samples * columns + bag // bags.num_samples


def _count(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device)
