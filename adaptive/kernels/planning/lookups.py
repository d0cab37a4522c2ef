"""What is computed about a batch's look-ups alone, wherever their rows lie: distinct rows, bags, look-ups by row.

Letters: N look-ups of a group of tables, U distinct rows, T tables of the group, F features of the group, B samples.
Rows are numbered through within a group: row = table_starts[t] + id. All kernels are serial and release the GIL.

Nearly all of the time went to branches that nobody can foresee (is this row new?) and to counters in memory that each
look-up must wait for. So the loops that see every look-up choose values instead of ways, write what may not stay, and
count in loops of their own; one table is finished before the next, while its part of the arrays is in the cache.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import at, kernel

HOT_LOOKUPS: Final = 64  # a row with more is hot; a power of two


def hot_rows(segments: NDArray[np.int64]) -> NDArray[np.int32]:
    """(h,) which rows have more than 64 look-ups, most look-ups first. segments (U + 1,): where those of each start.

    The longest sum begins first, and the others end beside it.
    """
    counts = np.diff(segments)
    found = np.flatnonzero(counts > HOT_LOOKUPS)
    return found[np.argsort(-counts[found], kind="stable")].astype(np.int32)


HASH = np.uint64(0x9E3779B97F4A7C15)
S32 = np.uint64(32)
ONE = np.uint64(1)
FEW = 8  # a table with fewer rows than look-ups / FEW has so few new ones that a branch foresees them


@kernel()
def find_few(ids, first, last, size, start, places, base, floor, found, rows, inverse):
    """`find_direct` for a table whose rows are looked up many times each."""
    for p in range(last - first):
        row = ids[at(first + p)]
        if at(row) >= at(size):  # negative ones too
            return -(first + p + 1)
        place = np.int64(places[at(row)]) - base
        if place < floor:
            place = found
            places[at(row)] = place + base
            rows[at(found)] = start + row
            found += 1
        inverse[p] = place
    return found


@kernel()
def find_direct(ids, first, last, size, start, places, base, floor, found, rows, inverse):
    """Number the rows of one feature's look-ups [first, last), continuing from `found`; see `find_in_table`.

    places[id] is the number of a table's row; the table is small enough.
    """
    for p in range(last - first):
        row = ids[at(first + p)]
        if at(row) >= at(size):
            return -(first + p + 1)
        place = np.int64(places[at(row)]) - base
        is_new = place < floor
        place = found if is_new else place
        places[at(row)] = place + base
        rows[at(found)] = start + row  # if the row is not new, the next one is written over it
        inverse[p] = place
        found += is_new
    return found


@kernel()
def find_hashed(ids, first, last, size, start, places, shift, base, floor, found, rows, inverse):
    """`find_direct` for a larger table: places[hash of the id], of which there are 2^(64 - shift), and what follows it.

    The hash is the highest bits of a product with the golden ratio, which spreads ids that follow one another evenly:
    popular ids are often small numbers. With lower bits 3 times as many look-ups would find another id in their place.
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
        place = found if is_new else place
        places[h] = place + base
        rows[at(found)] = key
        inverse[p] = place
        found += is_new
    return found


@kernel()
def find_in_table(ids, spans, size, start, places, base, found, rows, inverse):
    """Number the distinct rows of one table, looked up by the features with these spans, from `found` on.

    inverse (look-ups of the table,) int32. Returns how many rows there are then, or -(p + 1): see `distinct_rows`.
    """
    num_lookups = inverse.size
    capacity, shift = 16, 60
    while capacity < 2 * num_lookups:
        capacity, shift = 2 * capacity, shift - 1
    floor, lookup = found, 0
    for f in range(spans.shape[0]):
        first, last = spans[f, 0], spans[f, 1]
        own = inverse[lookup : lookup + last - first]
        if size > capacity:
            found = find_hashed(ids, first, last, size, start, places, at(shift), base, floor, found, rows, own)
        elif size * FEW < num_lookups:
            found = find_few(ids, first, last, size, start, places, base, floor, found, rows, own)
        else:
            found = find_direct(ids, first, last, size, start, places, base, floor, found, rows, own)
        if found < 0:
            return found
        lookup += last - first
    return found


@kernel()
def count_rows(inverse, first, last, counts):
    """counts[first:last] = look-ups of these distinct rows; inverse: of their table."""
    counts[first:last] = 0
    for p in range(inverse.size):
        counts[at(inverse[p])] += 1


@kernel()
def distinct_rows(ids, spans, span_tables, table_sizes, table_starts, places, used, rows, counts, inverse, table_ends):
    """Find the distinct rows of a batch, table by table, in order of first look-up.

    ids (all look-ups of the batch) int64; spans (F, 2) int64 [first, last) look-up of each feature of the group,
    ordered by table; span_tables (F,) int32. Outputs: rows (U,) int64, counts (U,) int32 look-ups of each, inverse
    (N,) int32 look-up -> distinct row, table_ends (T,) int64 end of each table's rows in `rows`; rows has room for N.

    places int32 is one hash table after the other: at least twice the look-ups of any one table, a power of two. It
    holds used[0] + distinct row; what is less is left from before and counts as empty. The caller keeps both, and
    clears them before used[0] + N passes 2^31.

    Returns U, or -(p + 1) if ids[p] lies outside its table.
    """
    num_features = spans.shape[0]
    base = used[0]
    found = lookup = feature = 0
    for table in range(table_sizes.size):
        num_lookups = 0
        last_feature = feature
        while last_feature < num_features and span_tables[last_feature] == table:
            num_lookups += spans[last_feature, 1] - spans[last_feature, 0]
            last_feature += 1
        own = inverse[lookup : lookup + num_lookups]
        before = found
        found = find_in_table(
            ids, spans[feature:last_feature], table_sizes[table], table_starts[table], places, base, found, rows, own
        )
        if found < 0:
            used[0] = base + lookup + num_lookups
            return found
        count_rows(own, before, found, counts)
        table_ends[table] = found
        feature = last_feature
        lookup += num_lookups
    used[0] = base + found
    return found


@kernel()
def copy_rows(ids, spans, span_tables, table_sizes, table_starts, rows, lookup_ends):
    """Write the row of each look-up of a group, for a device that finds the distinct ones itself.

    As for `distinct_rows`: ids, spans (F, 2), span_tables (F,), and what is returned for an id outside of its table, 0
    if there is none. Outputs: rows (N,) int32 or int64, in the group's order; lookup_ends (T,) int64 where each table's
    look-ups end.
    """
    lookup = feature = 0
    for table in range(table_sizes.size):
        start, size = table_starts[table], table_sizes[table]
        while feature < spans.shape[0] and span_tables[feature] == table:
            first, last = spans[feature, 0], spans[feature, 1]
            own, largest = rows[lookup : lookup + last - first], at(0)
            for p in range(last - first):
                row = ids[at(first + p)]
                largest = max(largest, at(row))  # a negative one is larger than any
                own[at(p)] = start + row
            if largest >= at(size):
                return -(first + first_outside(ids[first:last], size) + 1)
            lookup += last - first
            feature += 1
        lookup_ends[table] = lookup
    return 0


@kernel()
def first_outside(ids, size):
    """The position of the first id that is negative or not below `size`; how many there are if none is."""
    for p in range(ids.size):
        if at(ids[p]) >= at(size):
            return p
    return ids.size


@kernel()
def lay_out_bags(
    offsets, num_samples, positions, columns, tables, means, num_columns, starts, vectors, bag_tables, scales
):
    """Describe the bags of a group, feature by feature: where each starts in the group's look-ups, which vector it
    fills and of which table it is.

    offsets: the batch's; per feature (F,): positions int64 its number in the batch, columns int64 its column in the
    pooled output (num_columns columns), or -1 if it is not pooled: then every look-up is a bag of its own, and vectors
    run on behind the pooled ones; tables int32; means bool. Outputs: starts (bags + 1,) int64, vectors and bag_tables
    (bags,) int32; scales (N,) float32, or empty, gets 1 / size where pooling is by mean.
    """
    bag = lookup = 0
    vector = num_samples * num_columns
    for f in range(positions.size):
        own = offsets[positions[f] * num_samples : (positions[f] + 1) * num_samples + 1]
        shift, num_lookups = lookup - own[0], own[num_samples] - own[0]
        num_bags = num_samples if columns[f] >= 0 else num_lookups
        bag_tables[bag : bag + num_bags] = tables[f]
        own_starts, own_vectors = starts[bag : bag + num_bags], vectors[bag : bag + num_bags]
        if columns[f] < 0:
            for p in range(num_bags):
                own_starts[p], own_vectors[p] = lookup + p, vector + p
            vector += num_lookups
        else:
            for b in range(num_bags):
                own_starts[b] = own[b] + shift
            for b in range(num_bags):
                own_vectors[b] = b * num_columns + columns[f]
            if means[f] and scales.size > 0:
                for b in range(num_bags):
                    scales[own[b] + shift : own[b + 1] + shift] = np.float32(1.0) / np.float32(own[b + 1] - own[b])
        bag += num_bags
        lookup += num_lookups
    starts[bag] = lookup


@kernel()
def fill_segments(inverse, counts, bag_starts, bag_vectors, segments, vectors, origins):
    """Group look-ups by row, in look-up order.

    Outputs: segments (U + 1,) int64 where each row's look-ups start; vectors (N,) int32 the output vector of each
    grouped look-up; origins int64 its look-up (N,), or empty.
    """
    segments[0] = first = 0
    for u in range(counts.size):  # while rows are filled, segments[u + 1] is where u's next look-up goes
        segments[u + 1] = first
        first += counts[u]
    if origins.size == 0 and one_each(bag_starts, inverse.size):
        for p in range(inverse.size):
            row = at(inverse[p]) + ONE
            place = segments[row]
            segments[row] = place + 1
            vectors[at(place)] = bag_vectors[p]
        return
    for bag in range(bag_vectors.size):
        vector = bag_vectors[bag]
        for p in range(bag_starts[bag], bag_starts[bag + 1]):
            row = at(inverse[at(p)]) + ONE
            place = segments[row]
            segments[row] = place + 1
            vectors[at(place)] = vector
            if origins.size > 0:
                origins[at(place)] = p


@kernel()
def one_each(bag_starts, num_lookups):
    """Whether every bag holds one look-up."""
    if bag_starts.size != num_lookups + 1:
        return False
    others = 0
    for bag in range(num_lookups):
        others += bag_starts[bag] != bag
    return others == 0
