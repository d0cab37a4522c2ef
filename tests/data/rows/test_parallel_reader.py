"""Work done by threads comes in order; files read side by side give the batches, the bad rows and the errors of one
reader; threads are gone however it ends."""

import itertools
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import assert_same_batches

from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.rows.parallel_reader import side_by_side
from adaptive.errors import InputError

SCHEMA = """
label = { column = "click" }
dense = [{ columns = ["price"] }]

[[categorical]]
columns = ["user"]
hash_rows = 50

[[categorical]]
columns = ["tags"]
inner_separator = "|"
hash_rows = 50
"""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader-")]


# -- threads ----------------------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 9), max_size=12), threads=st.integers(1, 4), most=st.integers(1, 3),
    fails=st.none() | st.integers(0, 11),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_results_come_in_order_and_an_error_in_its_place(
    sizes: list[int], threads: int, most: int, fails: int | None
) -> None:
    def work(number: int) -> Iterator[tuple[int, int]]:
        yield from ((number, i) for i in range(sizes[number]))
        if number == fails:
            raise ValueError(f"work {number}")

    def one_after_another() -> Iterator[tuple[int, int]]:
        for number in range(len(sizes)):
            yield from work(number)

    def drained(results: Iterator[tuple[int, int]]) -> list[object]:
        actual = list[object]()
        try:
            actual.extend(iter(lambda: next(results, None), None))
        except ValueError as error:
            actual.append(str(error))
        return actual

    works = [lambda number=number: work(number) for number in range(len(sizes))]
    assert drained(side_by_side(works, threads=threads, most=most)) == drained(one_after_another())


def test_no_more_waits_than_may() -> None:
    made, enough, is_read = list[int](), threading.Event(), threading.Event()

    def work() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if len(made) == 4:  # one was taken, two wait, one has no room
                enough.set()
            yield number

    results = side_by_side([work], threads=2, most=2)
    assert next(results) == 0
    assert enough.wait(600)
    is_read.wait(0.05)
    assert len(made) == 4
    assert next(results) == 1
    results.close()
    assert len(made) <= 5


def test_works_are_taken_as_they_start() -> None:
    """A stream may have any number of them."""
    results = side_by_side((partial(iter, [number]) for number in itertools.count()), threads=2, most=1)
    assert list(itertools.islice(results, 20)) == list(range(20))
    results.close()


# -- files ------------------------------------------------------------------------------------------------------------


def rows(count: int, seed: int, bad: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    actual = [
        f"{rng.integers(2)},{rng.random():.2f},u{rng.integers(30)},{'|'.join(f't{t}' for t in range(rng.integers(4)))}"
        for _ in range(count)
    ]
    for number in range(bad):
        actual[rng.integers(count)] = f"1,x{number},u,"
    return actual


def opened(folder: Path, num_workers: int, *, bad: int = 0, **options: object):
    """Five files of 0 to 90 rows, written where they are missing: data that are open must not change."""
    (folder / "schema.toml").write_text(SCHEMA)
    for number, count in enumerate((90, 7, 0, 64, 33)):
        text = "click,price,user,tags\n" + "".join(f"{row}\n" for row in rows(count, number, bad if count else 0))
        if not (folder / f"{number}.csv").exists():
            (folder / f"{number}.csv").write_text(text)
    given = DataOptions(schema_path=folder / "schema.toml", num_workers=num_workers, **options)
    return open_dataset(f"csv:{folder}/*.csv", given)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_bytes_read_rise_to_the_bytes_of_the_files(tmp_path: Path, num_workers: int) -> None:
    data = opened(tmp_path, num_workers)
    assert data.part_read() is None
    sizes = [piece.num_bytes for piece in data._source.pieces]
    assert sizes == [path.stat().st_size for path in sorted(tmp_path.glob("*.csv"))]
    for batch_size in (16, 7):
        reads = [data.part_read() for _ in data.train(batch_size)]
        assert {(read.total, read.in_bytes) for read in reads} == {(sum(sizes), True)}
        done = [read.done for read in reads]
        assert done == sorted(done) and done[-1] == sum(sizes)
        assert done[0] == sizes[0]


@pytest.mark.parametrize("options", [{}, {"holdout": 0.3}, {"shuffle_buffer": 50}], ids=str)
def test_batches_and_bad_rows_are_those_of_one_reader(tmp_path: Path, options: dict[str, object]) -> None:
    allowed = {"max_bad_fraction": 1.0, **options}
    one, several = (opened(tmp_path, num_workers, bad=3, **allowed) for num_workers in (1, 3))
    assert one.fingerprint() == several.fingerprint()
    for size in (16, 50):
        for part in ("train", "evaluation"):
            assert_same_batches(getattr(several, part)(size), getattr(one, part)(size), places=True)
    assert one.rejects() == several.rejects() and one.rejects()["number"] > 3
    assert one.num_train_samples() == several.num_train_samples()


def test_errors_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    actual = []
    for num_workers in (1, 3):
        data = opened(tmp_path, num_workers, bad=1)
        with pytest.raises(InputError) as error:
            list(data.train(16))
        actual.append(str(error.value).splitlines()[0].split("'. ")[0])
    assert actual[0] == actual[1] and "expected a number for price, got 'x0" in actual[0]


def test_stopping_early_leaves_no_thread(tmp_path: Path) -> None:
    batches = opened(tmp_path, 3).train(8)
    next(batches)
    batches.close()
