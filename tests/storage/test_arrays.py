"""Arrays that are written and read by blocks: the same file, the same values, the same refusals."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.errors import CheckpointError
from adaptive.storage.arrays import DTYPES, ArrayFile, Blocks, _header, read_array, whole, write_array
from adaptive.storage.durable import DISK, Disk

VALUES = np.arange(21, dtype=np.float32).reshape(7, 3)


def in_blocks(array: np.ndarray[Any, Any], length: int) -> Blocks:
    def make() -> Iterator[np.ndarray[Any, Any]]:
        return (array[first : first + length] for first in range(0, len(array), length))

    return Blocks(array.dtype, array.shape, make)


def opened(path: Path, facts: dict[str, Any]) -> ArrayFile:
    return ArrayFile(path, facts["dtype"], tuple(facts["shape"]), facts["size"])


@pytest.mark.parametrize("length", [1, 3, 7, 100])
def test_blocks_are_written_as_the_array_is(tmp_path: Path, length: int) -> None:
    expected = write_array(tmp_path / "a.npy", VALUES, DISK)
    actual = write_array(tmp_path / "b.npy", in_blocks(VALUES, length), DISK)
    assert {**actual, "file": "a.npy"} == expected
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert np.array_equal(np.load(tmp_path / "b.npy", allow_pickle=False), VALUES)


def test_a_block_is_made_when_the_one_before_is_written(tmp_path: Path) -> None:
    """Or else all of them would be in memory."""
    events = list[str]()

    class Watched(Disk):
        def write(self, file: BinaryIO, data: bytes | memoryview) -> None:
            events.append("written")
            super().write(file, data)

    def make() -> Iterator[np.ndarray[Any, Any]]:
        for row in VALUES:
            events.append("made")
            yield row[None]

    write_array(tmp_path / "a.npy", Blocks(VALUES.dtype, VALUES.shape, make), Watched())
    assert events == ["written", *7 * ["made", "written"]]


@settings(max_examples=30, deadline=None)
@given(first=st.integers(0, 7), length=st.integers(0, 7))
def test_a_file_gives_every_part_of_its_array(
    tmp_path_factory: pytest.TempPathFactory, first: int, length: int
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "a.npy"
    file = opened(path, write_array(path, VALUES, DISK))
    last = min(first + length, 7)
    assert np.array_equal(file.read(first, last), VALUES[first:last])
    assert np.array_equal(whole(file), VALUES) and whole(VALUES) is VALUES


@given(dtype=st.sampled_from(DTYPES), shape=st.lists(st.integers(0, 10**12), max_size=32).map(tuple))
def test_headers_are_those_of_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    assert _header(np.dtype(dtype), shape) == out.getvalue()


def test_a_file_that_is_open_may_be_removed(tmp_path: Path) -> None:
    """As a checkpoint is when a run that goes on writes the next one."""
    file = opened(tmp_path / "a.npy", write_array(tmp_path / "a.npy", VALUES, DISK))
    (tmp_path / "a.npy").unlink()
    assert np.array_equal(file.read(), VALUES)


@pytest.mark.parametrize("position", [0, 70, 130, -1])
def test_any_flipped_byte_is_noticed(tmp_path: Path, position: int) -> None:
    facts = write_array(tmp_path / "a.npy", VALUES, DISK)
    data = bytearray((tmp_path / "a.npy").read_bytes())
    data[position] ^= 1
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"sha256|header"):
        opened(tmp_path / "a.npy", facts).check(facts["sha256"])
    with pytest.raises(CheckpointError, match=r"sha256|header"):
        read_array(tmp_path / "a.npy", facts["dtype"], tuple(facts["shape"]), facts["size"], facts["sha256"])


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.npy", write_array(tmp_path / "a.npy", VALUES, DISK))
    with open(tmp_path / "a.npy", "r+b") as raw:
        raw.truncate(150)
    assert np.array_equal(file.read(0, 1), VALUES[:1])
    with pytest.raises(CheckpointError, match="The file shrank while it was read"):
        file.read()
