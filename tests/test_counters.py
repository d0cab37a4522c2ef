"""`Counter`: columns without gaps, the same for kernels and reports."""

from adaptive.counters import Counter
from adaptive.kernels.planning import books, hot_set


def test_columns_are_numbered_from_zero_without_gaps() -> None:
    assert [int(counter) for counter in Counter] == list(range(len(Counter)))


def test_kernels_use_the_same_columns() -> None:
    used = {**vars(books), **vars(hot_set)}
    known = {name: value for name, value in used.items() if name in Counter.__members__}
    for module in (books, hot_set):
        assert all(known[name] == value for name, value in vars(module).items() if name in known)
    assert len(known) == 13
    assert known == {name: Counter[name] for name in known}
