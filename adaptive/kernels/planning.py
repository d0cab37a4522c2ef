"""What the look-ahead thread computes about ids: distinct rows, where they lie, slots, look-ups grouped by row.

Letters: N look-ups of a group of tables, U distinct rows, T tables of the group, S slots, B samples.

Rows are numbered through within a group: row = table_starts[t] + id. The record of a row is a slot *code*:
0 = on the host, still at its initial value; -1 = on the host, changed at some time; s + 1 = in slot s.
All kernels are serial and release the GIL. Only the look-ahead thread writes these arrays, and those that help it
(`adaptive.tiers.crew`), each its own tables or rows of a batch.
"""

import numpy as np

from adaptive.counters import Counter
from adaptive.kernels.cpu import AHEAD
from adaptive.kernels.jit import kernel
from adaptive.kernels.prefetch import prefetch_item

INITIAL, ON_HOST = 0, -1
MOST_ACCESSES = 2**32 - 1
DIRTY, CHANGED = np.uint8(1), np.uint8(2)  # slot flags: changed since it came; its host copy is not the initial value
NOW, DUE, WAITS, SKIPPED = range(4)
"""The *fate* of a distinct row's gradient: it updates the row; it goes to a sum, which is then applied; it goes to a
sum; it is left out. From WAITS on the row is not written."""
HASH = np.uint64(0x9E3779B97F4A7C15)
S32 = np.uint64(32)
S22 = np.uint32(22)

LOOKUPS, UNIQUE_ROWS = int(Counter.LOOKUPS), int(Counter.UNIQUE_ROWS)
LOOKUP_HITS, ROW_HITS = int(Counter.LOOKUP_HITS), int(Counter.ROW_HITS)
FETCHED, WRITTEN_BACK = int(Counter.FETCHED), int(Counter.WRITTEN_BACK)
PROMOTED, DEMOTED = int(Counter.PROMOTED), int(Counter.DEMOTED)


@kernel()
def distinct_rows(ids, spans, span_tables, table_sizes, table_starts, keys, places, rows, counts, inverse, table_ends):
    """Find the distinct rows of a batch, table by table, in order of first look-up.

    ids (all look-ups of the batch) int64; spans (features, 2) int64 [first, last) look-up of each feature of the
    group, ordered by table; span_tables (features,) int32; keys int64 and places int32 are hash scratch of at least
    twice the look-ups of any one table, a power of two. Outputs: rows (U,) int64, counts (U,) int32 look-ups of
    each, inverse (N,) int32 look-up -> distinct row, table_ends (T,) int64 end of each table's rows in `rows`.

    Returns U, or -(p + 1) if ids[p] lies outside its table.
    """
    num_features = spans.shape[0]
    found = 0
    at = 0
    feature = 0
    for table in range(table_sizes.size):
        table_lookups = 0
        last_feature = feature
        while last_feature < num_features and span_tables[last_feature] == table:
            table_lookups += spans[last_feature, 1] - spans[last_feature, 0]
            last_feature += 1
        size, start = table_sizes[table], table_starts[table]
        capacity = 16
        while capacity < 2 * table_lookups:
            capacity *= 2
        direct = size <= capacity  # a small table needs no hashing
        mask = capacity - 1
        for i in range(size if direct else capacity):
            keys[i] = -1
        for f in range(feature, last_feature):
            for p in range(spans[f, 0], spans[f, 1]):
                row = ids[p]
                if row < 0 or row >= size:
                    return -(p + 1)
                h = row if direct else np.int64((np.uint64(row) * HASH) >> S32) & mask
                while keys[h] != row and keys[h] != -1:
                    h = (h + 1) & mask
                if keys[h] == -1:
                    keys[h] = row
                    places[h] = found
                    rows[found] = start + row
                    counts[found] = 0
                    found += 1
                counts[places[h]] += 1
                inverse[at] = places[h]
                at += 1
        table_ends[table] = found
        feature = last_feature
    return found


@kernel()
def locate(rows, codes, locations, missing):
    """locations[u] = slot of rows[u], or -1; the others' u are listed in `missing`. Returns how many are missing.

    Reads only: nothing has changed if planning stops here.
    """
    num_missing = 0
    for u in range(rows.size):
        if u + AHEAD < rows.size:
            prefetch_item(codes, rows[u + AHEAD])
        code = codes[rows[u]]
        if code > 0:
            locations[u] = code - 1
        else:
            locations[u] = -1
            missing[num_missing] = u
            num_missing += 1
    return num_missing


@kernel()
def hold(locations, batch, slot_used):
    """Keep the slots of a batch's rows from being released."""
    for u in range(locations.size):
        if locations[u] >= 0:
            slot_used[locations[u]] = batch


@kernel()
def count_tables(table_ends, counts, locations, tally):
    """Add look-ups, distinct rows and hits to tally (T, counters)."""
    first = 0
    for table in range(table_ends.size):
        lookups = lookup_hits = row_hits = 0
        for u in range(first, table_ends[table]):
            lookups += counts[u]
            if locations[u] >= 0:
                lookup_hits += counts[u]
                row_hits += 1
        tally[table, LOOKUPS] += lookups
        tally[table, UNIQUE_ROWS] += table_ends[table] - first
        tally[table, LOOKUP_HITS] += lookup_hits
        tally[table, ROW_HITS] += row_hits
        first = table_ends[table]


@kernel()
def idle_slots(slot_rows, slot_used, oldest_held, start, limit, idle):
    """List at most `limit` slots, from slot `start` on and around, that hold a row no planned batch needs.

    A slot is idle if its row was last used by a batch before `oldest_held`. Returns how many were listed and where
    the next search should start.
    """
    found = 0
    num_slots = slot_rows.size
    for step in range(num_slots):
        slot = start + step
        if slot >= num_slots:
            slot -= num_slots
        if slot_rows[slot] >= 0 and slot_used[slot] < oldest_held:
            if found == limit:
                return found, slot
            idle[found] = slot
            found += 1
    return found, start


@kernel()
def release_slots(victims, slot_rows, slot_flags, codes, free, num_free, table_starts, back_slots, back_rows, tally):
    """Take the rows of the slots `victims` off the device: list those to write back, push the slots on `free`.

    Returns the number of rows to write back; free holds num_free + len(victims) slots afterwards.
    """
    num_back = 0
    for i in range(victims.size):
        if i + AHEAD < victims.size:
            prefetch_item(codes, slot_rows[victims[i + AHEAD]])
        slot = victims[i]
        row = slot_rows[slot]
        table = np.searchsorted(table_starts, row, side="right") - 1
        tally[table, DEMOTED] += 1
        if slot_flags[slot] & DIRTY:
            back_slots[num_back] = slot
            back_rows[num_back] = row
            num_back += 1
            tally[table, WRITTEN_BACK] += 1
            codes[row] = ON_HOST
        elif slot_flags[slot] & CHANGED:
            codes[row] = ON_HOST
        else:
            codes[row] = INITIAL
        slot_rows[slot] = -1
        slot_flags[slot] = 0
        free[num_free + i] = slot
    return num_back


@kernel()
def take_slots(
    takers, rows, codes, locations, slot_rows, slot_flags, free, num_free, table_starts, slots, initial, tally
):
    """Give each of the missing distinct rows `takers` a free slot, from the end of `free`.

    Outputs, aligned with takers: slots (int64) and initial (bool): the row is still at its initial value.
    """
    for i in range(takers.size):
        if i + AHEAD < takers.size:
            prefetch_item(codes, rows[takers[i + AHEAD]])
            prefetch_item(slot_rows, free[num_free - 1 - i - AHEAD])
        u = takers[i]
        slot = free[num_free - 1 - i]
        row = rows[u]
        table = np.searchsorted(table_starts, row, side="right") - 1
        tally[table, FETCHED] += 1
        tally[table, PROMOTED] += 1
        initial[i] = codes[row] == INITIAL
        slot_flags[slot] = 0 if initial[i] else CHANGED
        slot_rows[slot] = row
        codes[row] = slot + 1
        locations[u] = slot
        slots[i] = slot


@kernel()
def use_rows_on_host(rows, codes, locations, fresh):
    """Rows without a slot get the location ~row; those still at their initial value are listed in `fresh`."""
    num_fresh = 0
    for u in range(rows.size):
        if locations[u] < 0:
            row = rows[u]
            locations[u] = ~row
            if codes[row] == INITIAL:
                codes[row] = ON_HOST
                fresh[num_fresh] = row
                num_fresh += 1
    return num_fresh


@kernel()
def touch(rows, counts, locations, batch, accesses, last_access, slot_used):
    """Count the look-ups of a planned batch and hold its slots. last_access stores batch + 1; 0 means never."""
    for u in range(rows.size):
        if u + AHEAD < rows.size:
            prefetch_item(accesses, rows[u + AHEAD])
        row = rows[u]
        # Saturates instead of wrapping: the row of a default id can pass 2**32 look-ups.
        accesses[row] = min(np.int64(accesses[row]) + np.int64(counts[u]), MOST_ACCESSES)
        last_access[row] = batch + 1
        if locations[u] >= 0:
            slot_used[locations[u]] = batch


@kernel()
def lay_out_bags(
    offsets, num_samples, feature_at, feature_column, num_columns, first_vector, starts, vectors, scales, mean
):
    """Describe the bags of one feature: where each starts in the group's look-ups and which vector it fills.

    offsets: the batch's; feature_at: the feature's number in the batch; feature_column: its column in the pooled
    output (num_columns columns), or -1 if it is not pooled: then every look-up is a bag of its own, and vectors run
    on from first_vector. starts and vectors are written from index 0; scales (look-ups of the feature, or empty)
    gets 1 / size for mean pooling. Returns the number of bags.
    """
    base = offsets[feature_at * num_samples]
    if feature_column < 0:
        num_lookups = offsets[(feature_at + 1) * num_samples] - base
        for p in range(num_lookups):
            starts[p] = p
            vectors[p] = first_vector + p
        return num_lookups
    for b in range(num_samples):
        start = offsets[feature_at * num_samples + b] - base
        starts[b] = start
        vectors[b] = b * num_columns + feature_column
        if mean:
            stop = offsets[feature_at * num_samples + b + 1] - base
            for p in range(start, stop):
                scales[p] = np.float32(1.0) / np.float32(stop - start)
    return num_samples


@kernel()
def lookup_locations(inverse, locations, lookups):
    """lookups[p] = location of look-up p's row."""
    for p in range(inverse.size):
        lookups[p] = locations[inverse[p]]


@kernel()
def lay_out_segments(counts, fates, cursors, segments, updated):
    """Where the look-ups of each row will stand when they are grouped: rows updated now first, then those with a sum.

    fates (U,) uint8, or empty: every row is updated now. Outputs: updated (int64) the distinct rows that remain,
    segments (updated + 1,) int64, cursors (U,) int64 where each row's look-ups start. Rows that are skipped do not
    remain; places for their look-ups are behind all that count: to ask at each whether it is one takes longer.
    Returns how many rows remain, and how many of them come first.
    """
    num_rows = counts.size
    if fates.size == 0:
        at = 0
        for u in range(num_rows):
            updated[u], segments[u], cursors[u] = u, at, at
            at += counts[u]
        segments[num_rows] = at
        return num_rows, num_rows
    now = summed = now_lookups = summed_lookups = 0
    for u in range(num_rows):
        is_now, is_summed = fates[u] == NOW, (fates[u] == DUE) | (fates[u] == WAITS)
        now += is_now
        summed += is_summed
        now_lookups += is_now * counts[u]
        summed_lookups += is_summed * counts[u]
    row_now, row_summed, row_skipped = 0, now, now + summed
    at_now, at_summed, at_skipped = 0, now_lookups, now_lookups + summed_lookups
    segments[num_rows] = at_skipped
    for u in range(num_rows):
        is_now, is_skipped = fates[u] == NOW, fates[u] == SKIPPED
        is_summed = 1 - is_now - is_skipped
        row = row_now if is_now else row_skipped if is_skipped else row_summed
        at = at_now if is_now else at_skipped if is_skipped else at_summed
        updated[row], segments[row], cursors[u] = u, at, at
        row_now += is_now
        row_summed += is_summed
        row_skipped += is_skipped
        at_now += is_now * counts[u]
        at_summed += is_summed * counts[u]
        at_skipped += is_skipped * counts[u]
    return now + summed, now


@kernel()
def fill_segments(inverse, bag_starts, bag_vectors, cursors, vectors, origins):
    """Put look-ups into their rows' segments, in look-up order; cursors, from `lay_out_segments`, move along.

    Outputs: vectors int32 the output vector of each grouped look-up, origins int64 its look-up (where scales need it;
    else empty). Bags may be some of a batch's; calls for bags of different tables change nothing in common.
    """
    for bag in range(bag_vectors.size):
        for p in range(bag_starts[bag], bag_starts[bag + 1]):
            cursor = cursors[inverse[p]]
            vectors[cursor] = bag_vectors[bag]
            if origins.size > 0:
                origins[cursor] = p
            cursors[inverse[p]] = cursor + 1


@kernel()
def mark_dirty(updated, locations, slot_flags):
    """The slots of rows that this batch will change."""
    for i in range(updated.size):
        location = locations[updated[i]]
        if location >= 0:
            slot_flags[location] |= DIRTY


@kernel()
def add_update_norms(rows, norms, totals, bin_edges, bin_guesses, bin_counts):
    """totals[row] += norm, and count the norm in its histogram bin [edge i, edge i + 1); returns their sum.

    bin_guesses int32: the bin of the smallest number with the same sign, exponent and leading digit, by these bits;
    at most one edge may lie between.
    """
    total = 0.0
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch_item(totals, rows[i + AHEAD])
        norm = norms[i]
        totals[rows[i]] += norm
        total += np.float64(norm)
        guess = bin_guesses[np.float32(norm).view(np.uint32) >> S22]
        bin_counts[min(guess + (norm >= bin_edges[guess + 1]), bin_counts.size - 1)] += 1
    return total


@kernel()
def gather_records(rows, codes, accesses, last_access, update_norms, out_accesses, out_last, out_norms, out_codes):
    """Copy the records of `rows` for a policy; last accesses are given as batch numbers, -1 = none."""
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch_item(accesses, rows[i + AHEAD])
        row = rows[i]
        out_accesses[i] = accesses[row]
        out_last[i] = np.int64(last_access[row]) - 1
        out_norms[i] = update_norms[row]
        out_codes[i] = codes[row]


@kernel()
def tables_of(rows, table_starts, buckets, shift, tables):
    """tables[i] = table of rows[i]; buckets[r >> shift] is the table of the first row of that bucket of rows."""
    for i in range(rows.size):
        table = buckets[rows[i] >> shift]
        while rows[i] >= table_starts[table + 1]:
            table += 1
        tables[i] = table


@kernel()
def mark_next_access(rows, codes, batch, slot_next):
    """slot_next[slot] = batch for the rows that are on the device; call from the farthest batch to the nearest."""
    for u in range(rows.size):
        code = codes[rows[u]]
        if code > 0:
            slot_next[code - 1] = batch


@kernel()
def count_host_vectors(bag_tables, bag_starts, locations, vectors):
    """Add to vectors (T,) the bags of each table that look up at least one row on the host."""
    for bag in range(bag_tables.size):
        for p in range(bag_starts[bag], bag_starts[bag + 1]):
            if locations[p] < 0:
                vectors[bag_tables[bag]] += 1
                break
