"""Records of rows and slots for the distinct rows of a batch.

Letters: N lookups of a group of tables, U distinct rows, T tables of the group, S slots, B samples.

Rows are group rows. A row's *code* says where it is, and when it was last used:

- s + 1 in slot s; the slot has its latest use.
- 0 or less on the host: -code is 2 * (its latest batch + 1), plus 1 if the host stores the row. Otherwise it has its
  initial value. So 0 is a row that was never used.

All kernels release the GIL. They are serial, but for those of the training thread that divide a batch's records. Only
the thread that plans writes these arrays.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.counters import Counter
from adaptive.kernels.jit import at, in_parallel, kernel
from adaptive.kernels.vector.row_ops import prefetch_item

INITIAL, ON_HOST = 0, -1  # codes of rows that no batch used: not stored, stored on the host
MOST_BATCHES = 2**30 - 2  # twice a batch's number + 1 must fit a code
MOST_ACCESSES = 2**32 - 1
DIRTY, CHANGED = np.uint8(1), np.uint8(2)  # slot flags: changed since fetched; host copy is not the initial value
UPDATE, APPLY, DEFER, SKIP = range(4)
"""What a batch does with the gradient of a distinct row: update the row; add it to the row's sum, and apply that; add
it to the sum; skip it. From DEFER on the row is not written."""
S32 = np.uint64(32)
AHEAD = 96  # records to prefetch, each in its own cache line; 32 is a quarter slower, 192 a little
SLOTS_AHEAD = AHEAD // 2  # the record is in the cache by then
BLOCK = 1024  # slots that are compared together
FREE = 2**31 - 2  # "latest use" of a slot without a row, later than that of any batch: such slots are not idle

LOOKUPS, UNIQUE_ROWS = int(Counter.LOOKUPS), int(Counter.UNIQUE_ROWS)
LOOKUP_HITS, ROW_HITS = int(Counter.LOOKUP_HITS), int(Counter.ROW_HITS)
FETCHED, ADMITTED = int(Counter.FETCHED), int(Counter.ADMITTED)
WRITTEN_BACK, EVICTED = int(Counter.WRITTEN_BACK), int(Counter.EVICTED)
BYTES_H2D, BYTES_D2H = int(Counter.BYTES_H2D), int(Counter.BYTES_D2H)


class SlotColumns(NamedTuple):
    """Books of slots, (slots,) each. Slots repeat what eviction compares, so that it reads memory in order."""

    rows: NDArray[np.int64]  # the row in each, or -1; empty if every row of the group has a slot
    used: NDArray[np.int32]  # latest batch that needs the row, or `FREE`
    accesses: NDArray[np.uint32]  # of the row; or empty, if nothing orders rows by them
    flags: NDArray[np.uint8]  # DIRTY, CHANGED; those of the latest batches follow from `used` (`mark_used`)
    free: NDArray[np.int32]  # a stack of free slots, see `first_free`


class Entered(NamedTuple):
    """What `enter_batch` finds about distinct rows, (U,) each; the last two are empty without a hot set."""

    locations: NDArray[np.int64]  # slot, or -1
    missing: NDArray[np.int64]  # the u without a slot, from the first u of the tables on
    undo: NDArray[np.int32]  # for `leave_batch`
    row_entries: NDArray[np.int32]  # (rows,) entry + 1 of each row of the group in the hot set, or empty; not written
    seen: NDArray[np.uint32]  # accesses of each row, with this batch
    entries: NDArray[np.int32]  # copies of `row_entries`


class Taken(NamedTuple):
    """What `take_slots` decides, aligned with the rows that get slots."""

    slots: NDArray[np.int64]
    rows: NDArray[np.int64]
    initial: NDArray[np.bool_]  # the row still has its initial value
    is_late: NDArray[np.bool_]  # a batch in flight updates the row on the host


@kernel(inline=True)
def touch(row, count, accesses):
    """Count the lookups of a row."""
    # Clipped instead of wrapping around: the row of a default id can exceed 2**32 lookups.
    accesses[row] = min(np.int64(accesses[row]) + np.int64(count), MOST_ACCESSES)


@kernel(inline=True)
def host_code(latest, is_stored):
    """Code of a row on the host; latest: its latest batch + 1."""
    return -(2 * np.int64(latest) + np.int64(is_stored))


@kernel(inline=True)
def is_stored(code):
    """True if the host stores a row on the host; False: it has its initial value."""
    return (code & 1) != 0


@kernel()
def enter_batch(first_table, last_table, distinct, batch, records, slots, entered, tally):
    """Look up a batch's distinct rows in some tables; touch those on the device and hold their slots.

    distinct: see `lookups.Distinct`. Flags are left to `mark_used` and `release_slots`. Lookups, distinct rows and hits
    are added to tally (T, counters). Returns the end of the missing rows, which are touched later, once their place is
    decided. One pass, so that every record is loaded into the cache once.
    """
    rows, counts, _, table_ends = distinct
    codes, accesses = records
    _, slot_used, slot_accesses = slots[:3]
    locations, missing, undo, row_entries, seen, entries = entered
    num_missing = first = np.int64(0) if first_table == 0 else table_ends[first_table - 1]
    repeats = slot_accesses.size > 0
    for table in range(first_table, last_table):
        lookups = lookup_hits = row_hits = np.int64(0)
        for u in range(first, table_ends[table]):
            if u + AHEAD < rows.size:
                prefetch_item(codes, rows[at(u + AHEAD)])
                ahead = max(codes[at(rows[at(u + SLOTS_AHEAD)])] - 1, 0)
                prefetch_item(slot_used, ahead)
                if repeats:
                    prefetch_item(slot_accesses, ahead)
                if seen.size > 0:
                    prefetch_item(row_entries, rows[at(u + AHEAD)])
            row, count = at(rows[at(u)]), np.int64(counts[at(u)])
            lookups += count
            slot = np.int64(codes[row]) - 1
            if seen.size > 0:
                seen[at(u)] = min(np.int64(accesses[row]) + count, MOST_ACCESSES)
                entries[at(u)] = row_entries[row]
            locations[at(u)] = max(slot, -1)
            missing[at(num_missing)] = u  # if the row has a slot, the next one is written over it
            if slot >= 0:
                lookup_hits += count
                row_hits += 1
                touch(row, count, accesses)
                undo[at(u)], slot_used[at(slot)] = slot_used[at(slot)], batch
                if repeats:
                    slot_accesses[at(slot)] = accesses[row]
            else:
                num_missing += 1
        tally[table, LOOKUPS] += lookups
        tally[table, UNIQUE_ROWS] += table_ends[table] - first
        tally[table, LOOKUP_HITS] += lookup_hits
        tally[table, ROW_HITS] += row_hits
        first = table_ends[table]
    return num_missing


@kernel()
def enter_chunk(c, tables, ends, books_of_batch):
    ends[c] = enter_batch(tables[c], tables[c + 1], *books_of_batch)


@kernel()
def enter_chunks(tables, ends, *books_of_batch):
    """`enter_batch` by several threads, each for the tables from tables[c] (C + 1,) int64 on.

    books_of_batch: its other arguments. ends (C,) int64 receives the ends of what each of them writes to `missing`.
    Records of different tables, and slots of different rows, are different: results do not depend on the number of
    threads.
    """
    in_parallel(enter_chunk, ends.size, tables, ends, books_of_batch)


@kernel()
def leave_batch(distinct, entered, accesses, slots):
    """Undo `enter_batch` for the rows that were on the device."""
    rows, counts = distinct[:2]
    locations, _, undo = entered[:3]
    _, slot_used, slot_accesses = slots[:3]
    for u in range(rows.size):
        slot = locations[u]
        if slot < 0:
            continue
        row = at(rows[u])
        if accesses[row] < MOST_ACCESSES:  # a clipped count stays: the batch will be entered again
            accesses[row] -= np.uint32(counts[u])
        slot_used[slot] = undo[u]
        if slot_accesses.size > 0:
            slot_accesses[slot] = accesses[row]


@kernel()
def mark_used(slot_used, since, mark, slot_flags):
    """Add `mark` to the flags of slots used by batch `since` or later; returns the batch after the latest one."""
    end = since
    for slot in range(slot_used.size):  # when flags are read, instead of a write for each row of each batch
        used = np.int64(slot_used[slot])
        if (used >= since) & (used != FREE):
            slot_flags[slot] |= mark
            end = max(end, used + 1)
    return end


@kernel()
def idle_window(slot_used, oldest_held, start, limit):
    """Find a window with at most `limit` idle slots, from slot `start` on and around.

    A slot is idle if its row was last used by a batch before `oldest_held`. Returns the number of idle slots in the
    window, and the first idle slot after it: the window's end, or `start` if it has all slots.
    """
    count = 0
    num_slots = slot_used.size
    for part in range(2):
        first, last = (start, num_slots) if part == 0 else (0, start)
        for begin in range(first, last, BLOCK):
            used = slot_used[begin : min(begin + BLOCK, last)]
            in_block = 0
            for i in range(used.size):
                in_block += used[i] < oldest_held
            if count + in_block <= limit:
                count += in_block
                continue
            for i in range(used.size):
                if used[i] < oldest_held:
                    if count == limit:
                        return count, begin + i
                    count += 1
    return count, start


@kernel()
def list_idle(chunk, columns, oldest_held, bound, lists):
    """List the idle slots whose keys do not exceed a bound (uint64), and these keys.

    chunk (3,) int64: first slot, end, and place in `lists`, of slots (int64) and of keys, from which on they are
    listed; returns the list's end. columns: latest use of all slots (int32), high and low half of their keys (uint32).
    """
    used, first, second = columns
    idle, keys = lists
    place = chunk[2]
    high, low = np.uint32(bound >> S32), np.uint32(bound)
    for i in range(chunk[0], chunk[1]):
        slot = at(i)
        idle[at(place)] = i  # no branch: if the slot is not listed, the next one overwrites it
        keys[at(place)] = np.uint64(first[slot]) << S32 | np.uint64(second[slot])
        is_below = (first[slot] < high) | ((first[slot] == high) & (second[slot] <= low))
        place += (used[slot] < oldest_held) & is_below
    return place


@kernel()
def list_chunk(c, chunks, ends, columns, oldest_held, bound, lists):
    ends[c] = list_idle(chunks[c], columns, oldest_held, bound, lists)


@kernel()
def list_chunks(chunks, ends, columns, oldest_held, bound, lists):
    """`list_idle` by several threads, each for one of the chunks (C, 3); ends (C,) int64 receives their lists' ends."""
    in_parallel(list_chunk, ends.size, chunks, ends, columns, oldest_held, bound, lists)


@kernel()
def take_lowest(slots, keys, border, num_equal, end, lowest):
    """List slots (n,) with keys (n,) below a border, and the first `num_equal` of those with this key, in order.

    They are listed in `lowest` from `end` on. Returns what is left of `num_equal`, and the list's end.
    """
    for i in range(slots.size):
        is_equal, may_take = keys[i] == border, num_equal > 0
        lowest[at(end)] = slots[i]  # no branch: if the slot is not taken, the next one overwrites it
        end += (keys[i] < border) | (is_equal & may_take)
        num_equal -= is_equal & may_take
    return num_equal, end


@kernel(inline=True)
def table_of(row, index):
    """Table of a row. index: first row of each table (T + 1,), and the table of the first row of each 2**shift rows."""
    starts, tables, shift = index
    table = tables[at(row >> shift)]
    while row >= starts[at(table + 1)]:
        table += 1
    return table


@kernel(inline=True)
def first_free(free, place):
    """Slot at a place of the stack of free slots before any was taken: the last place has slot 0.

    `free` has the differences to these, so that a new stack is zeros, which take no memory.
    """
    return free.size - 1 - np.int64(place)


@kernel()
def release_slots(part, tally, evicted, slots, num_free, marked, codes, index, back):
    """Evict the rows of the slots evicted[first:last], part (2,); list those to write back, and free the slots.

    index: see `table_of`. marked: a batch and flags; slots used by that batch or later have these flags, too
    (`mark_used`). back: slots and rows (n,) int64, which receive those to write back from `first` on. Freed slots are
    in the stack from num_free + first on. Returns the end of the list.
    """
    first, last = part
    since, mark = marked
    slot_rows, slot_used, _, slot_flags, free = slots
    back_slots, back_rows = back
    num_back = first
    for i in range(first, last):
        if i + 2 * AHEAD < last:  # these slots ascend, but too far apart for the processor to prefetch them
            ahead = evicted[at(i + 2 * AHEAD)]
            prefetch_item(slot_rows, ahead)
            prefetch_item(slot_used, ahead)
            prefetch_item(slot_flags, ahead)
        if i + AHEAD < last:
            prefetch_item(codes, slot_rows[at(evicted[at(i + AHEAD)])])
        slot = at(evicted[at(i)])
        row, used = slot_rows[slot], slot_used[slot]
        flags = slot_flags[slot] | (mark if used >= since else np.uint8(0))
        table = table_of(row, index)
        is_dirty = np.int64(flags & DIRTY)
        # Any flag means that the host will have other values than the initial ones: DIRTY rows are written back before
        # the slot is used again, CHANGED ones are stored already.
        back_slots[at(num_back)], back_rows[at(num_back)] = slot, row  # overwritten by the next one if not dirty
        num_back += is_dirty
        tally[at(table), EVICTED] += 1
        tally[at(table), WRITTEN_BACK] += is_dirty
        codes[at(row)] = host_code(used + 1, flags != 0)
        slot_rows[slot] = -1
        slot_used[slot] = FREE
        slot_flags[slot] = 0
        free[at(num_free + i)] = slot - first_free(free, num_free + i)
    return num_back


@kernel()
def release_chunk(c, bounds, ends, tallies, books_of_group):
    ends[c] = release_slots((bounds[c], bounds[c + 1]), tallies[c], *books_of_group)


@kernel()
def release_chunks(bounds, ends, tallies, *books_of_group):
    """`release_slots` by several threads; bounds (C + 1,) int64 are those of their parts of `evicted`.

    ends (C,) int64 receives the ends of their lists, tallies (C, T, counters) what they count.
    """
    in_parallel(release_chunk, ends.size, bounds, ends, tallies, books_of_group)


@kernel()
def take_slots(part, admitted, distinct, locations, records, slots, num_free, held, taken):
    """Give each missing distinct row of admitted[first:last], part (2,), a free slot, and touch it.

    Slots are from the end of the stack. held: the batch, for which they are held, and the oldest batch in flight. A row
    that one of these updates on the host is late, and not initial: rows used on the host are stored there.
    """
    first, last = part
    batch, oldest_held = held
    rows, counts = distinct[:2]
    codes, accesses = records
    slot_rows, slot_used, slot_accesses, slot_flags, free = slots
    taken_slots, taken_rows, initial, is_late = taken
    all_fit = slot_rows.size == 0
    for i in range(first, last):
        if i + AHEAD < last:
            prefetch_item(codes, rows[at(admitted[at(i + AHEAD)])])
            if not all_fit:
                place = num_free - 1 - i - AHEAD
                prefetch_item(slot_rows, free[at(place)] + first_free(free, place))
        u, place = at(admitted[at(i)]), num_free - 1 - i
        row, slot = rows[u], free[at(place)] + first_free(free, place)
        code = codes[at(row)]
        is_initial = not is_stored(code)
        initial[at(i)] = is_initial
        # -code >> 1 is the row's latest batch + 1: above `oldest_held`, that batch is not trained yet.
        is_late[at(i)] = (-code >> 1 > oldest_held) & (not is_initial)
        touch(at(row), counts[u], accesses)
        codes[at(row)] = slot + 1
        slot_flags[at(slot)] = np.uint8(0) if is_initial else CHANGED
        slot_used[at(slot)] = batch
        if not all_fit:
            slot_rows[at(slot)] = row
        if slot_accesses.size > 0:
            slot_accesses[at(slot)] = accesses[at(row)]
        locations[u] = slot
        taken_slots[at(i)], taken_rows[at(i)] = slot, row


@kernel()
def take_chunk(c, bounds, books_of_batch):
    take_slots((bounds[c], bounds[c + 1]), *books_of_batch)


@kernel()
def take_chunks(bounds, *books_of_batch):
    """`take_slots` by several threads; bounds (C + 1,) int64 are those of their parts of `admitted`."""
    in_parallel(take_chunk, bounds.size - 1, bounds, books_of_batch)


@kernel()
def use_rows_on_host(missing, distinct, batch, records, locations, fresh):
    """Set location ~row for those of the rows `missing` without a slot, and touch them.

    Rows still at their initial value are listed in `fresh`; returns their number.
    """
    rows, counts = distinct[:2]
    codes, accesses = records
    num_fresh = 0
    for i in range(missing.size):
        u = missing[i]
        if locations[u] < 0:
            row = rows[u]
            locations[u] = ~row
            touch(row, counts[u], accesses)
            if not is_stored(codes[row]):
                fresh[num_fresh] = row
                num_fresh += 1
            codes[row] = host_code(batch + 1, True)
    return num_fresh


@kernel()
def mark_dirty(updated, locations, slot_flags):
    """Set DIRTY for the slots of the distinct rows `updated`."""
    for i in range(updated.size):
        if i + AHEAD < updated.size:
            prefetch_item(slot_flags, max(locations[at(updated[at(i + AHEAD)])], 0))
        location = locations[at(updated[at(i)])]
        if location >= 0:
            slot_flags[at(location)] |= DIRTY


@kernel()
def add_norms(rows, norms, totals):
    """totals[row] += norm"""
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch_item(totals, rows[i + AHEAD])
        totals[at(rows[i])] += norms[i]


@kernel()
def gather_records(rows, records, slot_used, out):
    """Copy the records of `rows` for a policy; out: accesses, latest batches, slots, the last two -1 for none."""
    codes, accesses = records
    out_accesses, out_last, out_slots = out
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch_item(codes, rows[i + AHEAD])
        row = at(rows[i])
        code = np.int64(codes[row])
        out_accesses[i] = accesses[row]
        out_last[i] = slot_used[at(code - 1)] if code > 0 else (-code >> 1) - 1
        out_slots[i] = max(code - 1, -1)


@kernel()
def tables_of(rows, index, tables):
    """tables[i] = table of rows[i]; index: see `table_of`."""
    for i in range(rows.size):
        tables[i] = table_of(rows[i], index)


@kernel()
def mark_next_access(rows, codes, batch, slot_next):
    """slot_next[slot] = batch for rows on the device; call it for the nearest batch last."""
    for u in range(rows.size):
        code = codes[rows[u]]
        if code > 0:
            slot_next[code - 1] = batch


@kernel()
def count_host_vectors(bag_tables, bag_starts, inverse, locations, vectors):
    """Add to vectors (T,) the number of bags of each table with at least one row on the host."""
    for bag in range(bag_tables.size):
        for p in range(bag_starts[bag], bag_starts[bag + 1]):
            if locations[inverse[p]] < 0:
                vectors[bag_tables[bag]] += 1
                break


@kernel()
def count_taken(admitted, table_ends, tally):
    """Count in tally (T, counters) the distinct rows admitted (n,) that get a slot; they ascend.

    These counts are loops because numpy's, with caches cold after the dense part, take 20 to 40 us each.
    """
    u = 0
    for table in range(table_ends.size):
        first = u
        while u < admitted.size and admitted[u] < table_ends[table]:
            u += 1
        tally[table, FETCHED] += u - first
        tally[table, ADMITTED] += u - first


@kernel()
def count_bytes(row_bytes, tally):
    """Count in tally (T, counters) the bytes of rows that were fetched and written back."""
    for table in range(tally.shape[0]):
        tally[table, BYTES_H2D] += tally[table, FETCHED] * row_bytes
        tally[table, BYTES_D2H] += tally[table, WRITTEN_BACK] * row_bytes


@kernel()
def add_counts(first, tally, counts):
    """Add a batch's counts (T, counters) to those of all tables, from table `first` on."""
    for table in range(tally.shape[0]):
        for counter in range(tally.shape[1]):
            counts[first + table, counter] += tally[table, counter]
