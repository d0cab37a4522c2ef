"""Books of hot rows: entries of the hot set, sizes of their updates, deferred updates.

Letters: U distinct rows of a batch, n of them hot, T tables of the group, H entries of the hot set.

A batch's hot rows are given by their `places` (n,) int32 among its distinct rows, ascending, and their `entries`
(n,) int32. Fates: see `books`. Arrays are columns of records, so that a row is found in one cache line and its record
is in another.
"""

import math

import numpy as np

from adaptive.counters import Counter
from adaptive.kernels.jit import at, kernel
from adaptive.kernels.planning.books import APPLY, DEFER, SKIP, UPDATE
from adaptive.kernels.vector.row_ops import prefetch_item

SKIPPED_UPDATES, SKIPPED_LOOKUPS = int(Counter.SKIPPED_UPDATES), int(Counter.SKIPPED_LOOKUPS)
DEFERRED_UPDATES = int(Counter.DEFERRED_UPDATES)
AHEAD = 64  # records to prefetch, each in its own cache line; 16 takes 1.6 times as long
FOLLOWS = np.float32(0.125)  # share of a new update's size in the running mean


@kernel()
def find_entries(rows, seen, min_accesses, row_entries, entry_rows, num_entries, places, entries):
    """List the hot rows among a batch's distinct rows; enter rows with enough lookups.

    rows (U,) int64; seen (U,) uint32: lookups of each so far; entries (U,) int32: entry + 1 of each, 0 without one, as
    in row_entries (rows of the group,) int32; entry_rows (H,) int64. Outputs: places (U,) int32 of the hot rows,
    and, from the start of `entries`, their entries. Returns the numbers of entries and of hot rows.
    """
    num_often = count = 0
    for u in range(rows.size):  # apart from the next loop, because this is unpredictable
        places[at(num_often)] = u
        num_often += seen[at(u)] >= min_accesses
    for i in range(num_often):
        u = places[at(i)]
        entry = entries[at(u)]
        if entry == 0 and num_entries < entry_rows.size:
            entry_rows[num_entries] = rows[at(u)]
            num_entries += 1
            entry = row_entries[rows[at(u)]] = num_entries
        places[at(count)], entries[at(count)] = u, entry - 1  # if it is not hot, the next one replaces it
        count += entry > 0
    return num_entries, count


@kernel()
def learn_sizes(rows, norms, applied_visits, row_entries, sizes):
    """Let the running means of hot rows' update sizes follow the updates of a trained batch.

    rows (n,) int64 that were updated, the last k of them with the sum of applied_visits (k,) int32 gradients; norms (2,
    n) float32 of each update and of the row before it; row_entries as in `find_entries`. sizes (H,) float32, NaN: none.

    An update with a sum counts as its visits, each moving the row by 1 / sqrt(visits) of it: gradients that point
    anywhere move a row as in a random walk. If they agree, the row moves further, so the size grows.
    """
    num_now = rows.size - applied_visits.size
    for i in range(rows.size):
        if i + AHEAD < rows.size:  # most of the time goes into misses of the cache
            prefetch_item(row_entries, rows[at(i + AHEAD)])
        entry = row_entries[at(rows[at(i)])] - 1
        if entry < 0:
            continue
        norm, visits = norms[0, at(i)], 1
        size = norm / norms[1, at(i)] if norm != 0 else np.float32(0.0)
        share = FOLLOWS
        if i >= num_now:  # as if each of the visits had been measured, one after the other
            visits = applied_visits[at(i - num_now)]
            size /= np.float32(math.sqrt(visits))
            stays = np.float32(1.0)
            for _ in range(visits):
                stays *= np.float32(1.0) - FOLLOWS
            share = np.float32(1.0) - stays
        old = sizes[entry]
        sizes[entry] = old + share * (size - old) if old == old else size


@kernel()
def defer_visits(places, entries, answers, deferred, actions, summed, summed_entries, applied, applied_visits):
    """Decide what happens to the gradients of hot rows; see `policy.SkipRule.visits`.

    answers (H,) uint8 of the rule: visits over which a row's gradients are accumulated, 0: updates are skipped;
    deferred (H,) uint8: gradients in the row's sum. Outputs: actions (U,) uint8 of rows that are not updated now;
    summed int32 (distinct rows) and summed_entries int32; applied int32: positions in `summed` of the sums applied
    after this batch, and applied_visits int32: gradients in each. Returns the numbers of summed and applied rows.
    """
    num_summed = num_applied = 0
    for i in range(places.size):
        if i + AHEAD < places.size:
            prefetch_item(answers, entries[at(i + AHEAD)])
        u, entry = at(places[at(i)]), at(entries[at(i)])
        so_far, answer = np.int64(deferred[entry]), np.int64(answers[entry])
        defers = so_far + 1 < answer
        deferred[entry] = defers * (so_far + 1)
        actions[u] = DEFER * defers + APPLY * (~defers & (so_far > 0)) + SKIP * ((answer == 0) & (so_far == 0))
        # Written for every row and counted for some: unpredictable branches would take most of the time.
        applied[at(num_applied)], applied_visits[at(num_applied)] = num_summed, so_far + 1
        num_applied += actions[u] == APPLY
        summed[at(num_summed)], summed_entries[at(num_summed)] = u, entries[at(i)]
        num_summed += (actions[u] == APPLY) | (actions[u] == DEFER)
    return num_summed, num_applied


@kernel()
def divide_rows(distinct, actions, sums, written, tally):
    """List the distinct rows that are updated now, ascending, and then those of the sums applied; return the number
    now.

    distinct: rows (U,), counts (U,) and table_ends (T,). written (U,) int32 and (U,) int64 receive their places and
    rows; sums: summed and applied, see `defer_visits`. Adds to tally (T, counters) the rows not written, their lookups,
    and deferred rows.
    """
    (rows, counts, table_ends), (summed, applied), (places, written_rows) = distinct, sums, written
    first = num_now = 0
    for table in range(table_ends.size):
        updates = lookups = deferred = 0
        of_table, table_counts = actions[first : table_ends[table]], counts[first : table_ends[table]]
        for i in range(of_table.size):  # apart from the next loop, so that vector instructions count
            is_skipped = of_table[i] >= DEFER
            updates += is_skipped
            lookups += is_skipped * np.int64(table_counts[i])
            deferred += of_table[i] == DEFER
        for u in range(first, table_ends[table]):
            places[at(num_now)], written_rows[at(num_now)] = u, rows[at(u)]  # if it is not, the next one replaces it
            num_now += actions[at(u)] == UPDATE
        tally[table, SKIPPED_UPDATES] += updates
        tally[table, SKIPPED_LOOKUPS] += lookups
        tally[table, DEFERRED_UPDATES] += deferred
        first = table_ends[table]
    for i in range(applied.size):
        u = summed[at(applied[i])]
        places[at(num_now + i)], written_rows[at(num_now + i)] = u, rows[at(u)]
    return num_now
