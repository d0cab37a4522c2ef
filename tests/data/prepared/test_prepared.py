"""Prepared data: the batches of what they were made from, written whole or not at all, damage found in time."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from support.builders import assert_same_batches
from support.failing_disk import FailingDisk, fails_at_each

from adaptive.data import PartRead, prepared_reader, prepared_writer
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.open import open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.errors import ConfigError, InputError, OutputError

SCHEMA = """
[label]
column = "y"
[[dense]]
columns = ["d"]
[[categorical]]
columns = ["user"]
kind = "int"
num_embeddings = 70_000
[[categorical]]
columns = ["words"]
inner_separator = "|"
hash_rows = 200
[[categorical]]
columns = ["city"]
vocabulary = true
"""


def make_text(folder: Path, size: int = 40) -> str:
    rng = np.random.default_rng(size)
    (folder / "schema.toml").write_text(SCHEMA)
    lines = ["y,d,user,words,city"]
    for _ in range(size):
        words = "|".join(f"w{word}" for word in rng.integers(0, 9, rng.integers(0, 4)))
        lines.append(
            f"{rng.integers(0, 2)},{rng.integers(0, 9) / 4},{rng.integers(0, 70_000)},{words},c{rng.integers(5)}"
        )
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{folder / 'data.csv'}"


def options(folder: Path, **more: object) -> DataOptions:
    return DataOptions(schema_path=folder / "schema.toml", **more)


def assert_same_data(actual: Dataset, wanted: Dataset, sizes: tuple[int, ...] = (7, 16, 1000)) -> None:
    assert actual.features == wanted.features and actual.num_dense == wanted.num_dense and actual.steps == wanted.steps
    assert actual.tables == (wanted.tables or tuple(feature.name for feature in wanted.features))
    for size in sizes:
        for epoch in range(2):
            assert_same_batches(actual.train(size, epoch=epoch), wanted.train(size, epoch=epoch), places=True)
        assert_same_batches(actual.evaluation(size), wanted.evaluation(size), places=True)


@pytest.fixture(name="small_blocks", params=[13, 1 << 16])
def small_blocks_fixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_writer, "block_samples", lambda values: request.param)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("more", [{}, {"holdout": 0.3}, {"shuffle_buffer": 9, "seed": 4}], ids=str)
def test_batches_are_those_of_the_text(tmp_path: Path, more: dict[str, object]) -> None:
    spec = make_text(tmp_path)
    manifest = prepare(spec, options(tmp_path, **more), tmp_path / "out")
    reading = DataOptions(**{name: value for name, value in more.items() if name != "holdout"})
    actual = open_dataset(f"prepared:{tmp_path / 'out'}", reading)
    assert_same_data(actual, open_dataset(spec, options(tmp_path, **more)))
    assert actual.num_train_samples() == manifest.train.samples == (28 if "holdout" in more else 40)


def test_sequences_and_the_built_in_stream(tmp_path: Path) -> None:
    small = {"users": 9, "items": 90, "categories": 4, "num_train": 60, "num_eval": 20}
    for spec, given_ in (
        ("sequences", DataOptions(sequences=small, history=3)),
        ("synthetic", DataOptions(synthetic={"rows": 100_000, "num_train": 50, "num_eval": 10, "tables": 4})),
    ):
        prepare(spec, given_, tmp_path / spec)
        assert_same_data(open_dataset(f"prepared:{tmp_path / spec}", DataOptions()), open_dataset(spec, given_))


def test_small_types_hold_large_rows() -> None:
    assert [prepared_reader.id_type(rows).itemsize for rows in (1, 256, 257, 65536, 65537, 2**32, 2**32 + 1)] == [
        1, 1, 2, 2, 4, 4, 8,
    ]  # fmt: skip


def test_bad_lines_are_counted_and_written(tmp_path: Path) -> None:
    spec = make_text(tmp_path)
    with (tmp_path / "data.csv").open("a") as file:
        file.write("1,2,3\n")
    given_ = options(tmp_path, max_bad_fraction=0.5)
    prepare(spec, given_, tmp_path / "out")
    assert open_dataset(f"prepared:{tmp_path / 'out'}", DataOptions()).rejects() == {"columns": 1}
    assert json.loads((tmp_path / "out/rejects.jsonl").read_text())["line"] == 42
    assert (tmp_path / "out/vocabulary/vocabulary.json").exists()


def test_the_fingerprint_follows_the_samples_and_their_order(tmp_path: Path) -> None:
    spec = make_text(tmp_path)
    prepare(spec, options(tmp_path), tmp_path / "out")

    def fingerprint(**more: object) -> object:
        return open_dataset(f"prepared:{tmp_path / 'out'}", DataOptions(**more)).fingerprint()

    assert json.loads(json.dumps(fingerprint())) == fingerprint()
    assert fingerprint() != fingerprint(shuffle_buffer=5)
    before = fingerprint()
    shutil.rmtree(tmp_path / "out")
    prepare(spec, options(tmp_path, holdout=0.5), tmp_path / "out")
    assert fingerprint() != before


# -- written whole or not at all ------------------------------------------------------------------------------------


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    spec = make_text(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="expected a new folder, got an existing one"):
        prepare(spec, options(tmp_path), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, SystemExit])
def test_nothing_is_left_of_what_was_stopped(tmp_path: Path, stopped_by: type[BaseException]) -> None:
    spec = make_text(tmp_path)
    before = sorted(tmp_path.iterdir())

    def reports(read: PartRead) -> None:
        raise stopped_by

    with pytest.raises(stopped_by):
        prepare(spec, options(tmp_path), tmp_path / "out", begins=lambda part: reports)
    assert sorted(tmp_path.iterdir()) == before


def test_progress_of_each_part_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes of the files; in samples where it is known how many a part has; of data without files, too."""
    monkeypatch.setattr(prepared_writer, "block_samples", lambda columns: 16)
    spec = make_text(tmp_path)
    size = (tmp_path / "data.csv").stat().st_size

    def lines(name: str, spec: str, given: DataOptions) -> dict[str, list[PartRead]]:
        actual: dict[str, list[PartRead]] = {}
        prepare(spec, given, tmp_path / name, begins=lambda part: actual.setdefault(part, []).append)
        return actual

    chunked = {"num_workers": 1}
    monkeypatch.setattr("adaptive.data.text.text_reader.CHUNK_BYTES", 100)
    plain = lines("plain", spec, options(tmp_path, **chunked))
    without = (tmp_path / "schema.toml").read_text().replace("vocabulary = true", "hash_rows = 9")
    (tmp_path / "schema.toml").write_text(without)
    in_bytes = lines("bytes", spec, options(tmp_path, **chunked))
    assert [(one.total, one.in_bytes) for one in in_bytes["train"]] == [(size, True)] * 3
    done = [one.done for one in in_bytes["train"]]
    assert 0 < done[0] < done[1] < done[2] == size and not in_bytes["evaluation"]
    assert plain["train"] == [PartRead(n, 40) for n in (16, 32, 40)]  # counted when the vocabulary was fitted
    built_in = lines("built_in", "synthetic", DataOptions(synthetic={"num_train": 20, "num_eval": 4, "rows": 100_000}))
    assert built_in == {"train": [PartRead(16, 20), PartRead(20, 20)], "evaluation": [PartRead(4, None)]}


def test_when_the_disk_fails_there_is_nothing(tmp_path: Path) -> None:
    """Each operation in turn; then one that all succeed in."""
    spec = make_text(tmp_path)
    before = set(tmp_path.iterdir())

    def attempt(disk: FailingDisk) -> None:
        with contextlib.suppress(OutputError):
            prepare(spec, options(tmp_path), tmp_path / "out", disk=disk)
        if (tmp_path / "out").exists():  # all was well, or only the folder's name could not be synced
            list(open_dataset(f"prepared:{tmp_path / 'out'}", DataOptions()).train(8))
        for path in set(tmp_path.iterdir()) - before:
            assert path.name == "out" or ".tmp-" in path.name
            shutil.rmtree(path)

    assert fails_at_each(attempt) > 10


def test_data_that_cannot_be_prepared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected data that are not prepared"):
        prepare("prepared:x", DataOptions(), tmp_path / "out")


# -- damage ---------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change(text: str, other: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(path.read_text().replace(text, other))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train.bin", cut, "train.bin: expected .* bytes, got"),
        ("train.bin", flip, r"train.bin: expected the checksum of block \d+, got another"),
        ("train.bin", Path.unlink, "train.bin: expected a regular file, got No such file"),
        ("evaluation.bin", flip, "evaluation.bin: expected the checksum of block 0"),
        ("train.index.npy", cut, "train.index.npy: expected .* bytes"),
        ("train.index.npy", flip, "train.index.npy: expected sha256"),
        ("train.index.npy", Path.unlink, "train.index.npy: expected a regular file"),
        ("prepared.json", cut, "prepared.json: expected JSON, got a damaged file"),
        ("prepared.json", Path.unlink, "expected prepared data, got a folder without prepared.json"),
        ("prepared.json", change('"format": 2', '"format": 1'), "expected {'format': 2}, got {'format': 1}"),
        ("prepared.json", lambda path: path.write_text("[" * 100_000), "damaged"),
    ],
)
def test_damage_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[Path], object], message: str
) -> None:
    monkeypatch.setattr(prepared_writer, "block_samples", lambda values: 13)
    prepare(make_text(tmp_path), options(tmp_path, holdout=0.3), tmp_path / "out")
    damage(tmp_path / "out" / name)

    def read_all() -> None:
        data = open_dataset(f"prepared:{tmp_path / 'out'}", DataOptions())
        list(data.train(8))
        list(data.evaluation(8))

    with pytest.raises(InputError, match=message):
        read_all()


def test_a_block_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_writer, "block_samples", lambda values: 13)
    prepare(make_text(tmp_path), options(tmp_path), tmp_path / "out")
    calls = []
    monkeypatch.setattr(prepared_reader.zlib, "crc32", lambda data: calls.append(1) or crc32(data))
    data = open_dataset(f"prepared:{tmp_path / 'out'}", DataOptions())
    for _ in range(2):
        list(data.train(5))
    assert len(calls) == 4


@pytest.mark.parametrize("name", ["schema_path", "holdout", "time_split"])
def test_settings_of_the_original_data_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"expected no data.{name}, got a value: it applied when"):
        open_dataset("prepared:x", DataOptions(**{name: 0.5 if name == "holdout" else "7"}))


def test_weights_of_samples_are_stored(tmp_path: Path) -> None:
    source = make_text(tmp_path)
    schema = 'weight = { column = "d" }\n' + SCHEMA.replace('[[dense]]\ncolumns = ["d"]\n', "")
    (tmp_path / "schema.toml").write_text(schema)
    prepare(source, options(tmp_path, holdout=0.25), tmp_path / "out")
    stored = open_dataset(f"prepared:{tmp_path / 'out'}", DataOptions())
    original = open_dataset(source, options(tmp_path, holdout=0.25))
    for part in ("train", "evaluation"):
        for found, expected in zip(getattr(stored, part)(7), getattr(original, part)(7), strict=True):
            assert found.extras["weight"].tolist() == expected.extras["weight"].tolist()
