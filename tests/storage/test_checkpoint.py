"""Saved weights: what comes back, every flipped byte noticed, hostile folders refused, no code run."""

import contextlib
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.failing_disk import fails_at_each
from support.manifests import edit_manifest

from adaptive.errors import CheckpointError, OutputError
from adaptive.storage.arrays import Blocks, Stored, whole
from adaptive.storage.checkpoint import MANIFEST, Checkpoint, load_checkpoint, save_checkpoint, write_shard
from adaptive.storage.durable import DISK

ROWS: dict[str, Any] = {
    "0/rows": np.array([3, 7], np.int64),
    "0/values": np.array([[1.5, -2.0], [0.0, 3.25]], np.float32),
}
LATER = np.array([[0.5], [1.5], [-1.0]], np.float32)
BLOCKS = {
    "1/rows": np.array([2, 9, 11], np.int64),
    "1/values": Blocks(LATER.dtype, LATER.shape, lambda: iter([LATER[:2], LATER[2:]])),
}
DENSE = {"bias": torch.tensor([0.5]), "scale": torch.tensor(2.0)}


def save(directory: Path, **changed: Any) -> Path:
    parts: dict[str, Any] = {"rows": ROWS | BLOCKS, "dense": DENSE, "policy": {}, "meta": {"step": 3}} | changed
    disk = parts.pop("disk", DISK)
    save_checkpoint(directory, Checkpoint(**parts), disk=disk)
    return directory


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    more = {"policy": np.array([True, False]), "optimizer": np.float32(3), "run": np.arange(3, dtype=np.uint8)}
    save(tmp_path / "weights", **{group: {"seen": value} for group, value in more.items()})
    actual = load_checkpoint(tmp_path / "weights")
    assert actual.meta == {"step": 3}
    assert set(actual.rows) == {*ROWS, *BLOCKS} and actual.shards == [actual.rows]
    for name, value in (ROWS | BLOCKS | {"1/values": LATER}).items():
        np.testing.assert_array_equal(actual.rows[name], value, strict=True)
    for name, tensor in DENSE.items():
        assert torch.equal(actual.dense[name], tensor) and actual.dense[name].shape == tensor.shape
    for group, value in more.items():
        np.testing.assert_array_equal(getattr(actual, group)["seen"], value, strict=True)


def test_arrays_are_plain_npy_files(tmp_path: Path) -> None:
    save(tmp_path / "weights")
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == [
        "dense-0.npy", "dense-1.npy", "manifest.json", "rows-0-0.npy", "rows-0-1.npy", "rows-0-2.npy", "rows-0-3.npy",
    ]  # fmt: skip
    np.testing.assert_array_equal(np.load(tmp_path / "weights/rows-0-1.npy", allow_pickle=False), ROWS["0/values"])


@settings(max_examples=30)
@given(
    hnp.arrays(
        dtype=hnp.floating_dtypes(sizes=(16, 32, 64), endianness="<")
        | hnp.integer_dtypes(endianness="<")
        | hnp.unsigned_integer_dtypes(endianness="<")
        | hnp.boolean_dtypes(),
        shape=hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
    ),
    st.text(),
)
def test_any_array_under_any_name(tmp_path_factory: pytest.TempPathFactory, array: Any, name: str) -> None:
    folder = tmp_path_factory.mktemp("c") / "weights"
    save(folder, rows={name: np.asarray(array, order="F")})
    actual = load_checkpoint(folder).rows[name]
    assert actual.dtype == array.dtype and actual.shape == array.shape
    assert actual.tobytes() == array.tobytes()


def test_cut_files_are_noticed(tmp_path: Path) -> None:
    folder = save(tmp_path / "weights")
    for file in sorted(folder.iterdir()):
        good = file.read_bytes()
        for bad in (good[:-2], good[:5], b"", good + b"\0"):
            file.write_bytes(bad)
            with pytest.raises(CheckpointError, match=file.name):
                load_checkpoint(folder)
        file.write_bytes(good)


@pytest.mark.parametrize("name", ["rows-0-0.npy", "rows-0-3.npy", "manifest.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "weights")
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)}: expected a regular file, got No such file"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "file", ["../secret.npy", "/etc/passwd", "a/b.npy", "..", "", "rows-0-0.npy\n", "rows-0-0.npy/../x", ".hidden.npy"]
)
def test_names_that_are_not_plain_are_refused(tmp_path: Path, file: str) -> None:
    folder = save(tmp_path / "weights")
    edit_manifest(folder, lambda manifest: manifest["arrays"][0].update(file=file))
    with pytest.raises(CheckpointError, match=r"arrays\.0\.file"):
        load_checkpoint(folder)


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_pickles_are_not_run(tmp_path: Path) -> None:
    folder = save(tmp_path / "weights")
    marker = tmp_path / "code was run"
    np.save(folder / "rows-0-0.npy", np.array([Bomb(marker)], object), allow_pickle=True)
    size = (folder / "rows-0-0.npy").stat().st_size
    edit_manifest(folder, lambda manifest: manifest["arrays"][0].update(size=size, dtype="|O", shape=[1]))
    with pytest.raises(CheckpointError, match=r"rows-0-0\.npy: expected one of the types .* got '\|O'"):
        load_checkpoint(folder)
    edit_manifest(folder, lambda manifest: manifest["arrays"][0].update(dtype="<i8"))
    with pytest.raises(CheckpointError, match="rows-0-0"):
        load_checkpoint(folder)
    (folder / MANIFEST).write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(CheckpointError, match="expected JSON"):
        load_checkpoint(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=4), "'version': 6}, got .*'version': 4}"),
        (lambda m: m.update(format="x"), "got {'format': 'x', 'version': 6}"),
        (lambda m: m["arrays"][0].update(name="other", file="rows-0-1.npy"), "rows-0-1"),
        (lambda m: m["arrays"][0].update(shape=[-1]), r"arrays\.0\.shape"),
        (lambda m: m["arrays"][0].update(shape=[1] * 100), "at most 64"),
        (lambda m: m["arrays"][0].update(shape=[3]), r"rows-0-0.npy: expected 152 bytes for int64 \[3\], got 144"),
        (lambda m: m["arrays"][0].update(size="16"), r"arrays\.0\.size"),
        (lambda m: m["arrays"][0].update(group="code"), r"arrays\.0\.group"),
        (lambda m: m["arrays"][0].update(shard=1), "expected 1 shards, got one more: rows-0-0.npy"),
        (lambda m: m.update(num_shards=0), "num_shards: "),
        (lambda m: m.update(more=1), "more: unknown key"),
        (lambda m: m.pop("arrays"), "arrays: "),
    ],
)
def test_manifests_that_lie_are_refused(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    folder = save(tmp_path / "weights")
    edit_manifest(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize("lasting", [False, True])
def test_whole_or_absent_whatever_fails(tmp_path: Path, lasting: bool) -> None:
    folder = tmp_path / "weights"

    def attempt(disk: Any) -> None:
        with contextlib.suppress(OutputError):
            save(folder, disk=disk)
            assert disk.count < disk.fail_at or not lasting
        if folder.exists():
            assert isinstance(load_checkpoint(folder), Checkpoint)
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        if not lasting:
            assert list(tmp_path.iterdir()) == []

    assert fails_at_each(attempt, lasting=lasting) > 20


def test_an_existing_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    save(tmp_path / "weights")
    with pytest.raises(OutputError, match=r"weights: expected a place that can be written, .* exists already"):
        save(tmp_path / "weights", meta={})
    assert load_checkpoint(tmp_path / "weights").meta == {"step": 3}


def test_each_rank_writes_a_shard_and_reads_those_it_wants(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    shards = [{"rows": np.arange(3) + rank, "values": np.full((3, 2), rank, np.float32)} for rank in range(3)]
    content = Checkpoint(shards[0], DENSE, {}, {})
    save_checkpoint(folder, content, write_others=lambda at: [write_shard(at, rank, shards[rank]) for rank in (1, 2)])
    for loaded, expected in zip(load_checkpoint(folder).shards, shards, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(loaded[name], value, strict=True)
    (folder / "rows-2-1.npy").unlink()
    with pytest.raises(CheckpointError, match=r"rows-2-1\.npy"):
        load_checkpoint(folder)
    one = load_checkpoint(folder, shards=lambda number: [1])
    assert [sorted(shard) for shard in one.shards] == [[], ["rows", "values"], []]


def test_large_arrays_of_rows_stay_in_their_files_and_are_verified(tmp_path: Path) -> None:
    large = np.arange(3 * 2**20, dtype=np.float32).reshape(-1, 3)
    folder = save(tmp_path / "weights", rows={"values": large})
    loaded = load_checkpoint(folder).rows["values"]
    assert isinstance(loaded, Stored)
    np.testing.assert_array_equal(loaded.read(5, 9), large[5:9])
    np.testing.assert_array_equal(whole(loaded), large)
    with open(folder / "rows-0-0.npy", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(CheckpointError, match="The file is damaged"):
        load_checkpoint(folder)
