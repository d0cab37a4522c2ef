"""`Counter`: columns without gaps, each explained, the same for kernels and reports."""

import inspect

from adaptive import counters
from adaptive.counters import Counter
from adaptive.kernels.planning import books, watched
from adaptive.training.telemetry import record as telemetry


def test_columns_are_numbered_from_zero_without_gaps() -> None:
    assert [int(counter) for counter in Counter] == list(range(len(Counter)))


def test_every_counter_is_explained() -> None:
    source = inspect.getsource(counters.Counter)
    assert source.count('"""') == 2 * (len(Counter) + 1)


def test_kernels_use_the_same_columns() -> None:
    used = {**vars(books), **vars(watched)}
    known = {name: value for name, value in used.items() if name in Counter.__members__}
    for module in (books, watched):
        assert all(known[name] == value for name, value in vars(module).items() if name in known)
    assert len(known) == 13
    assert known == {name: Counter[name] for name in known}


def test_reports_use_the_same_counters() -> None:
    assert telemetry.Counter is Counter
