"""What is computed about a batch's look-ups alone, wherever their rows lie: distinct rows, bags, look-ups by row.

Letters: N look-ups of a group of tables, U distinct rows, T tables of the group, F features of the group, B samples.
Rows are numbered through within a group: row = table_starts[t] + id. All kernels are serial and release the GIL.
"""

import numpy as np

from adaptive.kernels.jit import at, kernel

HASH = np.uint64(0x9E3779B97F4A7C15)
S32 = np.uint64(32)
ONE = np.uint64(1)


@kernel()
def distinct_rows(ids, spans, span_tables, table_sizes, table_starts, places, used, rows, counts, inverse, table_ends):
    """Find the distinct rows of a batch, table by table, in order of first look-up.

    ids (all look-ups of the batch) int64; spans (F, 2) int64 [first, last) look-up of each feature of the group,
    ordered by table; span_tables (F,) int32. Outputs: rows (U,) int64, counts (U,) int32 look-ups of each, inverse
    (N,) int32 look-up -> distinct row, table_ends (T,) int64 end of each table's rows in `rows`.

    places int32 is one hash table after the other: at least twice the look-ups of any one table, a power of two. It
    holds used[0] + distinct row; what is less is left from before and counts as empty. The caller keeps both, and
    clears them before used[0] + N passes 2^31.

    Returns U, or -(p + 1) if ids[p] lies outside its table.
    """
    num_features = spans.shape[0]
    base = used[0]
    found = 0
    lookup = 0
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
        mask = at(capacity - 1)
        first = base + found  # of this table's entries
        for f in range(feature, last_feature):
            for p in range(spans[f, 0], spans[f, 1]):
                row = ids[at(p)]
                if at(row) >= at(size):  # negative ones too
                    used[0] = base + found
                    return -(p + 1)
                h = at(row) if direct else ((at(row) * HASH) >> S32) & mask
                place = np.int64(places[h])
                while place >= first and rows[at(place - base)] != start + row:
                    h = (h + ONE) & mask
                    place = np.int64(places[h])
                if place < first:
                    place = base + found
                    places[h] = place
                    rows[at(found)], counts[at(found)] = start + row, 0
                    found += 1
                counts[at(place - base)] += 1
                inverse[at(lookup)] = place - base
                lookup += 1
        table_ends[table] = found
        feature = last_feature
    used[0] = base + found
    return found


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
def fill_segments(inverse, counts, bag_starts, bag_vectors, cursors, segments, vectors, origins):
    """Group look-ups by row, in look-up order.

    Outputs: segments (U + 1,) int64 where each row's look-ups start; vectors (N,) int32 the output vector of each
    grouped look-up; origins int64 its look-up (N,), or empty. cursors (U,) int64 is scratch.
    """
    first = 0
    for u in range(counts.size):
        segments[u], cursors[u] = first, first
        first += counts[u]
    segments[counts.size] = first
    for bag in range(bag_vectors.size):
        vector = bag_vectors[bag]
        for p in range(bag_starts[bag], bag_starts[bag + 1]):
            row = at(inverse[at(p)])
            cursor = cursors[row]
            vectors[at(cursor)] = vector
            if origins.size > 0:
                origins[at(cursor)] = p
            cursors[row] = cursor + 1
