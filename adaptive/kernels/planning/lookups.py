"""Distinct rows, bags, and lookups by row of a batch.

Letters: N lookups of a group of tables, U distinct rows, T tables of the group, F features of the group, B samples.
Group rows: row = table_starts[t] + id. All kernels release the GIL. They are serial, but for those of *chunks*: runs of
tables, one for each thread.

Nearly all of the time went to unpredictable branches (is this row new?) and to counters in memory that each lookup had
to wait for. So the loops over all lookups select values instead of branching, may write values that the next lookup
overwrites, and leave counting to separate loops. One table is finished before the next, while its part of the arrays
is in the cache.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import at, in_parallel, kernel
from adaptive.kernels.vector.row_sums import CHUNK_LOOKUPS


def hot_chunks(segments: NDArray[np.int64]) -> NDArray[np.int32]:
    """(2c,) the chunks of 64 lookups of rows that have more: row and number of each, the longest row first.

    segments (U + 1,): start of each distinct row's lookups.
    """
    counts = np.diff(segments)
    hot = np.flatnonzero(counts > CHUNK_LOOKUPS)
    hot = hot[np.argsort(-counts[hot], kind="stable")]
    chunks = -(-counts[hot] // CHUNK_LOOKUPS)
    firsts = np.cumsum(chunks) - chunks
    rows, numbers = np.repeat(hot, chunks), np.arange(chunks.sum()) - np.repeat(firsts, chunks)
    return np.stack([rows, numbers], axis=1).astype(np.int32).ravel()


class Distinct(NamedTuple):
    """The distinct rows of a batch and one group, table by table, in order of first lookup."""

    rows: NDArray[np.int64]  # (U,) group rows; with keys, these before `key_tables` gives them rows
    counts: NDArray[np.int32]  # (U,) lookups of each
    inverse: NDArray[np.int32]  # (N,) lookup -> distinct row; empty: on the device
    table_ends: NDArray[np.int64]  # (T,) end of each table's rows

    def shortened(self, num_rows: int) -> "Distinct":
        """Return the first rows, of arrays with room for more."""
        return Distinct(self.rows[:num_rows], self.counts[:num_rows], self.inverse, self.table_ends)


HASH = np.uint64(0x9E3779B97F4A7C15)
S32 = np.uint64(32)
ONE = np.uint64(1)
FEW = 8  # in a table with fewer rows than lookups / FEW new rows are so rare that a branch is predicted well


@kernel()
def find_few(ids, span, table, places, numbers, num_rows, rows, inverse):
    """`find_direct` with a branch, for a table whose rows are looked up many times each."""
    (first, last), (size, start), (base, floor) = span, table, numbers
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
def find_direct(ids, span, table, places, numbers, num_rows, rows, inverse):
    """Number the rows of a feature's lookups, from `num_rows` on; see `find_in_table`.

    span: first lookup and end; table: its number of rows, and the first; numbers: used[0] of a `HashTable`, and the
    table's first number. places[id] is the number of a row: the table is small enough for one place per row.
    """
    (first, last), (size, start), (base, floor) = span, table, numbers
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
def find_hashed(ids, span, table, places, shift, numbers, num_rows, rows, inverse):
    """`find_direct` for a larger table, by a hash table of 2^(64 - shift) places.

    The hash is the highest bits of a product with the golden ratio, which spreads consecutive ids evenly: popular ids
    are often small numbers. With lower bits, 3 times as many lookups would find another id in their place.
    """
    (first, last), (size, start), (base, floor) = span, table, numbers
    none, mask = np.int64(0), ~np.uint64(0) >> shift
    for p in range(last - first):
        row = ids[at(first + p)]
        if at(row) >= at(size):
            return -(first + p + 1)
        key = start + row
        h = (at(row) * HASH) >> shift
        place = np.int64(places[h]) - base
        # `&`, not `and`: both sides are computed, without a branch. So an empty place, below 0, must read some row.
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
def find_in_table(ids, spans, table, places, base, num_rows, rows, inverse):
    """Number the distinct rows of one table, from the spans of its features.

    Numbers start at `num_rows`. inverse (lookups of the table,) int32. Returns the new number of rows, or -(p + 1): see
    `distinct_rows`.
    """
    num_lookups, size = inverse.size, table[0]
    capacity, shift = 16, 60
    while capacity < 2 * num_lookups:  # of this table alone: a small hash table stays in the cache
        capacity, shift = 2 * capacity, shift - 1
    numbers, lookup = (base, num_rows), 0
    for f in range(spans.shape[0]):
        first, last = span = spans[f, 0], spans[f, 1]
        part = inverse[lookup : lookup + last - first]
        if size > capacity:
            num_rows = find_hashed(ids, span, table, places, at(shift), numbers, num_rows, rows, part)
        elif size * FEW < num_lookups:
            num_rows = find_few(ids, span, table, places, numbers, num_rows, rows, part)
        else:
            num_rows = find_direct(ids, span, table, places, numbers, num_rows, rows, part)
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
def distinct_rows(first_table, features, tables, hash_table, distinct):
    """Find the distinct rows of a batch, table by table, in order of first lookup.

    features: ids (all lookups of the batch) int64; spans (F, 2) int64, first lookup and end of each feature of the
    group, ordered by table; their tables (F,) int32, counted from first_table. tables: sizes (T,) and starts (T,)
    int64. distinct: the fields of `Distinct`, which are written, with room for N rows. Returns U, or -(p + 1) if ids[p]
    is outside its table.

    hash_table: places int32, of one table after the other, a power of two of at least twice the lookups of any table;
    used (1,) int64. A place holds used[0] + distinct row, and smaller values, left over, count as empty: the number
    grows instead of the places being cleared, which would touch all of them for each batch. The caller clears them
    before used[0] + N exceeds 2^31.
    """
    ids, spans, span_tables = features
    sizes, starts = tables
    places, used = hash_table
    rows, counts, inverse, table_ends = distinct
    num_features = spans.shape[0]
    base = used[0]
    num_rows = lookup = feature = 0
    for table in range(sizes.size):
        num_lookups = 0
        last_feature = feature
        while last_feature < num_features and span_tables[last_feature] == first_table + table:
            num_lookups += spans[last_feature, 1] - spans[last_feature, 0]
            last_feature += 1
        part = inverse[lookup : lookup + num_lookups]
        old = num_rows
        of_table = sizes[table], starts[table]
        num_rows = find_in_table(ids, spans[feature:last_feature], of_table, places, base, num_rows, rows, part)
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
def find_chunk(c, bounds, features, tables, hash_tables, of_chunks):
    table, end_table, feature, end_feature = bounds[c, 0], bounds[c + 1, 0], bounds[c, 1], bounds[c + 1, 1]
    first, last = bounds[c, 2], bounds[c + 1, 2]
    ids, spans, span_tables = features
    sizes, starts = tables
    places, used = hash_tables
    rows, counts, inverse, table_ends = of_chunks
    bounds[c + 1, 4] = distinct_rows(
        table,
        (ids, spans[feature:end_feature], span_tables[feature:end_feature]),
        (sizes[table:end_table], starts[table:end_table]),
        (places[c], used[c]),
        (rows[first:last], counts[first:last], inverse[first:last], table_ends[table:end_table]),
    )


@kernel()
def copy_rows(features, tables, rows, lookup_ends):
    """Write the row of each lookup of a group, for a device that finds distinct rows.

    features, tables: as for `distinct_rows`. Outputs: rows (N,) int32 or int64, in the group's order; lookup_ends (T,)
    int64 end of each table's lookups. Returns 0, or -(p + 1) if ids[p] is outside its table.
    """
    ids, spans, span_tables = features
    sizes, starts = tables
    lookup = feature = 0
    for table in range(sizes.size):
        start, size = starts[table], sizes[table]
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
def lay_out_bags(offsets, num_samples, features, num_columns, bags):
    """Describe the bags of a group, feature by feature, of a batch with these offsets.

    features, (F,) each: positions int64 in the batch; columns int64 in the pooled output of num_columns columns, or -1
    if not pooled, when every lookup is its own bag and its vector follows the pooled ones; tables int32; means bool.
    bags: starts (bags + 1,) int64, vectors and tables (bags,) int32 are written; scales (N,) float32, or empty, get
    1 / size of the bag for pooling by mean.
    """
    positions, columns, tables, means = features
    starts, vectors, bag_tables, scales = bags
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
def find_and_group(bounds, features, tables, hash_tables, of_chunks, bags, of_rows, grouped):
    """`distinct_rows` and `fill_segments` by several threads, each for a chunk.

    bounds (C + 1, 5) int64, zeros: becomes the first table, feature, lookup, bag and distinct row of each chunk.
    hash_tables: one for each chunk, places (C, ...) and used (C, ...). of_chunks: memory for the distinct rows of each
    chunk, from its first lookup on; its inverse and table ends become those of all. bags: starts and vectors. Outputs:
    of_rows: rows (U,), counts (U,), and segments (U + 1,) int64, the start of each row's lookups, all with room for N
    rows; grouped: vectors and origins as of `fill_segments`. Returns as `distinct_rows`.
    """
    num_chunks = bounds.shape[0] - 1
    divide_tables(bounds, features[1], features[2], tables[0].size, bags[0])
    in_parallel(find_chunk, num_chunks, bounds, features, tables, hash_tables, of_chunks)
    for c in range(num_chunks):
        if bounds[c + 1, 4] < 0:
            return bounds[c + 1, 4]
        bounds[c + 1, 4] += bounds[c, 4]
    of_rows[2][0] = 0
    in_parallel(group_chunk, num_chunks, bounds, of_chunks, bags, of_rows, grouped)
    return bounds[num_chunks, 4]
