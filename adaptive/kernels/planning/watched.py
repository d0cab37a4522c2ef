"""Books of watched rows: entries of the hot set, due snapshots, deferred updates.

Letters: U distinct rows of a batch, n of them watched, T tables of the group, H entries of the hot set.

A batch's watched rows are given by their `places` (n,) int32 among its distinct rows, ascending, and their `entries`
(n,) int32. Fates: see `books`. Arrays are columns of records, so that a row is found in one cache line and its record
is in another.
"""

import numpy as np

from adaptive.counters import Counter
from adaptive.kernels.jit import at, kernel
from adaptive.kernels.planning.books import DUE, MOST_ACCESSES, NOW, SKIPPED, WAITS
from adaptive.kernels.planning.lookups import HASH, S32
from adaptive.kernels.vector.row_ops import prefetch_item


@kernel()
def enter_rows(rows, keys, values, count, places):
    """Look up rows in a hash table and enter new ones with the next numbers, from `count` on.

    rows (n,) int64; keys int64 (-1 = empty) and values int32 are the hash table, a power of two with room for n more
    rows. Outputs: places (n,) int64 number of each row. Returns the new count.
    """
    mask = np.uint64(keys.size - 1)
    for i in range(rows.size):
        row = rows[i]
        h = home(row, mask)
        while keys[h] != row and keys[h] != -1:
            h = (h + ONE) & mask
        if keys[h] == -1:
            keys[h], values[h] = row, count
            count += 1
        places[i] = values[h]
    return count


SKIPPED_UPDATES, SKIPPED_LOOKUPS = int(Counter.SKIPPED_UPDATES), int(Counter.SKIPPED_LOOKUPS)
DEFERRED_UPDATES = int(Counter.DEFERRED_UPDATES)
ONE = np.uint64(1)
MOST_VISITS = 2**16 - 1  # between two snapshots, as the books have room for
AHEAD = 64  # records to prefetch, each in its own cache line; 16 takes 1.6 times as long
SHORTER = 4  # the first interval is shorter by 2**SHORTER, the second by half of that, and so on


@kernel(inline=True)
def home(row, mask):
    """Start of the search for a row. Unsigned, so that numba checks no negative indices."""
    return ((np.uint64(row) * HASH) >> S32) & mask


@kernel()
def find_entries(rows, seen, min_accesses, row_entries, entry_rows, num_entries, places, entries):
    """List the watched rows among a batch's distinct rows; enter rows with enough lookups.

    rows (U,) int64; seen (U,) uint32: lookups of each so far; entries (U,) int32: entry + 1 of each, 0 without one, as
    in row_entries (rows of the group,) int32; entry_rows (H,) int64. Outputs: places (U,) int32 of the watched rows,
    and, from the start of `entries`, their entries. Returns the numbers of entries and of watched rows.
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
        places[at(count)], entries[at(count)] = u, entry - 1  # if it is not watched, the next one replaces it
        count += entry > 0
    return num_entries, count


@kernel()
def lookup_entries(rows, keys, values, entries):
    """entries[i] = the number of rows[i] in the hash table of `enter_rows`, or -1."""
    mask = np.uint64(keys.size - 1)
    for i in range(rows.size):
        row = rows[i]
        h = home(row, mask)
        while keys[h] != row and keys[h] != -1:
            h = (h + ONE) & mask
        entries[i] = values[h] if keys[h] == row else -1


@kernel()
def visit_entries(
    places,
    entries,
    most_entries,
    weight,
    counts,
    locations,
    min_accesses,
    min_visits,
    entry_visits,
    entry_accesses,
    entry_snapshots,
    entry_saturated,
    entry_skipped,
    fates,
    due,
    chosen,
):
    """Count the lookups of watched rows, mark saturated ones, and list due snapshots, of entries below `most_entries`.

    Lookups and visits of this batch count `weight` times: it stands for so many batches.
    A snapshot is due when a row is first seen (entry_visits int32 is -1), and after `min_accesses` lookups in
    `min_visits` batches since the latest one; the first intervals are shorter (entry_snapshots uint8 counts them). It
    is taken after the batch's update. So an update skipped in this batch, or since the latest snapshot (entry_skipped),
    makes the movement unknown.

    Outputs: fates (U,) uint8, SKIPPED where saturated; due: of the due snapshots, in order, location int64, entry
    int32, has_earlier (bool: an earlier snapshot exists and every update since then was written), accesses and visits
    int64 since then. chosen (n,) int32 is scratch. Returns the number of due snapshots.
    """
    due_locations, due_entries, has_earlier, due_accesses, due_visits = due
    num_due = num_chosen = 0
    for i in range(places.size):  # without branches, which would be unpredictable
        chosen[at(num_chosen)] = i
        num_chosen += entries[i] < most_entries
    for j in range(num_chosen):
        if j + AHEAD < num_chosen:
            prefetch_item(entry_visits, entries[at(chosen[at(j + AHEAD)])])
        u, entry = places[at(chosen[at(j)])], entries[at(chosen[at(j)])]
        seen = min(np.int64(entry_accesses[entry]) + np.int64(counts[u]) * weight, MOST_ACCESSES)
        first = entry_visits[entry] < 0
        visits = min(max(entry_visits[entry], 0) + weight, MOST_VISITS)
        shorter = max(SHORTER + 1 - np.int64(entry_snapshots[entry]), 0)
        if entry_saturated[entry]:
            fates[u] = SKIPPED
            entry_skipped[entry] = True
        if first or (seen >= min_accesses >> shorter and visits >= min_visits >> shorter):
            due_locations[num_due] = locations[u]
            due_entries[num_due] = entry
            has_earlier[num_due] = not first and not entry_skipped[entry]
            due_accesses[num_due] = seen
            due_visits[num_due] = visits
            num_due += 1
            seen = visits = 0
            entry_skipped[entry] = False
            entry_snapshots[entry] = min(np.int64(entry_snapshots[entry]) + 1, SHORTER + 1)
        entry_visits[entry] = visits
        entry_accesses[entry] = seen
    return num_due


@kernel(inline=True)
def waits_longer(waited, visited, every, at_most, rule_waits):
    """True if waited + 1 < k, for the visit number `visited` of a row whose gradient has waited for `waited` visits."""
    return (waited + 1 < at_most) & ((waited + 2) * every <= visited) & (waited < np.int64(rule_waits))


@kernel()
def defer_visits(
    places,
    entries,
    counts,
    seen,
    every,
    at_most,
    rule_waits,
    by_rule,
    visits,
    waiting,
    fates,
    summed,
    summed_entries,
    due,
):
    """Decide which watched rows accumulate their gradients; see `policy.SkipRule`.

    seen (U,) uint32: lookups of each row so far; visits and waiting (H,) uint32 are the books; rule_waits (H,) uint8:
    the rule's answers - 1, used if `by_rule`. Outputs: fates (U,) uint8 of rows with a sum; summed int32 (distinct
    rows) and summed_entries int32; due int32: positions in `summed` of the sums applied after this batch. Returns the
    numbers of summed and due rows.
    """
    num_new = num_summed = num_due = 0
    for i in range(places.size):
        if i + AHEAD < places.size:
            prefetch_item(visits, entries[at(i + AHEAD)])
        u, entry = at(places[at(i)]), at(entries[at(i)])
        if fates[u] == SKIPPED:
            continue
        due[at(num_new)] = i
        num_new += visits[entry] == 0
        visited, waited = np.int64(visits[entry]) + 1, np.int64(waiting[entry])
        waits = waits_longer(waited, visited, every, at_most, rule_waits[entry] if by_rule else waited + 1)
        visits[entry], waiting[entry] = visited, waits * (waited + 1)
        fates[u] = WAITS * waits + DUE * (~waits & (waited > 0))
    for j in range(num_new):  # just admitted: estimate its visits from its lookups at this batch's rate
        u, entry = at(places[at(due[at(j)])]), at(entries[at(due[at(j)])])
        visited = max(np.int64(seen[u]) // np.int64(counts[u]), np.int64(1))
        waits = waits_longer(np.int64(0), visited, every, at_most, rule_waits[entry] if by_rule else np.int64(1))
        visits[entry], waiting[entry], fates[u] = visited, waits, WAITS * waits
    for i in range(places.size):
        # Written for every row and counted for some: unpredictable branches would take most of the time.
        u = at(places[at(i)])
        due[at(num_due)] = num_summed
        num_due += fates[u] == DUE
        summed[at(num_summed)], summed_entries[at(num_summed)] = u, entries[at(i)]
        num_summed += (fates[u] == DUE) | (fates[u] == WAITS)
    return num_summed, num_due


@kernel()
def divide_rows(distinct, fates, deferred, written, tally):
    """List the distinct rows that are updated now, ascending, and then those of the sums due; return the number now.

    distinct: rows (U,), counts (U,) and table_ends (T,). written (U,) int32 and (U,) int64 receive their places and
    rows; deferred: summed and due, see `defer_visits`. Adds to tally (T, counters) the rows not written, their lookups,
    and deferred rows.
    """
    (rows, counts, table_ends), (summed, due), (places, written_rows) = distinct, deferred, written
    first = num_now = 0
    for table in range(table_ends.size):
        updates = lookups = waiting = 0
        of_table, table_counts = fates[first : table_ends[table]], counts[first : table_ends[table]]
        for i in range(of_table.size):  # apart from the next loop, so that vector instructions count
            is_skipped = of_table[i] >= WAITS
            updates += is_skipped
            lookups += is_skipped * np.int64(table_counts[i])
            waiting += of_table[i] == WAITS
        for u in range(first, table_ends[table]):
            places[at(num_now)], written_rows[at(num_now)] = u, rows[at(u)]  # if it is not, the next one replaces it
            num_now += fates[at(u)] == NOW
        tally[table, SKIPPED_UPDATES] += updates
        tally[table, SKIPPED_LOOKUPS] += lookups
        tally[table, DEFERRED_UPDATES] += waiting
        first = table_ends[table]
    for i in range(due.size):
        u = summed[at(due[i])]
        places[at(num_now + i)], written_rows[at(num_now + i)] = u, rows[at(u)]
    return num_now
