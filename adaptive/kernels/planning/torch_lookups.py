"""What `lookups` computes of a batch's look-ups, in torch operations: distinct rows in order, look-ups by row.

Equal to `lookups`, number by number. A stable sort brings the look-ups of a row together, in look-up order; what is
then counted are flags, by cumulative sums. Every size follows from the number of look-ups, so nothing waits for a
device to tell one, and no two look-ups write to one place, so nothing depends on which of them comes first.

Letters: N look-ups of a group, N > 0, U distinct rows, T tables of the group, B bags. Rows are numbered through within
the group, so a table's are beside each other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """Which look-ups make which vector, as a device is told; see `tiers.gpu.sent_plan.SentBags`."""

    num_vectors: int
    num_samples: int  # > 0: bag b fills vector b % num_samples * (V // num_samples) + b // num_samples
    vectors: Tensor  # (B,) int32; empty: by `num_samples`
    starts: Tensor  # (B + 1,) int64; empty: each bag has one look-up
    scales: Tensor  # (N,) float32; empty: all 1


@dataclass(frozen=True)
class Found:
    """Memory for what is found. `rows` and `counts` have N + 1 places; from U on they hold nothing of meaning."""

    rows: Tensor  # (N + 1,) int32 or int64, as those given
    counts: Tensor  # (N + 1,) int32 look-ups of each
    table_ends: Tensor  # (T,) int64 where each table's rows end
    inverse: Tensor  # (N,) int32 look-up -> distinct row
    vectors: Tensor  # (N,) int32 the vector of each look-up, by row
    scales: Tensor  # (N,) float32 their scales; empty: all 1


@dataclass(frozen=True)
class Sorted:
    """The look-ups, sorted by row."""

    order: Tensor  # (N,) which look-up is where
    starts: Tensor  # (N,) where the look-ups of the same row begin
    numbers: Tensor  # (N,) its distinct row


def find_lookups(rows: Tensor, lookup_ends: Tensor, bags: Bags, found: Found) -> None:
    """All of `found`, from the row of each look-up (N,) and where each table's look-ups end (T,) int64."""
    by_row = number_rows(rows, lookup_ends, found)
    group_lookups(by_row, bags, found)


def number_rows(rows: Tensor, lookup_ends: Tensor, found: Found) -> Sorted:
    """Distinct rows, in order of first look-up. Look-ups are ordered by table, so the rows are, too."""
    values, order = torch.sort(rows, stable=True)
    size, places = len(rows), _count(rows)
    begins = torch.ones(size, dtype=torch.bool, device=rows.device)  # the first look-up of its row
    torch.ne(values[1:], values[:-1], out=begins[1:])
    number = torch.cumsum(begins, 0) - 1  # of the row at each sorted place
    # Each row's first place, once; all others write behind all rows. A running maximum would be the same, but torch's
    # takes one thread block for a whole batch.
    heads = torch.empty(size + 1, dtype=torch.int64, device=rows.device)
    heads[torch.where(begins, number, size)] = places
    starts = heads[number]
    comes_first = torch.empty_like(begins)
    comes_first[order] = begins
    before = torch.zeros(size + 1, dtype=torch.int64, device=rows.device)  # rows that come first before a look-up
    torch.cumsum(comes_first, 0, out=before[1:])
    numbers = before[order[starts]]
    found.inverse[order] = numbers.int()
    found.table_ends.copy_(before[lookup_ends])
    ends = torch.ones_like(begins)
    ends[:-1] = begins[1:]
    to = torch.where(ends, numbers, size)  # one look-up of each row tells; the others write behind all rows
    found.counts[to] = (places - starts + 1).int()
    found.rows[to] = values
    return Sorted(order, starts, numbers)


def group_lookups(by_row: Sorted, bags: Bags, found: Found) -> None:
    """The look-ups by distinct row, those of a row in look-up order."""
    segments = torch.cumsum(found.counts, 0) - found.counts  # where each row's look-ups start; nothing from U on
    to = segments[by_row.numbers] + _count(by_row.order) - by_row.starts
    found.vectors[to] = vectors_of_lookups(bags, len(by_row.order), by_row.order.device)[by_row.order].int()
    if len(bags.scales):
        found.scales[to] = bags.scales[by_row.order]


def vectors_of_lookups(bags: Bags, num_lookups: int, device: torch.device) -> Tensor:
    """(N,) the vector to which each look-up is added."""
    lookups = torch.arange(num_lookups, device=device)
    # The last bag that starts no later: empty ones that start there come before it.
    bag = torch.searchsorted(bags.starts, lookups, right=True) - 1 if len(bags.starts) else lookups
    if len(bags.vectors):
        return bags.vectors[bag]
    columns = bags.num_vectors // bags.num_samples
    return bag % bags.num_samples * columns + bag // bags.num_samples


def _count(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device)
