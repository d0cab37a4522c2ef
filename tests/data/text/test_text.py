# ruff: noqa: E501 (the table of cases)
"""The text reader against its twin, on written-out cases and on random lines with faults, for all chunk borders."""

import gzip
import json
import math
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import text_twin
from support.text_twin import ALL_BAD, PLAIN, allow, assert_same, read_all

from adaptive.data.kernels import text as kernels
from adaptive.data.kernels import text_fields
from adaptive.data.rows import rejects
from adaptive.data.rows.data_files import find_files
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_source import Block, Column, Position, RowFormat
from adaptive.data.text.text_reader import _BINARY, TextSource
from adaptive.errors import InputError

QUOTED = RowFormat(  # every other kind
    (
        Column("label", kernels.LABEL_SET),
        Column("skipped", kernels.SKIP),
        Column("price", kernels.DENSE_FLOAT),
        Column("name", kernels.KEY_TEXT),
        Column("tags", kernels.KEY_BAG, item=kernels.KEY_TEXT, inner="|"),
        Column("user", kernels.KEY_INTEGER, required=True),
        Column("words", kernels.KEY_BAG, item=kernels.KEY_HEX, inner=";"),
        Column("when", kernels.TIME_ISO),
    ),
    separator=",",
    quote='"',
    max_line_bytes=120,
    positives=("buy", "a b"),
    nulls=("NA", "NaN", "\\N", "n.a"),
)
LISTS = RowFormat(
    (
        Column("user", kernels.KEY_INTEGER, required=True),
        Column("items", kernels.KEY_BAG, item=kernels.KEY_INTEGER, inner=" "),
    ),
    separator=" ",
    max_line_bytes=60,
)
RATED = RowFormat(
    (Column("label", kernels.LABEL_THRESHOLD), Column("user", kernels.KEY_INTEGER), Column("t", kernels.TIME_NUMBER)),
    separator=",",
    header=True,
    max_line_bytes=50,
    threshold=3.5,
)


CASES = {
    # name: (format, bytes, good lines, bad lines with causes)
    "plain": (PLAIN, b"0\t1\tff\n1\t\t\n", [1, 2], []),
    "no last line feed": (PLAIN, b"0\t1\tff\n1\t2\tfe", [1, 2], []),
    "CRLF": (PLAIN, b"0\t1\tff\r\n1\t2\t\r\n1\t2\tfe\r", [1, 2, 3], []),
    "byte order mark": (PLAIN, b"\xef\xbb\xbf0\t1\tff\n1\t2\tfe\n", [1, 2], []),
    "byte order mark only": (PLAIN, b"\xef\xbb\xbf", [], []),
    "nothing": (PLAIN, b"", [], []),
    "empty lines": (PLAIN, b"\n0\t1\tff\n\r\n\n1\t1\tff\n\n", [2, 5], [(1, "empty"), (3, "empty"), (4, "empty"), (6, "empty")]),
    "columns": (PLAIN, b"0\t1\n0\t1\tff\t\n0\t1\tff\n\t\t\t\n7\n", [3], [(1, "columns"), (2, "columns"), (4, "columns"), (5, "columns")]),
    "number": (PLAIN, b"0\tx\tff\n0\t1x\tff\n0\t1.5\tff\n0\t-\tff\n0\t-12\tff\n0\t 1\tff\n", [5], [(n, "number") for n in (1, 2, 3, 4, 6)]),
    "number too long": (PLAIN, b"0\t9223372036854775807\t1\n0\t9223372036854775808\t1\n0\t-9223372036854775807\t1\n0\t00000000000000000000\t1\n", [1, 3], [(2, "number"), (4, "number")]),
    "hex": (PLAIN, b"0\t1\tfg\n0\t1\t0123456789ABCdef\n0\t1\t00123456789abcdef\n0\t1\t-1\n", [2], [(1, "hex"), (3, "hex"), (4, "hex")]),
    "label": (PLAIN, b"\t1\tff\n2\t1\tff\nx\t1\tff\n1.0\t1\tff\n0e5\t1\tff\n-1\t1\tff\n", [4, 5], [(1, "label"), (2, "label"), (3, "label"), (6, "label")]),
    "nul": (PLAIN, b"0\t1\t\0\n0\t1\tff\n\0\n0\t1\tff\n", [2, 4], [(1, "nul"), (3, "nul")]),
    "utf8": (PLAIN, b"0\t1\t\xff\n0\t\xc3\xa4\tff\n", [], [(1, "utf8"), (2, "number")]),
    "overlong": (PLAIN, b"0\t1\t" + b"f" * 37 + b"\n0\t1\t" + b"f" * 16 + b"\n" + b"0" * 300 + b"\n1\t1\tff", [2, 4], [(1, "overlong"), (3, "overlong")]),
    "overlong at the end": (PLAIN, b"0\t1\tff\n" + b"\t" * 41, [1], [(2, "overlong")]),
    "of just the length allowed": (PLAIN, b"0\t1\t" + b"f" * 36 + b"\n", [], [(1, "hex")]),
    "quotes": (QUOTED, b'"buy","x,y","1.5","a""b","p|q","7","ff;0","1970-01-02"\nsell,,,"",,7,,1970-01-01T01:00:00Z\n', [1, 2], []),
    "quote": (QUOTED, b'"buy,,,,,1,,1970-01-01\n"buy"x,,,,,1,,1970-01-01\nbuy,a"b,,c"d,,1,,1970-01-01\n', [3], [(1, "quote"), (2, "quote")]),
    "text": (QUOTED, 'buy,ä,,ö\u20ac,é|è,1,,1970-01-01\n'.encode() + b"buy,\xc3,,,,1,,1970-01-01\nbuy,,,,\xed\xa0\x80,1,,1970-01-01\nbuy,\0,,,,1,,1970-01-01\n", [1], [(2, "utf8"), (3, "utf8"), (4, "nul")]),
    "missing": (QUOTED, b"buy,,,,,,,1970-01-01\n,,,,,1,,1970-01-01\nbuy,,,,,1,,\n", [], [(1, "missing"), (2, "label"), (3, "time")]),
    "bag": (QUOTED, b"buy,,,,||a||b|,1,;f;;,1970-01-01\nbuy,,,,a,1,f;g,1970-01-01\n", [1], [(2, "hex")]),
    "float": (QUOTED, b"buy,,1e39,,,1,,1970-01-01\nbuy,,1e400,,,1,,1970-01-01\nbuy,,nan,,,1,,1970-01-01\nbuy,,-1.5e-3,,,1,,1970-01-01\nbuy,,1e,,,1,,1970-01-01\nbuy,,.,,,1,,1970-01-01\n", [4], [(n, "number") for n in (1, 2, 3, 5, 6)]),
    "null": (QUOTED, b'buy,NA,NaN,\\N,a|NA|\\N,7,NA;f;NaN,1970-01-01\nbuy,,"n.a","NA","NaN",7,"NA;;\\N",1970-01-01\nbuy,,NA,NAN,NA,-1,\\N,1970-01-01\r\nbuy,,,,,NA,,1970-01-01\nNA,,,,,1,,1970-01-01\nbuy,,,,,1,,NA\nbuy,,NaNa,,,1,,1970-01-01\nbuy,,"NA",,,1,NAf,1970-01-01\nbuy,,"NA"a,,,1,,1970-01-01\n', [1, 2, 3], [(4, "missing"), (5, "label"), (6, "time"), (7, "number"), (8, "hex"), (9, "quote")]),
    "time": (QUOTED, b"buy,,,,,1,,2019-02-29\nbuy,,,,,1,,2020-02-29 23:59:59.999999+00:00\nbuy,,,,,1,,2020-13-01\nbuy,,,,,1,,2020-01-01 24:00:00\n", [2], [(1, "time"), (3, "time"), (4, "time")]),
    "lists": (LISTS, b"1 2 3\n4 \n5\nx 1\n 1\n6 7  8\r\n9 1 x\n", [1, 2, 6], [(3, "columns"), (4, "number"), (5, "missing"), (7, "number")]),
    "header": (RATED, b"rating,user,t\n5,1,10\n3,1,11\n\xef\xbb\xbf1,1,1\n", [2, 3], [(4, "label")]),
    "header only": (RATED, b"rating,user,t", [], []),
    "header and mark": (RATED, b"\xef\xbb\xbfrating,user,t\r\n3.5,,-1e3\r\n", [2], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_case_by_case_with_a_chunk_border_at_every_byte(name, tmp_path):
    form, data, good, bad = CASES[name]
    path = tmp_path / "data.txt"
    path.write_bytes(data)
    rows, rejects, _ = text_twin.read(data, form)
    assert ([row.line for row in rows], rejects) == (good, bad), "the twin"
    for chunk_bytes in [*range(1, 40), 1 << 16]:
        actual, caught = read_all(path, form, chunk_bytes=chunk_bytes)
        assert caught == bad, chunk_bytes
        assert_same(actual, rows)


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_as_plain_python(name, tmp_path):
    form, data, _, bad = CASES[name]
    path = tmp_path / "data.txt"
    path.write_bytes(data)
    with plain_python():
        actual, caught = read_all(path, form, chunk_bytes=11)
    assert caught == bad
    assert_same(actual, text_twin.read(data, form)[0])


@contextmanager
def plain_python():
    """All kernels of the tokenizer without the compiler."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        for module in (text_fields, kernels):
            for name, function in list(vars(module).items()):
                if hasattr(function, "py_func"):
                    patch.setattr(module, name, function.py_func)
        yield


def lines_of(*fields, separator):
    line = st.tuples(*fields).map(separator.join)
    broken = st.tuples(line, st.integers(0, 30), st.sampled_from(["\t", ",", '"', "\0", "x", " ", "\r", "-", "é"])).map(
        lambda one: one[0][: one[1]] + one[2] + one[0][one[1] :]
    )
    raw = st.one_of(line, line, broken, st.just(""), line.map(lambda one: one * 8)).map(str.encode)
    cut = st.tuples(raw, st.integers(0, 30), st.binary(max_size=2)).map(lambda one: one[0][: one[1]] + one[2])
    return st.lists(st.one_of(raw, raw, raw, cut), max_size=12)


digits = st.one_of(
    st.just(""),
    st.sampled_from(["NA", '"NaN"', "\\N"]),
    st.integers(-(2**64), 2**64).map(str),
    st.integers(-9, 9).map(str),
)
nulls = st.sampled_from(["NA", "NaN", "\\N", "n.a"])
hexes = st.one_of(st.just(""), nulls, st.integers(0, 2**66).map(lambda x: f"{x:x}"), st.just("FFffFF"))
floats = st.one_of(
    digits,
    st.floats(-1e300, 1e300).map(repr),
    st.sampled_from(["nan", "-inf", "1e999", "0e999"]),
    st.floats(width=32).map("{:.3f}".format),
    st.just("1.e2"),
)
words = st.one_of(nulls, st.text(st.sampled_from('ab,|;"é€ \r-.'), max_size=5))
quoted = words.map(lambda word: '"' + word.replace('"', '""') + '"')
times = st.one_of(st.datetimes(text_twin.datetime(1970, 1, 2)).map(str), st.dates().map(str), words)
FORMATS = {
    "plain": (PLAIN, lines_of(st.sampled_from(["0", "1", "1.0", "2", ""]), digits, hexes, separator="\t")),
    "quoted": (
        QUOTED,
        lines_of(
            st.sampled_from(["buy", '"buy"', '"a b"', "sell", ""]),
            st.one_of(words, quoted),
            floats,
            st.one_of(words, quoted),
            st.one_of(words, quoted, st.sampled_from(["a|b", "|", "a||b", "a|NA", '"NaN|\\N"'])),
            digits,
            st.lists(hexes, max_size=3).map(";".join),
            times,
            separator=",",
        ),
    ),
    "lists": (LISTS, lines_of(digits, st.lists(digits, max_size=6).map(" ".join), separator=" ")),
    "rated": (RATED, lines_of(floats, digits, floats, separator=",")),
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_lines_with_faults_equal_the_twin(name, data, tmp_path_factory):
    form, lines = FORMATS[name]
    ends = st.sampled_from([b"\n", b"\n", b"\r\n"])
    text = b"".join(line + data.draw(ends) for line in data.draw(lines)) + data.draw(
        st.sampled_from([b"", b"1", b"\r"])
    )
    text = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text
    assume(not text.startswith(b"\x1f\x8b"))  # a gzip file, then
    path = tmp_path_factory.mktemp("random") / "data"
    path.write_bytes(gzip.compress(text) if data.draw(st.booleans()) else text)
    window = data.draw(st.sampled_from([(-math.inf, math.inf), (0.0, 1e9)]))
    options = {"chunk_bytes": data.draw(st.integers(1, 200)), "rows": data.draw(st.integers(1, 5)), "window": window}
    actual, caught = read_all(path, form, **options)
    rows, rejects, outside = text_twin.read(text, form, *window)
    assert caught == rejects
    assert_same(actual, rows)
    num_lines = (
        len(text.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")) if text.strip(b"\xef\xbb\xbf") else 0
    )
    assert len(actual) + len(caught) + outside + (form.header and num_lines > 0) == num_lines


telling = st.lists(st.sampled_from([bytes([byte]) for byte in b'01fx\t,;| ".-e\r\n\n\0\xc3\xa4\xff']), max_size=40)


@pytest.mark.parametrize("form", [PLAIN, QUOTED, LISTS, RATED], ids=["plain", "quoted", "lists", "rated"])
@settings(max_examples=150, deadline=None)
@given(text=st.one_of(telling.map(b"".join), st.binary(max_size=60)), chunk_bytes=st.integers(1, 50))
def test_random_bytes_equal_the_twin(form, text, chunk_bytes, tmp_path_factory):
    assume(not text.startswith((b"\x1f\x8b", *_BINARY)))  # refused by name
    path = tmp_path_factory.mktemp("bytes") / "data"
    path.write_bytes(text)
    actual, caught = read_all(path, form, chunk_bytes=chunk_bytes)
    rows, rejects, _ = text_twin.read(text, form)
    assert caught == rejects
    assert_same(actual, rows)


def source_of(path, form=PLAIN, *, limits=ALL_BAD, out=None, chunk_bytes=64):
    files = find_files(str(path))
    log = RejectLog(tuple(str(file.path) for file in files), limits, out and out.parent, header_lines=int(form.header))
    return TextSource(files, files, (form,) * len(files), log, chunk_bytes)


def drain(source, *, rows=4):
    block, lines = Block.empty(source.formats[0], rows), []
    with source.reader(range(len(source.files))) as reader:
        while reader.read(block):
            lines += zip(
                block.file_index[: block.num_rows].tolist(), block.columns.lines[: block.num_rows].tolist(), strict=True
            )
    return lines


def test_a_block_may_span_files_and_lines_restart_at_one(tmp_path):
    (tmp_path / "a").write_bytes(b"0\t1\tff\n0\t2\tff")
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(gzip.compress(b"bad\n1\t3\tff\n"))
    source = source_of(tmp_path / "*")
    assert drain(source) == [(0, 1), (0, 2), (2, 2)]
    assert source.log.counts == {"columns": 1}
    assert source.log.num_lines == 4


def test_two_gzip_members_are_one_file(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"0\t1\tff\n0\t2") + gzip.compress(b"\tff\n"))
    assert drain(source_of(tmp_path / "a")) == [(0, 1), (0, 2)]


@pytest.mark.parametrize("keep", [30, 0.5, -5])
def test_a_gzip_file_cut_off_names_file_and_offsets(tmp_path, keep):
    text = b"".join(b"0\t%d\t%x\n" % (n * 7919 % 1000, n * 104729 % 65536) for n in range(5000))
    whole = gzip.compress(text)
    keep = int(len(whole) * keep) if isinstance(keep, float) else keep
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[:keep])
    size = path.stat().st_size
    with pytest.raises(
        InputError,
        match=rf"cut\.gz: expected more gzip data, got the end of the file at offset {size}, after \d+ decomp",
    ):
        drain(source_of(path))


def test_damaged_gzip_data_are_an_input_error(tmp_path):
    whole = bytearray(gzip.compress(b"0\t1\tff\n" * 2000))
    whole[len(whole) // 2] ^= 0x55
    (tmp_path / "x.gz").write_bytes(whole)
    with pytest.raises(InputError, match=r"x\.gz: expected gzip data, got damaged bytes .* decompressed bytes"):
        drain(source_of(tmp_path / "x.gz"))


def test_a_file_that_vanishes_or_changes_between_passes(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0\t1\tff\n" * 10)
    source = source_of(path)
    assert len(drain(source)) == 10
    path.write_bytes(b"0\t1\tff\n" * 9)
    with pytest.raises(InputError, match=r"expected 70 bytes, as when the data set was opened, got 63"):
        drain(source)
    path.unlink()
    with pytest.raises(InputError, match=r"a: expected a readable file, got an error \(No such file"):
        drain(source)


def test_a_file_cut_short_while_it_is_read(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0\t1\tff\n" * 1000)
    source = source_of(path)
    block = Block.empty(PLAIN, 10)
    with source.reader([0]) as reader:
        reader.read(block)
        with open(path, "r+b") as file:
            file.truncate(500)
        with pytest.raises(InputError, match=r"expected 7000 bytes, .* got 500\. The file was truncated"):
            reader.read(Block.empty(PLAIN, 1000))


def test_memory_stays_bounded_for_a_line_without_end(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0" * 1_000_000 + b"\n0\t1\tff\n")
    source = source_of(path, chunk_bytes=1000)
    with source.reader([0]) as reader:
        block = Block.empty(PLAIN, 1)
        assert reader.read(block) == 1
        assert len(reader._piece._bytes) < 2000
        assert block.columns.lines[0] == 2
    assert source.log.counts == {"overlong": 1}


def test_reading_resumes_at_a_position(tmp_path):
    text = b"".join(b"0\t%d\tff\n" % n for n in range(100))
    (tmp_path / "a").write_bytes(text)
    (tmp_path / "b").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text))
    source = source_of(tmp_path / "*")
    for rows in (1, 30, 100, 130, 199):
        with source.reader([0, 1]) as reader:
            reader.read(Block.empty(PLAIN, rows))
            place = reader.position()
        block = Block.empty(PLAIN, 1)
        with source.reader([0, 1], start=place) as reader:
            assert reader.read(block) == 1
        assert (block.file_index[0], block.columns.lines[0]) == (rows // 100, rows % 100 + 1)
        assert block.columns.dense[0, 0] == rows % 100


def test_the_position_behind_a_last_line_without_line_feed(tmp_path):
    (tmp_path / "a").write_bytes(b"0\t1\tff\n0\t2\tff")
    (tmp_path / "b").write_bytes(gzip.compress(b"0\t3\tff"))
    (tmp_path / "c").write_bytes(b"0\t4\tff\n")
    source, block = source_of(tmp_path / "*"), Block.empty(PLAIN, 1)
    places = []
    with source.reader([0, 1, 2]) as reader:
        while reader.read(block):
            places.append(reader.position())
    assert places == [Position(0, 7, 2), Position(0, 13, 3), Position(1, 6, 2), Position(2, 7, 2)]
    for place, expected in zip(places, [2, 3, 4, None], strict=True):
        with source.reader([0, 1, 2], start=place) as reader:
            assert (block.columns.dense[0, 0] if reader.read(block) else None) == expected


def bad_file(tmp_path: Path, num_lines: int, bad: dict[int, bytes]) -> Path:
    path = tmp_path / "lines.tsv"
    path.write_bytes(b"".join(bad.get(n, b"0\t1\tff") + b"\n" for n in range(1, num_lines + 1)))
    return path


def test_bad_lines_are_counted_once_shown_and_written(tmp_path, caplog):
    bad = {n: b"0\tx\xff%d\tff" % n if n % 2 else b"0\t%dx\tff" % n for n in range(10, 40)}
    path, out = bad_file(tmp_path, 100, bad), tmp_path / "rejects.jsonl"
    source = source_of(path, out=out)
    for _ in range(3):  # three passes
        assert len(drain(source)) == 70
    assert source.log.counts == {"utf8": 15, "number": 15}
    assert source.log.num_lines == 100
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["line"] for record in records] == list(range(10, 40))
    assert records[0] == {"file": str(path), "line": 10, "cause": "number", "column": "count", "text": "0\t10x\tff"}
    assert records[1]["text"] == "0\tx\\xff11\tff"
    shown = [record.getMessage() for record in caplog.records]
    assert shown[0] == f"bad line {path}:10: expected a number for count, got '10x'"
    assert shown[1] == f"bad line {path}:11: expected UTF-8 text, got: 0\\tx\\xff11\\tff"
    assert len(shown) == 21
    assert shown[-1] == f"more bad lines are not shown; see {out}"


def test_too_many_bad_lines_are_explained(tmp_path):
    bad = {1: b"label\tcount\tkey", 7: b"1\t2", 8: b"\x1b[2J\t1\tff", 9: b"1\t" + b"9" * 58 + b"\tff"}
    with pytest.raises(InputError) as caught:
        drain(source_of(bad_file(tmp_path, 100, bad), limits=allow(0.02)))
    text = str(caught.value)
    assert re.search(
        r"^/.*\.tsv:1: expected a valid label for label, got 'label'\. \d of \d+ lines read so far are bad", text
    )
    assert ".tsv:7: expected 3 columns, got 2: 1\\t2\n" in text
    assert ".tsv:8: expected a valid label for label, got '\\x1b[2J'\n" in text  # nothing that a terminal would execute
    assert f".tsv:9: expected a line of at most data.max_line_bytes bytes, got: 1\\t{'9' * 58} ...\n" in text
    assert "\nlabel: expected 0 or 1, or a value for the schema's rule (threshold = NUMBER or positive" in text
    assert "\ncolumns: the line has more or fewer columns" in text
    assert "\nLine 1 may be a header: remove it" in text
    assert text.endswith("or allow more: --set data.max_bad_fraction=SHARE.")


def test_every_cause_has_a_meaning():
    assert set(rejects.MEANINGS) == set(kernels.CAUSES) - {""}


def test_the_share_of_bad_lines_is_judged_at_the_end_of_a_pass(tmp_path):
    path = bad_file(tmp_path, 1000, {1: b"x", 2: b"x"})
    assert len(drain(source_of(path, limits=allow(0.002)))) == 998
    with pytest.raises(InputError, match=r"2 of 1,000 lines .* \(2 columns\); data.max_bad_fraction = 0.001"):
        drain(source_of(path, limits=allow(0.001)))


def test_a_file_of_bad_lines_stops_early(tmp_path):
    source = source_of(bad_file(tmp_path, 5000, dict.fromkeys(range(5001), b"1,2,3")), limits=allow())
    with pytest.raises(InputError, match="separator"):
        drain(source)
    assert 100 < source.log.counts["columns"] < 1000


def test_empty_lines_are_no_reason_to_stop(tmp_path):
    source = source_of(bad_file(tmp_path, 10, {10: b""}), limits=allow(0.0))
    assert len(drain(source)) == 9
    assert source.log.counts == {"empty": 1}
