"""Runs of values and headers of pages, compiled and as plain Python, against what was packed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive.kernels.data import parquet as kernels


def number(value: int) -> bytes:
    """A number of variable length."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def packed(runs: list[tuple[bool, list[int]]], width: int) -> tuple[bytes, list[int]]:
    """A stream of runs, repeated or packed -> (its bytes, its values)."""
    data, values = b"", list[int]()
    for is_repeated, wanted in runs:
        if is_repeated:
            data += number(len(wanted) << 1) + wanted[0].to_bytes((width + 7) // 8, "little")
            values += [wanted[0]] * len(wanted)
        else:
            wanted = wanted + [0] * (-len(wanted) % 8)
            bits = sum(value << (width * i) for i, value in enumerate(wanted))
            data += number(len(wanted) // 8 << 1 | 1) + bits.to_bytes(len(wanted) * width // 8, "little")
            values += wanted
    return data, values


def words_of(data: bytes) -> np.ndarray:
    words = np.zeros((len(data) + 23) // 8, np.uint64)
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return words


@given(data=st.data(), width=st.sampled_from([0, 1, 2, 7, 8, 15, 20, 32]), compiled=st.booleans())
@settings(max_examples=60, deadline=None)
def test_values_are_those_that_were_packed(data: st.DataObject, width: int, compiled: bool) -> None:
    one = st.lists(st.integers(0, min(2**width, 2**31) - 1), min_size=1, max_size=20)
    stream, values = packed(data.draw(st.lists(st.tuples(st.booleans(), one), min_size=1, max_size=5)), width)
    words, cursor = words_of(stream), np.zeros(kernels.CURSOR_SIZE, np.int64)
    unpack = kernels.unpack if compiled else kernels.unpack.py_func
    limit, cut = max(values) + 1, data.draw(st.integers(0, len(values)))
    found = list[int]()
    with np.errstate(over="ignore"):
        for size in (cut, len(values) - cut):
            out = np.empty(size, np.int32)
            assert unpack(words.view(np.uint8), words, len(stream), width, limit, cursor, out)
            found += out.tolist()
    assert found == values
    assert not kernels.unpack(
        words.view(np.uint8), words, len(stream), width, limit, cursor, np.empty(1, np.int32)
    )  # there are no more
    cursor[:] = 0
    assert not kernels.unpack(
        words.view(np.uint8), words, len(stream), width, limit - 1, cursor, np.empty(len(values), np.int32)
    )
    if width == 1:
        cursor[:] = 0
        flags = np.empty(len(values), np.bool_)
        unpack_flags = kernels.unpack_flags if compiled else kernels.unpack_flags.py_func
        assert unpack_flags(words.view(np.uint8), len(stream), cursor, flags) == sum(values)
        assert flags.tolist() == [bool(value) for value in values]


@given(stream=st.binary(max_size=40), width=st.integers(0, 32), count=st.integers(0, 2000))
@settings(max_examples=200, deadline=None)
def test_any_bytes_end_in_values_or_in_no(stream: bytes, width: int, count: int) -> None:
    """As plain Python, where an index beyond the array is an error."""
    words = words_of(stream)
    for unpacked in ("unpack", "unpack_flags"):
        cursor = np.zeros(kernels.CURSOR_SIZE, np.int64)
        with np.errstate(over="ignore"):
            if unpacked == "unpack":
                out = np.full(count, -1, np.int64)
                call = kernels.unpack.py_func
                if call(words.view(np.uint8), words, len(stream), width, 100, cursor, out):
                    assert (out >= 0).all() and (out < 100).all()
            else:
                flags = np.empty(count, np.bool_)
                ones = kernels.unpack_flags.py_func(words.view(np.uint8), len(stream), cursor, flags)
                assert ones in (-1, np.count_nonzero(flags))


@given(data=st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_header_or_none(data: bytes) -> None:
    array, stack = np.frombuffer(data, np.uint8), np.empty(kernels.STACK_SIZE, np.int64)
    pages = np.empty((4, kernels.PAGE_SIZE), np.int64)
    count = kernels.find_pages.py_func(array, len(array), stack, pages)
    assert -1 <= count <= 5
    for page in pages[: max(min(count, 4), 0)]:
        assert 0 <= page[kernels.START] <= page[kernels.START] + page[kernels.STORED_SIZE] <= len(data)
    assert count == kernels.find_pages(array, len(array), stack, pages)


@pytest.mark.parametrize("compiled", [True, False])
def test_texts_behind_their_lengths(compiled: bool) -> None:
    data = np.frombuffer(b"".join(len(one).to_bytes(4, "little") + one for one in (b"ab", b"", b"c")), np.uint8)
    starts, stops = np.empty(9, np.int64), np.empty(9, np.int64)
    find = kernels.find_texts if compiled else kernels.find_texts.py_func
    assert find(data, 0, len(data), starts, stops) == 3
    assert [bytes(data[a:b]) for a, b in zip(starts[:3], stops[:3], strict=True)] == [b"ab", b"", b"c"]
    assert find(data, 0, len(data) - 1, starts, stops) == -1
    assert find(data, 0, len(data), starts[:2], stops[:2]) == 2
