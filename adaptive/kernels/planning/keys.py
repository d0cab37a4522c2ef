"""The index of a table's keys, and the sketch that counts keys without a row.

Letters: N lookups, U distinct keys, n keys or rows, T tables of a group, P places.

*Index*, of all tables of a group: open addressing with linear probing. A place (uint64) is 0 if it is empty, or has
the 32 highest bits of a key's hash above the key's row, which is not 0. A key's home is these 32 bits times P, shifted
right by 32: so a key is read only where the bits agree, and neither growth nor deletion reads one. Hashes are keyed by
a secret of the table, from the seed, so nobody can choose keys of one home without it.

*Sketch*: count-min with conservative update (Estan and Varghese, SIGCOMM 2002, https://doi.org/10.1145/633025.633056),
uint8 cells, halved now and then as in TinyLFU (https://arxiv.org/abs/1512.00727), so that it forgets.

All kernels are serial and release the GIL. Only the planning thread writes these arrays.
"""

import numpy as np

from adaptive.kernels.jit import at, kernel
from adaptive.kernels.planning.lookups import count_rows
from adaptive.kernels.rows.cpu.initial import GOLDEN, mix
from adaptive.kernels.vector.row_ops import prefetch_item

S32 = np.uint64(32)
LOW32 = np.uint64(2**32 - 1)
ZERO, ONE, FOUR = np.uint64(0), np.uint64(1), np.uint64(4)
AHEAD = 128  # places or keys that are prefetched
MOST_COUNT = 255
LINES = 3  # of the sketch


@kernel()
def find_distinct(ids, span, secret, shift, places, numbers, num_keys, keys, inverse):
    """Number the keys of a feature's lookups, from `num_keys` on.

    As `lookups.find_hashed`, for ids of any value. The secret is mixed into the hash.
    """
    (first, last), (base, floor) = span, numbers
    none, mask = np.int64(0), ~ZERO >> shift
    for p in range(last - first):
        key = ids[at(first + p)]
        h = ((at(key) ^ secret) * GOLDEN) >> shift
        place = np.int64(places[h]) - base
        while (place >= floor) & (keys[at(max(place, none))] != key):
            h = (h + ONE) & mask
            place = np.int64(places[h]) - base
        is_new = place < floor
        place = num_keys if is_new else place
        places[h] = place + base
        keys[at(num_keys)] = key
        inverse[p] = place
        num_keys += is_new
    return num_keys


@kernel()
def distinct_keys(features, secrets, hash_table, distinct):
    """Find the distinct keys of a batch, table by table, in order of first lookup.

    As `lookups.distinct_rows`, for tables with keys: secrets (T,) uint64 instead of sizes and first rows. Returns U.
    """
    ids, spans, span_tables = features
    places, used = hash_table
    keys, counts, inverse, table_ends = distinct
    base = used[0]
    num_keys = lookup = feature = 0
    for table in range(secrets.size):
        num_lookups, last_feature = 0, feature
        while last_feature < spans.shape[0] and span_tables[last_feature] == table:
            num_lookups += spans[last_feature, 1] - spans[last_feature, 0]
            last_feature += 1
        capacity, shift = 16, 60
        while capacity < 2 * num_lookups:
            capacity, shift = 2 * capacity, shift - 1
        floor, start = num_keys, lookup
        for f in range(feature, last_feature):
            first, last = spans[f, 0], spans[f, 1]
            part = inverse[lookup : lookup + last - first]
            numbers = base, floor
            num_keys = find_distinct(
                ids, (first, last), secrets[table], at(shift), places, numbers, num_keys, keys, part
            )
            lookup += last - first
        count_rows(inverse[start:lookup], floor, num_keys, counts)
        table_ends[table] = num_keys
        feature = last_feature
    used[0] = base + num_keys
    return num_keys


@kernel(inline=True)
def home(high, num_places):
    """Home of the 32 highest bits of a hash."""
    return (high * num_places) >> S32


@kernel(inline=True)
def after(place, num_places):
    """The next place, around the end."""
    place = at(place) + ONE
    return ZERO if place == num_places else place


@kernel()
def hash_keys(keys, secret, hashes):
    """hashes (n,) uint64 of keys (n,) int64."""
    for i in range(keys.size):
        hashes[i] = mix(at(keys[i]) ^ secret)


@kernel()
def find_keys(keys, table_ends, secrets, starts, hashes, places, row_keys, rows, absent):
    """Find the rows of a batch's distinct keys, table by table.

    keys (U,) int64; table_ends (T,) end of each table's keys; secrets (T,) uint64; starts (T + 1,) first row of each
    table; row_keys (all rows,) key of each row. Outputs: hashes (U,) uint64; rows (U,) int64, the first row of the
    table for a key without one; absent int64, the positions of those, whose number is returned.

    One loop reads places, the next one keys, each with prefetches: a search takes 11 ns. In a single loop that reads
    the keys of later places without, it takes 34 (26,000 of 2.5 million keys in 26 tables, load 0.58).
    """
    first = num_left = 0
    for table in range(table_ends.size):
        hash_keys(keys[first : table_ends[table]], secrets[table], hashes[first : table_ends[table]])
        first = table_ends[table]
    guess_rows(hashes[: keys.size], places, rows)
    first = 0
    for table in range(table_ends.size):
        start, most = at(starts[table]) + ONE, at(starts[table + 1] - starts[table] - 1)
        for u in range(first, table_ends[table]):
            if u + AHEAD < keys.size:
                prefetch_item(row_keys, rows[u + AHEAD])
            row = at(rows[at(u)])
            absent[at(num_left)] = u
            num_left += not ((row_keys[row] == keys[at(u)]) & (row - start < most))
        first = table_ends[table]
    return search_keys(keys, table_ends, starts, hashes, places, row_keys, rows, absent[:num_left])


@kernel()
def guess_rows(hashes, places, rows):
    """rows (U,) int64: the first row from the home of each hash (U,) on with its highest bits, or 0."""
    num_places = at(places.size)
    for u in range(hashes.size):
        if u + AHEAD < hashes.size:
            place = home(hashes[u + AHEAD] >> S32, num_places)
            prefetch_item(places, place)
            prefetch_item(places, place + FOUR)  # half of the time the next line, which a search may reach
        high = hashes[u] >> S32
        place = home(high, num_places)
        entry = places[place]
        while (entry >> S32 != high) & (entry != ZERO):
            place = after(place, num_places)
            entry = places[place]
        rows[u] = entry & LOW32


@kernel()
def search_keys(keys, table_ends, starts, hashes, places, row_keys, rows, absent):
    """`find_keys` for the positions `absent` (n,), ascending, whose guess is no row or that of another key."""
    num_places = at(places.size)
    num_absent = table = 0
    for i in range(absent.size):
        u = at(absent[i])
        while absent[i] >= table_ends[table]:
            table += 1
        start, most = at(starts[table]) + ONE, at(starts[table + 1] - starts[table] - 1)
        if rows[u] == 0:  # no row with these bits
            rows[u] = start - ONE
            absent[num_absent] = absent[i]
            num_absent += 1
            continue
        high, key = hashes[u] >> S32, keys[u]
        place = home(high, num_places)
        entry = places[place]
        row = entry & LOW32
        # The same key may be in several tables, with equal bits in the index.
        while (entry != ZERO) & ((entry >> S32 != high) | (row_keys[row] != key) | (row - start >= most)):
            place = after(place, num_places)
            entry = places[place]
            row = entry & LOW32
        rows[u] = start - ONE if entry == ZERO else row
        absent[num_absent] = absent[i]
        num_absent += entry == ZERO
    return num_absent


@kernel()
def enter(entry, place, places):
    """Write an entry to the first empty place from `place` on; returns it."""
    place, num_places = at(place), at(places.size)
    while places[place] != ZERO:
        place = after(place, num_places)
    places[place] = entry
    return place


@kernel()
def insert_rows(hashes, rows, places):
    """Enter rows (n,), none of which is in the index, under hashes (n,); more than n places must be empty."""
    num_places = at(places.size)
    for i in range(rows.size):
        high = hashes[i] >> S32
        enter((high << S32) | at(rows[i]), home(high, num_places), places)


@kernel()
def copy_places(old, places, block):
    """Enter all rows of an index into a larger, empty one.

    Homes are in the order of hashes in both. So, from an empty place on, nearly each entry goes to its home, or right
    behind the entry before it if it is at home in the same run of full places: no place is read. Only entries that have
    been pushed behind others, whose homes are now apart from theirs, search. block (any size,) uint64: memory for
    entries without the empty places between them, which no branch predictor foresees. Together, 600,000 rows take 1.7
    ms instead of 5.3.
    """
    num_places = at(places.size)
    first = 0
    while old[first] != ZERO:
        first += 1
    start = end = ZERO  # of the latest run of full places
    for begin in range(first, old.size, block.size):
        count = 0
        for i in range(begin, min(begin + block.size, old.size)):
            block[count] = old[i]
            count += old[i] != ZERO
        for i in range(count):
            first_choice = home(block[i] >> S32, num_places)
            place = max(first_choice, end)
            if (first_choice < start) | (place == num_places):
                end = max(end, enter(block[i], first_choice, places) + ONE)
                continue
            start = place if first_choice > end else start
            end = place + ONE
            places[place] = block[i]
    for i in range(first):
        enter(old[i], home(old[i] >> S32, num_places), places)


@kernel()
def remove_rows(hashes, rows, places):
    """Remove rows (n,) with hashes (n,), all of which are in the index.

    The entries that follow are shifted back, so no place is marked as deleted and searches never get longer.
    """
    num_places = at(places.size)
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            prefetch_item(places, home(hashes[i + AHEAD] >> S32, num_places))
        hole = home(hashes[i] >> S32, num_places)
        while places[hole] & LOW32 != at(rows[i]):
            hole = after(hole, num_places)
        gap, place = ONE, after(hole, num_places)  # from the hole to the place
        while places[place] != ZERO:
            first = home(places[place] >> S32, num_places)
            away = place - first if place >= first else place + num_places - first
            if away >= gap:
                places[hole] = places[place]
                hole, gap = place, ZERO
            place = after(place, num_places)
            gap += ONE
        places[hole] = ZERO


@kernel()
def count_keys(hashes, absent, counts, table_ends, admit, cells, cell_starts, counted, admitted):
    """Count the lookups of keys without a row; list those that reach `admit`.

    hashes (U,); absent (n,) positions of keys without a row, ascending; counts (U,) int32 lookups; table_ends (T,);
    admit (T,) int64; cells uint8, LINES lines for each table from cell_starts (T + 1,) on, none where admit is 1.
    counted (T,) int64 grows by the number of keys counted. Outputs: admitted int64, positions; returns their number.
    """
    num_admitted = table = 0
    for i in range(absent.size):
        u = absent[i]
        while u >= table_ends[table]:
            table += 1
        admitted[num_admitted] = u
        if admit[table] == 1:
            num_admitted += 1
            continue
        first, width = at(cell_starts[table]), at((cell_starts[table + 1] - cell_starts[table]) // LINES)
        count = np.int64(MOST_COUNT)
        for line in range(LINES):
            cell = home(mix(hashes[u] + at(line + 1) * GOLDEN) >> S32, width)
            count = min(count, np.int64(cells[first + at(line) * width + cell]))
        count = min(count + np.int64(counts[u]), np.int64(MOST_COUNT))
        for line in range(LINES):
            cell = first + at(line) * width + home(mix(hashes[u] + at(line + 1) * GOLDEN) >> S32, width)
            cells[cell] = max(np.int64(cells[cell]), count)
        counted[table] += 1
        num_admitted += count >= admit[table]
    return num_admitted


@kernel()
def take_rows(keys, hashes, admitted, table_ends, starts, num_live, num_used, first_free, row_keys, rows, refused):
    """Give admitted keys rows, in order, while their table has any; returns the number of keys that got one.

    keys, hashes, rows (U,); admitted (n,) positions, ascending, and then the positions of keys with rows first; per
    table (T,) int64: num_live keys; num_used, the first row that never had a key; first_free, the latest freed row, or
    0. A freed row's key is the next freed row. refused (T,) gets the number of keys without a row. The hashes of keys
    that got rows are moved to the front.
    """
    num_taken = table = 0
    for i in range(admitted.size):
        u = admitted[i]
        while u >= table_ends[table]:
            table += 1
        row = first_free[table]
        if row > 0:
            first_free[table] = row_keys[row]
        elif num_used[table] < starts[table + 1]:
            row = num_used[table]
            num_used[table] += 1
        else:
            refused[table] += 1
            continue
        num_live[table] += 1
        row_keys[row] = keys[u]
        rows[u] = row
        admitted[num_taken] = u
        hashes[num_taken] = hashes[u]  # num_taken <= u
        num_taken += 1
    return num_taken


@kernel()
def list_freed(first_free, row_keys, rows):
    """List freed rows (n,), latest first; returns what follows the last one, which is 0 for all of them."""
    for i in range(rows.size):
        rows[i] = first_free
        first_free = row_keys[first_free]
    return first_free


@kernel()
def push_free(first_free, row_keys, rows):
    """Add rows (n,) to the freed ones; returns the first one."""
    for i in range(rows.size):
        row_keys[rows[i]] = first_free
        first_free = rows[i]
    return first_free


@kernel()
def merge_unadmitted(rows, counts, table_ends, starts, merged, out_rows, out_counts, out_ends, lookups):
    """Make one distinct row of all keys of a table without a row.

    rows (U,) int64, the first row of the table for keys without one; counts (U,) int32; table_ends (T,); starts (T +
    1,). Outputs: merged (U,) int32 new number of each distinct key; of the distinct rows, in order of first lookup:
    out_rows int64, out_counts int32, out_ends (T,); lookups (T,) int64 of keys without a row. Returns the number of
    distinct rows.
    """
    num_rows = first = 0
    for table in range(table_ends.size):
        shared = -1
        for u in range(first, table_ends[table]):
            is_shared = rows[u] == starts[table]
            lookups[table] += is_shared * counts[u]
            if is_shared and shared >= 0:
                merged[u] = shared
                out_counts[shared] += counts[u]
                continue
            if is_shared:
                shared = num_rows
            merged[u] = num_rows
            out_rows[num_rows] = rows[u]
            out_counts[num_rows] = counts[u]
            num_rows += 1
        out_ends[table] = num_rows
        first = table_ends[table]
    return num_rows


@kernel()
def renumber(inverse, merged):
    """inverse[p] = merged[inverse[p]], in place; int32."""
    for p in range(inverse.size):
        inverse[p] = merged[at(inverse[p])]
