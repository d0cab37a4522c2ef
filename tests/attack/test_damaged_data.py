"""Damaged Parquet files and prepared data: the rows that were written, or an error by name; never anything else, nor
a byte read outside of what is there."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from attacks import Campaign, attack, copied, told
from hostile import at_once
from parquet_rows import opened, pa, pq, rows_of, table

from adaptive.data.arrow.frames import from_frame
from adaptive.data.npz import load_arrays
from adaptive.data.open import open_dataset
from adaptive.data.options import DataOptions
from adaptive.data.prepared.write import prepare
from adaptive.errors import InputError

pytestmark = attack

WRITTEN: Final[dict[str, list[Any]]] = {
    "compression": ["none", "snappy", "gzip", "zstd", "lz4"], "data_page_version": ["1.0", "2.0"],
    "data_page_size": [40, 200, 1 << 20], "use_dictionary": [True, False], "row_group_size": [37, 1000],
}  # fmt: skip


def damaged(whole: bytes, first: int, stop: int, rng: np.random.Generator) -> bytes:
    """One to three bytes in [first, stop) flipped or replaced; of some files only the beginning."""
    content = bytearray(whole)
    for at in rng.integers(first, stop, int(rng.integers(1, 4))):
        content[at] = rng.choice([0, 1, 127, 128, 255, content[at] ^ (1 << int(rng.integers(8)))])
    return bytes(content[: rng.integers(len(content))] if rng.random() < 0.05 else content)


@pytest.mark.parametrize("checksums", [True, False], ids=["checksums", "none"])
def test_damaged_pages_are_told_or_change_no_number(tmp_path: Path, checksums: bool) -> None:
    """Of pages without checksums, nobody can know that a value is another: no row too many, and no other exception.
    The footer is not damaged: pyarrow ends the process at some that are."""
    campaign, path = Campaign("damaged Parquet", 20), tmp_path / "data.parquet"
    whole, end, before = b"", 0, list[Any]()
    for number, (_, rng) in enumerate(campaign.tries()):
        if number % 20 == 0:
            drawn = {name: values[int(rng.integers(len(values)))] for name, values in WRITTEN.items()}
            rows = table(int(rng.integers(20, 200)), number, 0.2, int(rng.integers(1, 60)))
            pq.write_table(rows, path, write_page_checksum=checksums, **drawn)
            whole, before = path.read_bytes(), rows_of(opened(tmp_path))
            end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        path.write_bytes(damaged(whole, 4, end, rng))
        found = list[Any]()
        with at_once():
            message = told(lambda: found.extend(rows_of(opened(tmp_path))), codes=(3,), names="data.parquet")  # noqa: B023
        campaign.came("told" if message else "read")
        if message is None:
            assert len(found) <= len(before)
            assert not checksums or repr(found) == repr(before)


def test_a_value_that_is_the_number_of_no_entry_of_its_dictionary(tmp_path: Path) -> None:
    """pyarrow gives such columns of damaged files, unchecked; no memory outside of the dictionary is read."""
    (tmp_path / "s.toml").write_text('label = { column = "y" }\n[[categorical]]\ncolumns = ["c"]\nhash_rows = 10\n')
    for codes in ([0, 1, 2**30], [0, -1, 1], [None, 2**30, 1]):
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(["a", "b"]), safe=False)
        frame = pa.table({"y": [0, 1, 0], "c": column})
        with pytest.raises(InputError, match="a value is the number of no entry of its dictionary"):
            list(from_frame(frame, tmp_path / "s.toml").train(2))


def test_damaged_prepared_data_are_told_or_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("y,c,d\n" + "".join(f"{n % 2},a{n % 17},{n / 7}\n" for n in range(200)))
    (tmp_path / "s.toml").write_text(
        'label = { column = "y" }\ndense = [{ columns = ["d"] }]\n[[categorical]]\ncolumns = ["c"]\nvocabulary = true\n'
    )
    prepare(f"csv:{tmp_path / 'data.csv'}", DataOptions(schema_path=tmp_path / "s.toml", holdout=0.2), tmp_path / "as")

    def read(folder: Path) -> list[bytes]:
        data = open_dataset(f"prepared:{folder}", DataOptions())
        batches = [*data.train(16), *data.evaluation(16)]
        return [array.tobytes() for batch in batches for array in (batch.dense, batch.ids, batch.offsets, batch.labels)]

    whole, campaign = read(tmp_path / "as"), Campaign("damaged prepared data", 20)
    files = sorted(path.relative_to(tmp_path / "as") for path in (tmp_path / "as").rglob("*") if path.is_file())
    for _, rng in campaign.tries():
        path = copied(tmp_path / "as", tmp_path / "to") / files[int(rng.integers(len(files)))]
        content = path.read_bytes()
        path.write_bytes(damaged(content, 0, len(content), rng))
        found = list[bytes]()
        with at_once():
            message = told(lambda: found.extend(read(tmp_path / "to")), codes=(2, 3, 4), names=str(tmp_path / "to"))  # noqa: B023
        campaign.came("told" if message else f"harmless in {path.name}")
        assert message or found == whole, path


def test_data_that_are_a_pipe_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.parquet")
    with at_once(), pytest.raises(InputError, match=r"data\.parquet is a pipe or a device"):
        opened(tmp_path)
    with at_once(), pytest.raises(InputError, match=r"data\.parquet: needed dlrm's \.npz file, found"):
        load_arrays(tmp_path / "data.parquet", ("a",), "dlrm's")


def test_an_array_that_only_claims_to_be_large_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.save(header, np.zeros(5))
    claims = header.getvalue().replace(b"(5,)", b"(1000000000000000,)").replace(b" " * 15, b"", 1)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("a.npy", claims)
    with at_once(), pytest.raises(InputError, match=r"a\.npz: array a cannot be read"):
        load_arrays(tmp_path / "a.npz", ("a",), "dlrm's")
