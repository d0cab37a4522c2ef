"""Distinct rows, bags, and lookups by row of a batch.

Letters: N lookups of a group of tables, U distinct rows, T tables of the group, F features of the group, B samples.
Group rows: row = table_starts[t] + id. All kernels release the GIL. They are serial, but for those of *chunks*: runs of
tables, one for each thread.

Nearly all of the time went to unpredictable branches (is this row new?) and to counters in memory that each lookup had
to wait for. So the loops over all lookups select values instead of branching, may write values that the next lookup
overwrites, and leave counting to separate loops. One table is finished before the next, while its part of the arrays
is in the cache.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import at, in_parallel, kernel

HOT_LOOKUPS: Final = 64  # a row with more is hot; a power of two


def hot_rows(segments: NDArray[np.int64]) -> NDArray[np.int32]:
    """(h,) distinct rows with more than 64 lookups, the longest sum first.

    segments (U + 1,): start of each row's lookups.
    """
    counts = np.diff(segments)
    hot = np.flatnonzero(counts > HOT_LOOKUPS)
    return hot[np.argsort(-counts[hot], kind="stable")].astype(np.int32)


HASH = np.uint64(0x9E3779B97F4A7C15)
S32 = np.uint64(32)
ONE = np.uint64(1)
FEW = 8  # in a table with fewer rows than lookups / FEW new rows are so rare that a branch is predicted well


@kernel()
def find_few(ids, first, last, size, start, places, base, floor, num_rows, rows, inverse):
    """`find_direct` with a branch, for a table whose rows are looked up many times each."""
    for p in range(last - first):
        row = ids[at(first + p)]
        if at(row) >= at(size):  # negative ones too
            return -(first + p + 1)
        place = np.int64(places[at(row)]) - base
        if place < floor:
            place = num_rows
            places[at(row)] = place + base
            rows[at(num_rows)] = start + row
            num_rows += 1
        inverse[p] = place
    return num_rows


@kernel()
def find_direct(ids, first, last, size, start, places, base, floor, num_rows, rows, inverse):
    """Number the rows of a feature's lookups [first, last), from `num_rows` on.

    See `find_in_table`. places[id] is the number of a row: the table is small enough for one place per row.
    """
    for p in range(last - first):
        row = ids[at(first + p)]
        if at(row) >= at(size):
            return -(first + p + 1)
        place = np.int64(places[at(row)]) - base
        is_new = place < floor
        place = num_rows if is_new else place
        places[at(row)] = place + base
        rows[at(num_rows)] = start + row  # if the row is not new, the next one is written over it
        inverse[p] = place
        num_rows += is_new
    return num_rows


@kernel()
def find_hashed(ids, first, last, size, start, places, shift, base, floor, num_rows, rows, inverse):
    """`find_direct` for a larger table, by a hash table of 2^(64 - shift) places.

    The hash is the highest bits of a product with the golden ratio, which spreads consecutive ids evenly: popular ids
    are often small numbers. With lower bits, 3 times as many lookups would find another id in their place.
    """
    none, mask = np.int64(0), ~np.uint64(0) >> shift
    for p in range(last - first):
        row = ids[at(first + p)]
        if at(row) >= at(size):
            return -(first + p + 1)
        key = start + row
        h = (at(row) * HASH) >> shift
        place = np.int64(places[h]) - base
        while (place >= floor) & (rows[at(max(place, none))] != key):
            h = (h + ONE) & mask
            place = np.int64(places[h]) - base
        is_new = place < floor
        place = num_rows if is_new else place
        places[h] = place + base
        rows[at(num_rows)] = key
        inverse[p] = place
        num_rows += is_new
    return num_rows


@kernel()
def find_in_table(ids, spans, size, start, places, base, num_rows, rows, inverse):
    """Number the distinct rows of one table, from the spans of its features.

    Numbers start at `num_rows`. inverse (lookups of the table,) int32. Returns the new number of rows, or -(p + 1): see
    `distinct_rows`.
    """
    num_lookups = inverse.size
    capacity, shift = 16, 60
    while capacity < 2 * num_lookups:
        capacity, shift = 2 * capacity, shift - 1
    floor, lookup = num_rows, 0
    for f in range(spans.shape[0]):
        first, last = spans[f, 0], spans[f, 1]
        part = inverse[lookup : lookup + last - first]
        if size > capacity:
            num_rows = find_hashed(ids, first, last, size, start, places, at(shift), base, floor, num_rows, rows, part)
        elif size * FEW < num_lookups:
            num_rows = find_few(ids, first, last, size, start, places, base, floor, num_rows, rows, part)
        else:
            num_rows = find_direct(ids, first, last, size, start, places, base, floor, num_rows, rows, part)
        if num_rows < 0:
            return num_rows
        lookup += last - first
    return num_rows


@kernel()
def count_rows(inverse, first, last, counts):
    """counts[first:last] = lookups of these distinct rows, by the inverse of their table."""
    counts[first:last] = 0
    for p in range(inverse.size):
        counts[at(inverse[p])] += 1


@kernel()
def distinct_rows(
    first_table,
    ids,
    spans,
    span_tables,
    table_sizes,
    table_starts,
    places,
    used,
    rows,
    counts,
    inverse,
    table_ends,
):
    """Find the distinct rows of a batch, table by table, in order of first lookup.

    ids (all lookups of the batch) int64; spans (F, 2) int64 [first, last) lookup of each feature of the group,
    ordered by table; span_tables (F,) int32, counted from first_table. Outputs: rows (U,) int64, counts (U,) int32
    lookups of each, inverse (N,) int32 lookup -> distinct row, table_ends (T,) int64 end of each table's rows in
    `rows`; rows has room for N.

    places int32 is the hash table of one table after the other, with a power of two of at least twice the lookups of
    any table. It holds used[0] + distinct row; smaller values are left over and count as empty. The caller keeps both,
    and clears them before used[0] + N exceeds 2^31.

    Returns U, or -(p + 1) if ids[p] is outside its table.
    """
    num_features = spans.shape[0]
    base = used[0]
    num_rows = lookup = feature = 0
    for table in range(table_sizes.size):
        num_lookups = 0
        last_feature = feature
        while last_feature < num_features and span_tables[last_feature] == first_table + table:
            num_lookups += spans[last_feature, 1] - spans[last_feature, 0]
            last_feature += 1
        part = inverse[lookup : lookup + num_lookups]
        old = num_rows
        num_rows = find_in_table(
            ids,
            spans[feature:last_feature],
            table_sizes[table],
            table_starts[table],
            places,
            base,
            num_rows,
            rows,
            part,
        )
        if num_rows < 0:
            used[0] = base + lookup + num_lookups
            return num_rows
        count_rows(part, old, num_rows, counts)
        table_ends[table] = num_rows
        feature = last_feature
        lookup += num_lookups
    used[0] = base + num_rows
    return num_rows


@kernel()
def find_chunk(c, bounds, inputs, of_chunks):
    ids, spans, span_tables, table_sizes, table_starts, places, used = inputs
    rows, counts, inverse, table_ends = of_chunks
    table, end_table, feature, end_feature = bounds[c, 0], bounds[c + 1, 0], bounds[c, 1], bounds[c + 1, 1]
    first, last = bounds[c, 2], bounds[c + 1, 2]
    bounds[c + 1, 4] = distinct_rows(
        table, ids, spans[feature:end_feature], span_tables[feature:end_feature],
        table_sizes[table:end_table], table_starts[table:end_table], places[c], used[c],
        rows[first:last], counts[first:last], inverse[first:last], table_ends[table:end_table],
    )  # fmt: skip


@kernel()
def copy_rows(ids, spans, span_tables, table_sizes, table_starts, rows, lookup_ends):
    """Write the row of each lookup of a group, for a device that finds distinct rows.

    ids, spans (F, 2), span_tables (F,): as for `distinct_rows`. Outputs: rows (N,) int32 or int64, in the group's
    order; lookup_ends (T,) int64 end of each table's lookups. Returns 0, or -(p + 1) if ids[p] is outside its table.
    """
    lookup = feature = 0
    for table in range(table_sizes.size):
        start, size = table_starts[table], table_sizes[table]
        while feature < spans.shape[0] and span_tables[feature] == table:
            first, last = spans[feature, 0], spans[feature, 1]
            part, largest = rows[lookup : lookup + last - first], at(0)
            for p in range(last - first):
                row = ids[at(first + p)]
                largest = max(largest, at(row))  # unsigned: a negative row is larger than any other
                part[at(p)] = start + row
            if largest >= at(size):
                return -(first + first_outside(ids[first:last], size) + 1)
            lookup += last - first
            feature += 1
        lookup_ends[table] = lookup
    return 0


@kernel()
def first_outside(ids, size):
    """Position of the first id outside 0 ... size - 1; the number of ids if there is none."""
    for p in range(ids.size):
        if at(ids[p]) >= at(size):
            return p
    return ids.size


@kernel()
def lay_out_bags(
    offsets, num_samples, positions, columns, tables, means, num_columns, starts, vectors, bag_tables, scales
):
    """Describe the bags of a group, feature by feature: first lookup, vector, and table.

    offsets: the batch's. Per feature (F,): positions int64 in the batch; columns int64 in the pooled output of
    num_columns columns, or -1 if not pooled, when every lookup is its own bag and its vector follows the pooled ones;
    tables int32; means bool. Outputs: starts (bags + 1,) int64, vectors and bag_tables (bags,) int32; scales (N,)
    float32, or empty, gets 1 / size of the bag for pooling by mean.
    """
    bag = lookup = 0
    vector = num_samples * num_columns
    for f in range(positions.size):
        part = offsets[positions[f] * num_samples : (positions[f] + 1) * num_samples + 1]
        shift, num_lookups = lookup - part[0], part[num_samples] - part[0]
        num_bags = num_samples if columns[f] >= 0 else num_lookups
        bag_tables[bag : bag + num_bags] = tables[f]
        bag_starts, bag_vectors = starts[bag : bag + num_bags], vectors[bag : bag + num_bags]
        if columns[f] < 0:
            for p in range(num_bags):
                bag_starts[p], bag_vectors[p] = lookup + p, vector + p
            vector += num_lookups
        else:
            for b in range(num_bags):
                bag_starts[b] = part[b] + shift
            for b in range(num_bags):
                bag_vectors[b] = b * num_columns + columns[f]
            if means[f] and scales.size > 0:
                for b in range(num_bags):
                    scales[part[b] + shift : part[b + 1] + shift] = np.float32(1.0) / np.float32(part[b + 1] - part[b])
        bag += num_bags
        lookup += num_lookups
    starts[bag] = lookup


@kernel()
def fill_segments(inverse, counts, first, bag_starts, bag_vectors, segments, vectors, origins):
    """Group lookups by row, in lookup order.

    inverse (N,) and counts (U,): see `distinct_rows`; first: number in the batch of the first of these lookups;
    bag_starts (bags + 1,) and bag_vectors (bags,) of these lookups. Outputs: segments (U,) int64 end of each row's
    lookups; vectors int32 output vector of each of the batch's grouped lookups; origins int64 their lookup, or empty.
    """
    place = first
    for u in range(counts.size):  # while rows are filled, segments[u] is the place of u's next lookup
        segments[u] = place
        place += counts[u]
    if origins.size == 0 and one_each(bag_starts, first, inverse.size):
        for p in range(inverse.size):
            row = at(inverse[p])
            place = segments[row]
            segments[row] = place + 1
            vectors[at(place)] = bag_vectors[p]
        return
    for bag in range(bag_vectors.size):
        vector = bag_vectors[bag]
        for p in range(bag_starts[bag] - first, bag_starts[bag + 1] - first):
            row = at(inverse[at(p)])
            place = segments[row]
            segments[row] = place + 1
            vectors[at(place)] = vector
            if origins.size > 0:
                origins[at(place)] = first + p


@kernel(noalias=True)
def take_segments(chosen, lookups, taken):
    """Copy the lookups of the rows `chosen` (n,): segments (U + 1,), vectors (N,) and scales (N,), or empty.

    taken: receives the same of these rows, with room for N lookups. Most rows have few lookups, and how many is
    unpredictable: so four are copied at once, and the next row overwrites what was too many.
    """
    (segments, vectors, scales), (taken_segments, taken_vectors, taken_scales), place = lookups, taken, 0
    for i in range(chosen.size):
        u = at(chosen[i])
        first, size = segments[u], segments[u + ONE] - segments[u]
        taken_segments[i] = place
        if size <= 4 and place + 4 <= taken_vectors.size and first + 4 <= vectors.size:
            for k in range(4):
                taken_vectors[at(place + k)] = vectors[at(first + k)]
        else:
            for k in range(size):
                taken_vectors[at(place + k)] = vectors[at(first + k)]
        if scales.size > 0:
            for k in range(size):
                taken_scales[at(place + k)] = scales[at(first + k)]
        place += size
    taken_segments[chosen.size] = place


@kernel()
def one_each(bag_starts, first, num_lookups):
    """True if every bag has one lookup, from the lookup `first` on."""
    if bag_starts.size != num_lookups + 1:
        return False
    others = 0
    for bag in range(num_lookups):
        others += bag_starts[bag] != first + bag
    return others == 0


@kernel(makes_arrays=True)
def group_chunk(c, bounds, of_chunks, bags_of_group, of_rows, grouped):
    chunk_rows, chunk_counts, inverse, table_ends = of_chunks
    (bag_starts, bag_vectors), (rows, counts, segments) = bags_of_group, of_rows
    first, last, row, end = bounds[c, 2], bounds[c + 1, 2], bounds[c, 4], bounds[c + 1, 4]
    part, bags, bags_end = inverse[first:last], bounds[c, 3], bounds[c + 1, 3]
    rows[row:end] = chunk_rows[first : first + end - row]
    counts[row:end] = chunk_counts[first : first + end - row]
    fill_segments(
        part, counts[row:end], first, bag_starts[bags : bags_end + 1], bag_vectors[bags:bags_end],
        segments[row + 1 : end + 1], *grouped,
    )  # fmt: skip
    if row > 0:
        part += np.int32(row)
        table_ends[bounds[c, 0] : bounds[c + 1, 0]] += row


@kernel()
def divide_tables(bounds, spans, span_tables, num_tables, bag_starts):
    """Divide tables into chunks with about as many lookups each: fill the first four columns of `bounds`."""
    num_chunks, num_lookups, num_bags = bounds.shape[0] - 1, bag_starts[-1], bag_starts.size - 1
    chunk, lookup = 1, 0
    for f in range(spans.shape[0]):
        begins_table = f > 0 and span_tables[f] != span_tables[f - 1]
        if begins_table and chunk < num_chunks and lookup * num_chunks >= chunk * num_lookups:
            bag, end = 0, num_bags
            while bag < end:  # until it is the first one that begins at this lookup
                middle = (bag + end) // 2
                bag, end = (middle + 1, end) if bag_starts[middle] < lookup else (bag, middle)
            bounds[chunk, 0], bounds[chunk, 1], bounds[chunk, 2], bounds[chunk, 3] = span_tables[f], f, lookup, bag
            chunk += 1
        lookup += spans[f, 1] - spans[f, 0]
    for c in range(chunk, num_chunks + 1):
        bounds[c, 0], bounds[c, 1], bounds[c, 2], bounds[c, 3] = num_tables, spans.shape[0], num_lookups, num_bags


@kernel()
def find_and_group(
    bounds, ids, spans, span_tables, table_sizes, table_starts, places, used, chunk_rows, chunk_counts, inverse,
    table_ends, bag_starts, bag_vectors, rows, counts, segments, vectors, origins,
):  # fmt: skip
    """`distinct_rows` and `fill_segments` by several threads, each for a chunk.

    bounds (C + 1, 5) int64, zeros: becomes the first table, feature, lookup, bag and distinct row of each chunk.
    places (C, ...) and used (C, ...): one hash table for each. chunk_rows and chunk_counts (N,): memory for the
    distinct rows of each chunk, from its first lookup on. Outputs: rows (U,), counts (U,), inverse (N,), table_ends
    (T,) as of `distinct_rows`; segments (U + 1,) int64 start of each row's lookups; vectors and origins as of
    `fill_segments`. rows, counts and segments have room for N rows. Returns as `distinct_rows`.
    """
    num_chunks = bounds.shape[0] - 1
    divide_tables(bounds, spans, span_tables, table_sizes.size, bag_starts)
    inputs = ids, spans, span_tables, table_sizes, table_starts, places, used
    of_chunks, of_rows = (chunk_rows, chunk_counts, inverse, table_ends), (rows, counts, segments)
    in_parallel(find_chunk, num_chunks, bounds, inputs, of_chunks)
    for c in range(num_chunks):
        if bounds[c + 1, 4] < 0:
            return bounds[c + 1, 4]
        bounds[c + 1, 4] += bounds[c, 4]
    segments[0] = 0
    in_parallel(group_chunk, num_chunks, bounds, of_chunks, (bag_starts, bag_vectors), of_rows, (vectors, origins))
    return bounds[num_chunks, 4]
