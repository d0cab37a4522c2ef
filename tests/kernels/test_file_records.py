"""Kernels that move rows between a file and a staging block: runs, packing, reading, writing."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.variants import both, plain

from adaptive.kernels import file_records as records

Choose = Callable[[Any], Callable[..., Any]]


def plan(choose: Choose, rows: list[int], max_gap: int, capacity: int) -> tuple[int, list[int], list[int], list[int]]:
    """(rows planned, first rows, starts, places) of the runs."""
    first_rows, starts = np.empty(capacity, np.int64), np.empty(capacity + 1, np.int64)
    places = np.full(len(rows), -1)
    planned, num_runs = choose(records.plan_runs)(
        np.array(rows, np.int64), max_gap, capacity, first_rows, starts, places
    )
    return planned, first_rows[:num_runs].tolist(), starts[: num_runs + 1].tolist(), places[:planned].tolist()


@both
@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 60), max_size=30).map(sorted), max_gap=st.integers(0, 5), capacity=st.integers(1, 12)
)
def test_every_row_is_staged_once_in_a_run_of_near_rows(
    choose: Choose, rows: list[int], max_gap: int, capacity: int
) -> None:
    planned, first_rows, starts, places = plan(choose, rows, max_gap, capacity)
    assert planned > 0 or not rows
    assert starts[-1] <= capacity
    runs = [(first, first + b - a) for first, (a, b) in zip(first_rows, pairwise(starts), strict=True)]
    staged = [row for first, last in runs for row in range(first, last)]  # file row of each staged row
    assert staged == sorted(set(staged))
    assert [staged[place] for place in places] == rows[:planned]
    wanted = np.array(rows[:planned])
    for first, last in runs:
        inside = np.unique(wanted[(wanted >= first) & (wanted < last)])
        assert inside[0] == first and inside[-1] == last - 1
        assert (np.diff(inside) <= max_gap + 1).all()


@both
def test_runs_go_to_the_file_and_come_back(choose: Choose, tmp_path: Path) -> None:
    """Records of 12 bytes: runs that begin and end inside pages, at page borders and across them."""
    first_rows, starts = np.array([0, 340, 1023, 3000]), np.array([0, 2, 4, 6, 1030])
    block = np.random.default_rng(0).random((1030, 3), np.float32)
    unfinished, vector = np.empty(4, np.int64), np.empty(2, np.int64)
    fd = os.open(tmp_path / "rows", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, 12 * 5000)
        assert choose(records.write_runs)(fd, first_rows, starts, 4, block, unfinished) == 0
        whole = np.frombuffer(os.pread(fd, 12 * 5000, 0), np.float32).reshape(-1, 3)
        back = np.zeros_like(block)
        assert choose(records.read_runs)(fd, first_rows, starts, 4, back, unfinished, vector) == 0
    finally:
        os.close(fd)
    expected = np.zeros((5000, 3), np.float32)
    for first, (start, stop) in zip(first_rows, pairwise(starts), strict=True):
        expected[first : first + stop - start] = block[start:stop]
    assert np.array_equal(whole, expected)
    assert np.array_equal(back, block)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system takes no advice on files")
def test_pages_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, size, advice: asked.append((at, size)), raising=False)
    with open(tmp_path / "rows", "wb+") as file:
        plain(records.expect)(file.fileno(), np.array([0, 1, 340, 341, 342, 900]), 12)
    assert asked == [(0, 12), (341 * 12, 12), (900 * 12, 12)]


@both
def test_runs_that_are_cut_short_or_fail_are_listed(choose: Choose, tmp_path: Path) -> None:
    first_rows, starts = np.array([1, 4, 8]), np.array([0, 2, 4, 6])
    block, unfinished, vector = np.zeros((6, 3), np.float32), np.full(3, -1, np.int64), np.empty(2, np.int64)
    (tmp_path / "short").write_bytes(bytes(12 * 5))  # the second run is half there, the third is not
    fd = os.open(tmp_path / "short", os.O_RDONLY)
    try:
        assert choose(records.read_runs)(fd, first_rows, starts, 3, block, unfinished, vector) == 2
        assert unfinished[:2].tolist() == [1, 2]
        assert choose(records.write_runs)(fd, first_rows, starts, 3, block, unfinished) == 3  # not open for writing
    finally:
        os.close(fd)
    assert unfinished.tolist() == [0, 1, 2]


@both
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_runs_unfinished(choose: Choose) -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        unfinished = np.empty(1, np.int64)
        block = np.zeros((2, 3), np.float32)
        assert choose(records.write_runs)(fd, np.array([0]), np.array([0, 2]), 1, block, unfinished) == 1
    finally:
        os.close(fd)
