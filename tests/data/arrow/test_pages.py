"""Columns decoded from pages: the rows that pyarrow reads, however they are written; damage ends with an error."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_rows import SCHEMA, by_pyarrow, opened, rows_of, table

from adaptive.data.arrow import row_group
from adaptive.data.open import open_dataset
from adaptive.data.options import DataOptions
from adaptive.data.text.split import read_part, survey
from adaptive.errors import AdaptiveError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adaptive-train[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")


@given(
    rows=st.integers(1, 400),
    seed=st.integers(0, 99),
    nulls=st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    distinct=st.sampled_from([1, 2, 30, 300]),
    written=st.fixed_dictionaries(
        {
            "row_group_size": st.sampled_from([37, 1000]),
            "data_page_size": st.sampled_from([40, 1 << 20]),
            "write_batch_size": st.sampled_from([7, 1024]),
            "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "use_dictionary": st.sampled_from([True, False, ["word", "user"]]),
            "dictionary_pagesize_limit": st.sampled_from([50, 1 << 20]),
        }
    ),
)
@settings(max_examples=60, deadline=None)
def test_the_rows_that_pyarrow_reads(
    tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int, nulls: float, distinct: int, written: dict
) -> None:
    folder = tmp_path_factory.mktemp("pages")
    pq.write_table(table(rows, seed, nulls, distinct), folder / "data.parquet", **written)
    with pytest.MonkeyPatch.context() as patch:
        wanted = by_pyarrow(folder, patch)
    assert len(wanted) == rows
    assert rows_of(opened(folder), 64) == wanted


def test_columns_are_decoded_here_and_reading_begins_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(500, 1, 0.2, 30), tmp_path / "data.parquet", row_group_size=300, data_page_size=64)
    taken: list[int] = []
    before = row_group._decoders

    def decoders(*arguments: object):
        found = before(*arguments)
        taken.append(len(found))
        return found

    monkeypatch.setattr(row_group, "_decoders", decoders)
    data = opened(tmp_path)
    wanted = rows_of(data)
    assert taken == [7, 7]  # all columns of both row groups
    found = survey(data._source, data._parts.train.files, mark_rows=90)
    for before_it, position in found.marks[:-1]:
        part = data._parts.train.__class__(data._parts.train.files, start=position)
        lines = [line for block in read_part(data._source, part, 64) for line in block.columns.lines[: block.num_rows]]
        assert lines == [row[0] for row in wanted[before_it:]]


def test_bad_values_are_told_with_their_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = table(40, 2, 0.0, 5)
    words = good["hex"].to_pylist()
    words[33] = "no hex"
    bad = good.set_column(4, "hex", pa.array(words))
    pq.write_table(bad, tmp_path / "data.parquet", row_group_size=30)
    (tmp_path / "schema.toml").write_text(SCHEMA.replace('missing = "row"\n', ""))
    data = open_dataset(f"parquet:{tmp_path / 'data.parquet'}", DataOptions(schema_path=tmp_path / "schema.toml"))
    with pytest.raises(AdaptiveError, match=r"row group 1\]:4: hex in column hex: no hex"):
        list(data.train(8))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_every_damaged_byte_ends_in_rows_or_an_error(tmp_path: Path, version: str, compression: str) -> None:
    """Whatever a page says of itself: no other exception, no row too many. Content that still decodes is not ours."""
    path = tmp_path / "data.parquet"
    pq.write_table(table(50, 3, 0.3, 9), path, data_page_version=version, compression=compression, data_page_size=100)
    whole, rng = path.read_bytes(), np.random.default_rng(4)
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")  # the footer is pyarrow's
    errors = 0
    for at in rng.integers(4, end, 60):
        damaged = bytearray(whole)
        damaged[at] = rng.integers(0, 256) if rng.random() < 0.5 else 255
        path.write_bytes(damaged)
        try:
            assert len(rows_of(opened(tmp_path))) <= 50
        except AdaptiveError:
            errors += 1
    assert errors
