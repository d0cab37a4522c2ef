"""Arrays in shards: however many, one array in order of rows; damage anywhere is named by the one who reads it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.manifests import edit_manifest

from adaptive.errors import CheckpointError
from adaptive.storage import shards as shards_module
from adaptive.storage.arrays import ArrayFile, Blocks, Stored
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from adaptive.storage.durable import DISK
from adaptive.storage.shards import PIECES, Part, pieces_of, write_parts


def piece_of(rows: Any) -> Any:
    """Rows of tests are dealt to pieces by a number of three bits."""
    return rows * 5 % 8 * (PIECES // 8)


def parts_of(rows: Sequence[int], *, shards: int, block: int = 1000) -> dict[str, Part]:
    """Rows, and two values of each that follow from it, with and without a second axis; of one shard in one piece."""
    own = np.array(sorted(rows, key=lambda row: (shards > 1 and piece_of(row), row)), np.int64)
    counts = np.bincount(piece_of(own), minlength=PIECES).tolist() if shards > 1 else [len(own)]
    values = np.outer(own, [1.0, -0.5, 0.25]).astype(np.float32)

    def blocks() -> Any:
        return (values[first : first + block] for first in range(0, len(values), block))

    made = {"values": Blocks(values.dtype, values.shape, blocks), "small": (own % 7).astype(np.uint8)}
    return {"rows": Part(own, "rows", counts), **{name: Part(one, "rows", counts) for name, one in made.items()}}


def save(directory: Path, shards: int, rows: Sequence[int], **options: Any) -> Path:
    """A checkpoint of rows, each in the shard that its piece says, and of one array that all have."""

    def write(folder: Path, parts: Any, disk: Any) -> list[list[dict[str, Any]]]:
        own = [[row for row in rows if piece_of(row) in pieces_of(shard, shards)] for shard in range(shards)]
        return [
            write_parts(folder, shard, parts_of(one, shards=shards, **options), DISK) for shard, one in enumerate(own)
        ]

    save_checkpoint(directory, Checkpoint({"common": np.arange(2)}, {}, {}, {"steps": 3}), write_shards=write)
    return directory


ROWS = list(range(3, 200, 3))


@settings(max_examples=25)
@given(st.sampled_from([1, 2, 4, 8]), st.sets(st.integers(0, 300)), st.integers(1, 9), st.data())
def test_shards_are_one_array_in_order_of_rows(
    tmp_path_factory: pytest.TempPathFactory, shards: int, rows: set[int], block: int, data: st.DataObject
) -> None:
    """However many, and whichever pieces are read, by blocks."""
    folder = save(tmp_path_factory.mktemp("s") / "c", shards, sorted(rows), block=block)
    first = data.draw(st.integers(0, PIECES - 1))
    wanted = range(first, data.draw(st.integers(first, PIECES)) + 1)
    needed = np.array([row for row in sorted(rows) if shards == 1 or piece_of(row) in wanted], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "SMALL_BYTES", -1)
        actual = load_checkpoint(folder, rows_in_files=True, pieces=wanted).rows
    assert actual.keys() == {"common", "rows", "values", "small"}
    np.testing.assert_array_equal(actual["rows"], needed, strict=True)
    np.testing.assert_array_equal(actual["small"], (needed % 7).astype(np.uint8), strict=True)
    values, cut = actual["values"], data.draw(st.integers(0, len(needed)))
    assert isinstance(values, Stored)
    assert (values.shape, values.dtype) == ((len(needed), 3), np.dtype(np.float32))
    both = np.concatenate([values.read(0, cut), values.read(cut)])
    np.testing.assert_array_equal(both, np.outer(needed, [1.0, -0.5, 0.25]).astype(np.float32), strict=True)


def test_a_rank_reads_its_pieces_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, taken = save(tmp_path / "c", 4, ROWS), list[tuple[str, int]]()
    check = ArrayFile.check

    def checked(file: ArrayFile, first: int, last: int, sha256: str) -> None:
        taken.extend((file._path.name, entry) for entry in range(first, last))
        check(file, first, last, sha256)

    monkeypatch.setattr(ArrayFile, "check", checked)
    load_checkpoint(folder)
    whole = sorted(taken)
    assert len(whole) == 3 * len(ROWS)
    for size in (2, 4, 8):
        taken.clear()
        for rank in range(size):
            load_checkpoint(folder, pieces=pieces_of(rank, size))
        assert sorted(taken) == whole


def test_pieces_of_ranks_cover_all_and_overlap_only_at_ends() -> None:
    for size in range(1, 200):
        actual = [pieces_of(rank, size) for rank in range(size)]
        assert set().union(*actual) == set(range(PIECES)) and all(len(one) for one in actual)
        assert all(after.start >= one.stop - 1 for one, after in pairwise(actual))


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("shards"), "shards: "),
        (lambda m: m.update(shards=[]), "shards: List should have at least 1 item"),
        (lambda m: m["shards"][1][0].update(file="../shard-0-0.npy"), r"shards\.1\.0\.file"),
        (lambda m: m["shards"][1][0].update(file="rows-0.npy"), r"shards\.1\.0\.file"),
        (lambda m: m["shards"][1][0].update(shape=[]), r"shards\.1\.0\.shape"),
        (lambda m: [s[1]["shape"].__setitem__(1, 2**50) for s in m["shards"]], r"shard-0-1\.npy: expected \d+ bytes"),
        (lambda m: m["shards"][1][1]["pieces"][0].__setitem__(1, 0), r"shards\.1\.1\.pieces"),
        (lambda m: m["shards"][1][1]["pieces"][0].__setitem__(2, "x"), r"shards\.1\.1\.pieces"),
    ],
)
def test_manifests_of_another_form_are_refused(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    folder = save(tmp_path / "c", 2, ROWS)
    edit_manifest(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)
