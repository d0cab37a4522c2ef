"""Mutated lines, read by the tokeniser and by an oracle in plain Python: the same values, the same lines called bad."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from support import text_twin
from support.attacks import Campaign, attack

from adaptive.data.data_options import DataOptions
from adaptive.data.kernels import text as kernels
from adaptive.data.open import open_dataset
from adaptive.data.rows.row_source import Column, RowFormat
from adaptive.errors import InputError

pytestmark = attack

LINES = 4000  # of a file
FORMATS = {
    "criteo": text_twin.PLAIN,
    "csv": RowFormat(
        (
            Column("label", kernels.LABEL_SET),
            Column("price", kernels.DENSE_FLOAT),
            Column("name", kernels.KEY_TEXT),
            Column("tags", kernels.KEY_BAG, item=kernels.KEY_TEXT, inner="|"),
            Column("user", kernels.KEY_INTEGER, required=True),
            Column("when", kernels.TIME_ISO),
        ),
        separator=",",
        quote='"',
        max_line_bytes=160,
        positives=("buy", "a b"),
        nulls=("NA", "NaN", "\\N"),
    ),
}
GOOD = {
    "criteo": [b"0\t12\tff01", b"1\t\t", b"1\t-3\tABCdef0123", b"0.0\t9223372036854775807\t0"],
    "csv": [
        b"buy,1.5e-3,ann,a|b|c,7,2020-02-29 23:59:59.999+05:30", b'"a b","1e38","x,""y""",,-5,1999-12-31T01:02:03Z',
        b"sell,,,\xc3\xa4|\xe2\x82\xac,9223372036854775807,1970-01-01", b"buy,-0.0,z,||,0,2038-01-19 03:14:08.25",
        b'buy,NaN,\\N,NA|b|"",7,1970-01-01', b'buy,"NA","NaN",NaN,3,1970-01-01',
    ],
}  # fmt: skip
PIECES = [
    b"", b"0", b"9", b"e", b"E5", b"e-45", b".", b"-", b"+", b",", b"\t", b'"', b'""', b"|", b"\r", b"\0", b" ", b":",
    b"\xff", b"\xc3", b"nan", b"inf", b"1e999", b"0x1", b"T", b"Z", b"24:00:00", b"-02-30", b"f" * 17, b"9" * 25,
    b".1e-45+05:30", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"x" * 200,
    b"NA", b"NaN", b"\\N", b"N",
]  # fmt: skip


def mutated(line: bytes, rng: np.random.Generator) -> bytes:
    """A line with some pieces put in, cut out, doubled or replaced."""
    for _ in range(int(rng.integers(0, 4))):
        at, length = int(rng.integers(len(line) + 1)), int(rng.integers(0, 5))
        piece = PIECES[int(rng.integers(len(PIECES)))]
        match int(rng.integers(4)):
            case 0:
                line = line[:at] + piece + line[at:]
            case 1:
                line = line[:at] + line[at + length :]
            case 2:
                line = line[:at] + piece + line[at + length :]
            case _:
                line = line[:at] + line[at : at + length] * 2 + line[at + length :]
    return line.replace(b"\n", b"")


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_lines_are_read_as_the_oracle_reads_them(name: str, tmp_path: Path) -> None:
    form, campaign = FORMATS[name], Campaign(f"mutated lines, {name}", 2)
    for seed, rng in campaign.tries():
        lines = [mutated(GOOD[name][int(rng.integers(len(GOOD[name])))], rng) for _ in range(LINES)]
        content = b"".join(line + (b"\r\n" if rng.random() < 0.1 else b"\n") for line in lines)
        content = b"0" + content if content.startswith(b"\x1f\x8b") else content
        path = tmp_path / "data"
        path.write_bytes(gzip.compress(content, 1) if seed % 4 == 3 else content)
        actual, caught = text_twin.read_all(path, form, chunk_bytes=int(rng.integers(1, 5000)), rows=500)
        rows, bad, _ = text_twin.read(content, form)
        assert caught == bad
        text_twin.assert_same(actual, rows)
        campaign.outcomes["lines"] = campaign.outcomes.get("lines", 0) + LINES
        campaign.outcomes["values"] = campaign.outcomes.get("values", 0) + len(rows) * len(form.columns)


@pytest.mark.parametrize("text", ["01:02:00.1e-45+05:30", "23:59:59.2e5Z", "23:59:59.2E+5", "00:00:00.e1", "00:00:00."])
def test_a_time_with_an_exponent_in_its_fraction_is_a_bad_value(text: str, tmp_path: Path) -> None:
    line = f"buy,1,a,b,7,2020-01-01 {text}\n".encode()
    (tmp_path / "data").write_bytes(line + b"buy,1,a,b,7,2020-01-01 00:00:00.125\n")
    actual, caught = text_twin.read_all(tmp_path / "data", FORMATS["csv"])
    assert caught == [(1, "time")] and actual[0].values["when"] == 1577836800.125


def test_a_criteo_file_whose_first_line_has_no_label(tmp_path: Path) -> None:
    inputs = "\t".join(["1"] * 13 + ["ff"] * 26)
    (tmp_path / "day").write_text(f"{inputs}\n1\t{inputs}\n")
    dataset = open_dataset(f"criteo:{tmp_path / 'day'}", DataOptions())
    with pytest.raises(
        InputError, match=r"expected a label column to train with, got a first line without one\. Correct"
    ):
        next(dataset.train(1))
