"""From counter arrays to records."""

import numpy as np

from adaptive.counters import Counter
from adaptive.training.telemetry.record import TableCounts, add_counts, sum_tables, table_counts


def test_two_tables_written_out():
    counts = np.zeros((2, len(Counter)), np.int64)
    counts[0, [Counter.LOOKUPS, Counter.LOOKUP_HITS, Counter.UNIQUE_ROWS, Counter.ROW_HITS]] = 100, 75, 40, 10
    counts[0, [Counter.ADMITTED, Counter.FETCHED, Counter.EVICTED, Counter.WRITTEN_BACK]] = 30, 29, 20, 19
    counts[0, [Counter.BYTES_H2D, Counter.BYTES_D2H]] = 29 * 64, 19 * 64
    counts[1, [Counter.LOOKUPS, Counter.SKIPPED_LOOKUPS, Counter.UNIQUE_ROWS, Counter.SKIPPED_UPDATES]] = 10, 9, 4, 3
    tables = table_counts(
        ["site", "user"],
        counts,
        resident_rows=np.array([500, 600]),
        saturated_rows=np.array([0, 7]),
    )
    assert list(tables) == ["site", "user"]
    assert tables["site"] == TableCounts(
        lookups=100,
        lookup_hits=75,
        unique_rows=40,
        row_hits=10,
        admitted=30,
        fetched=29,
        bytes_h2d=29 * 64,
        evicted=20,
        written_back=19,
        bytes_d2h=19 * 64,
        resident_rows=500,
    )
    assert (tables["site"].hit_rate, tables["site"].row_hit_rate) == (0.75, 0.25)
    assert (tables["user"].skipped_lookup_share, tables["user"].skipped_update_share) == (0.9, 0.75)
    assert all(type(value) is int for table in tables.values() for value in vars(table).values())


def test_sums_over_tables_and_over_time():
    first = TableCounts(lookups=1, resident_rows=10, saturated_rows=2, bytes_h2d=64)
    second = TableCounts(lookups=2, resident_rows=20, saturated_rows=3, bytes_h2d=128)
    assert sum_tables([first, second]) == TableCounts(lookups=3, resident_rows=30, saturated_rows=5, bytes_h2d=192)
    assert add_counts(first, second) == TableCounts(lookups=3, resident_rows=20, saturated_rows=3, bytes_h2d=192)
    assert sum_tables([]) == TableCounts()
