"""Damaged Parquet files and prepared data: the rows that were written, or an error by name; never anything else, nor
a byte read outside of what is there."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.attacks import SECONDS, Campaign, attack, copied, stored_files, told
from support.interrupted import assert_equal, interrupted, numbers, run
from support.parquet_rows import opened, pa, pq, rows_of, table
from support.toy import toy_config
from support.toy_runs import Hooked, in_model
from torch import Tensor

from adaptive.data.arrow.frames import from_frame
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.errors import InputError
from adaptive.training.runs import resume_run

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
        message = told(lambda: found.extend(rows_of(opened(tmp_path))), codes=(3,), names="data.parquet")  # noqa: B023
        campaign.came("told" if message else "read")
        if message is None:
            assert len(found) <= len(before)
            assert not checksums or repr(found) == repr(before)


def test_a_value_outside_of_its_dictionary(tmp_path: Path) -> None:
    """pyarrow gives such columns of damaged files, unchecked; no memory outside of the dictionary is read."""
    (tmp_path / "s.toml").write_text('label = { column = "y" }\n[[categorical]]\ncolumns = ["c"]\nhash_rows = 10\n')
    for codes in ([0, 1, 2**30], [0, -1, 1], [None, 2**30, 1]):
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(["a", "b"]), safe=False)
        frame = pa.table({"y": [0, 1, 0], "c": column})
        with pytest.raises(InputError, match="a value is outside its dictionary"):
            list(from_frame(frame, tmp_path / "s.toml").train(2))


def prepared_in(folder: Path) -> Path:
    """A folder of prepared data: a dense input, a category of one id, and one of several."""
    (folder / "data.csv").write_text(
        "y,c,d,tags\n" + "".join(f"{n % 2},a{n % 17},{n / 7},{'|'.join('xyz'[: n % 4])}\n" for n in range(200))
    )
    (folder / "s.toml").write_text(
        'label = { column = "y" }\ndense = [{ columns = ["d"] }]\n[[categorical]]\ncolumns = ["c"]\nvocabulary = true\n'
        '[[categorical]]\ncolumns = ["tags"]\ninner_separator = "|"\nhash_rows = 50\n'
    )
    prepare(f"csv:{folder / 'data.csv'}", DataOptions(schema_path=folder / "s.toml", holdout=0.2), folder / "as")
    return folder / "as"


def read_prepared(folder: Path) -> list[bytes]:
    data = open_dataset(f"prepared:{folder}", DataOptions())
    batches = [*data.train(16), *data.evaluation(16)]
    return [array.tobytes() for batch in batches for array in (batch.dense, batch.ids, batch.offsets, batch.labels)]


def test_damaged_prepared_data_are_told_or_read_as_before(tmp_path: Path) -> None:
    whole, campaign = read_prepared(prepared_in(tmp_path)), Campaign("damaged prepared data", 20)
    paths = sorted(path.relative_to(tmp_path / "as") for path in (tmp_path / "as").rglob("*") if path.is_file())
    files = [path for path in paths if path.suffix != ".json"]
    for _, rng in campaign.tries():
        path = copied(tmp_path / "as", tmp_path / "to") / files[int(rng.integers(len(files)))]
        content = path.read_bytes()
        path.write_bytes(damaged(content, 0, len(content), rng))
        found = list[bytes]()
        message = told(lambda: found.extend(read_prepared(tmp_path / "to")), codes=(2, 3, 4), names=str(tmp_path))  # noqa: B023
        campaign.came("told" if message else f"harmless in {path.name}")
        assert message or found == whole, path


def test_data_that_are_a_pipe_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.parquet")
    with pytest.raises(InputError, match=r"data\.parquet: expected a regular file, got a pipe"):
        opened(tmp_path)


CHANGES: Final[dict[str, Callable[[Path, bytes], None]]] = {
    "rewritten": lambda path, content: path.write_bytes(content),
    "replaced": lambda path, content: os.replace(written(path.with_suffix(".new"), content), path),
    "cut short": lambda path, content: os.truncate(path, len(content) // 2),
    "appended": lambda path, content: written(path, path.read_bytes() + content[-20:]),
    "touched": lambda path, content: os.utime(path),
    "moved away": lambda path, content: path.rename(path.with_suffix(".gone")),
}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def files_of_data(folder: Path, kind: str, number: int) -> Path:
    """A data file, of one size for every number; for prepared data that of their training part."""
    rng, path = np.random.default_rng(number), folder / f"data.{kind}"
    rows = rng.integers(0, 10, (400, 3))
    text = "y,c,d\n" + "".join(f"{a % 2},{b},{c}\n" for a, b, c in rows)
    if kind == "csv":
        return written(path, text.encode())
    if kind == "gz":
        return written(path, gzip.compress(text.encode(), 0, mtime=0))
    if kind == "parquet":
        columns = {name: pa.array(rows[:, column] % (2 if name == "y" else 10)) for column, name in enumerate("ycd")}
        pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False, write_statistics=False)
        return path
    shutil.rmtree(folder / "as", ignore_errors=True)
    files_of_data(folder, "csv", number)
    spec, options = spec_of(folder, "csv")
    prepare(spec, DataOptions(**options), folder / "as")
    return folder / "as/train.bin"


def spec_of(folder: Path, kind: str) -> tuple[str, dict[str, Any]]:
    """The settings that name the data of `files_of_data`."""
    if kind == "prepared":
        return f"prepared:{folder / 'as'}", {}
    schema = 'label = {column = "y"}\ndense = [{columns = ["d"]}]\n[[categorical]]\ncolumns = ["c"]\nhash_rows = 9\n'
    options = {"schema_path": written(folder / "s.toml", schema.encode()), "holdout": 0.25}
    return f"{'parquet' if kind == 'parquet' else 'csv'}:{folder / f'data.{kind}'}", options


@pytest.mark.parametrize("kind", ["csv", "gz", "parquet", "prepared"])
@pytest.mark.parametrize("change", CHANGES)
def test_data_that_change_between_epochs(tmp_path: Path, kind: str, change: str) -> None:
    other = files_of_data(tmp_path, kind, 1).read_bytes()
    path = files_of_data(tmp_path, kind, 0)
    assert len(other) == path.stat().st_size and other != path.read_bytes()
    spec, options = spec_of(tmp_path, kind)
    data = open_dataset(spec, DataOptions(**options))

    def epoch() -> list[bytes]:
        return [one.tobytes() for batch in data.train(64) for one in (batch.dense, batch.ids, batch.labels)]

    first, found = epoch(), list[bytes]()
    CHANGES[change](path, other)
    message = told(lambda: found.extend(epoch()), codes=(3, 4), names=path.name)
    assert message or found == first


def stopped(folder: Path, kind: str) -> Path:
    """A run on these data that was stopped behind six batches."""
    spec, options = spec_of(folder, kind)
    config = toy_config(data=spec, data_options=options, epochs=2)
    with pytest.MonkeyPatch.context() as patch, interrupted(patch, "stop", 6):
        run(folder / "run", config)
    assert json.loads((folder / "run/run.json").read_text()).get("summary") is None
    return folder / "run"


def kept(folder: Path) -> dict[Path, bytes]:
    """All files of a run but bad lines, which are written as data are opened, and again when it resumes."""
    return {file: file.read_bytes() for file in stored_files(folder) if file.name != "rejects.jsonl"}


CASES: Final = [(kind, change) for kind in ("csv", "gz", "parquet", "prepared") for change in CHANGES]


@pytest.mark.parametrize(("kind", "change"), CASES if SECONDS else [("gz", "rewritten")])
def test_data_that_change_between_stop_and_resume(tmp_path: Path, kind: str, change: str) -> None:
    """Refused by name, and the run is as it was; where they were only touched it ends with the same bits."""
    other, path = files_of_data(tmp_path, kind, 1).read_bytes(), files_of_data(tmp_path, kind, 0)
    content, folder = path.read_bytes(), stopped(tmp_path, kind)
    resume_run(copied(folder, tmp_path / "whole"))
    before = kept(folder)
    CHANGES[change](path, other)
    message = told(lambda: resume_run(folder), codes=(3,), names=path.name)
    assert (message is None) == (change == "touched")
    if message is not None:
        assert kept(folder) == before
        path.write_bytes(content)  # put back, it resumes
        resume_run(folder)
    assert_equal(numbers(folder), numbers(tmp_path / "whole"))


def test_a_run_that_is_renamed_between_stop_and_resume(tmp_path: Path) -> None:
    """With the same bits; of two that resume it at once, the second is refused by name."""
    files_of_data(tmp_path, "csv", 0)
    folder, refused = stopped(tmp_path, "csv"), list[str | None]()
    resume_run(copied(folder, tmp_path / "whole"))
    renamed = folder.rename(tmp_path / "renamed")

    def rival(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if not refused:
            refused.append(told(lambda: resume_run(renamed), codes=(6,), names="in use by process"))

    with pytest.MonkeyPatch.context() as patch:
        in_model(patch, rival)
        resume_run(renamed)
    assert refused and refused[0] is not None and str(renamed) in refused[0]
    assert_equal(numbers(renamed), numbers(tmp_path / "whole"))
