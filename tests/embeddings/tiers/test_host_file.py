"""Rows in a file equal rows in memory, bit for bit; a full or failing disk is an error."""

import errno
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import LFU, LFUOnHost, Scattered, ScatteredOnHost, bags, one_table, random_batches, step_all, train

from adaptive.arrays import Floats, Int64s
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers import host_file
from adaptive.embeddings.tiers.host import HostTier, MemoryHost
from adaptive.embeddings.tiers.host_file import FileHost
from adaptive.errors import AdaptiveError, ConfigError, StorageError
from adaptive.kernels import file_records as records
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

OPTIMIZERS: list[RowOptimizer] = [SGD(), RowwiseAdagrad(initial_accumulator=0.1), Adagrad(), Adam()]


def group(rows: int = 50, dim: int = 3) -> Group:
    tables = [
        TableConfig(name="a", num_embeddings=rows - rows // 3, embedding_dim=dim),
        TableConfig(name="b", num_embeddings=rows // 3, embedding_dim=dim),
    ]
    return make_groups(tables, seed=5)[0]


def values(host: HostTier, num_rows: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Random (weights, state) of rows of a tier."""
    rng = np.random.default_rng(seed)
    weights, state = host.read(np.zeros(0, np.int64))
    shapes = (num_rows, weights.shape[1]), (num_rows, state.shape[1])
    return rng.random(shapes[0], np.float32), rng.random(shapes[1], np.float32)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FileHost]:
    tier = FileHost(group(), RowwiseAdagrad(), tmp_path / "a" / "b")
    yield tier
    tier.close()


def rows(*numbers: int) -> Int64s:
    return np.array(numbers, np.int64)


# --- a file of records -----------------------------------------------------------------------------------------------


def test_near_rows_are_read_in_one_call_neighbors_written(tmp_path: Path) -> None:
    host = FileHost(group(10_000), RowwiseAdagrad(), tmp_path)  # 16 bytes a row, 256 rows a page
    weights, state = values(host, 4)
    host.write(rows(3, 2, 9000, 5), weights, state)
    assert (host.io.writes, host.io.bytes_written, host.io.reads) == (3, 4 * 16, 0)
    host.read(rows(9000, 9255, 2, 5))
    assert (host.io.reads, host.io.bytes_read) == (2, (256 + 4) * 16)
    host.read(rows(100, 357))  # a whole page lies between them
    assert (host.io.reads, host.io.bytes_read) == (4, (256 + 4 + 2) * 16)


@settings(max_examples=60, deadline=None)
@given(
    dim=st.sampled_from([3, 16]),
    optimizer=st.sampled_from(OPTIMIZERS),
    num_rows=st.sampled_from([3, 50, 4000]),
    staged=st.sampled_from([1, 2, 7, 1 << 16]),
    in_place=st.booleans(),
    data=st.data(),
)
def test_any_moves_give_what_memory_gives(
    directory: Path, dim: int, optimizer: RowOptimizer, num_rows: int, staged: int, in_place: bool, data: st.DataObject
) -> None:
    """Rows near and far, in any order, through staging blocks of any size."""
    tables = group(num_rows, dim)
    memory = MemoryHost(tables, optimizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_file, "STAGING_BYTES", 4 * staged * (dim + optimizer.state_width(dim)))
        file = FileHost(tables, optimizer, directory, in_place=in_place)
    everything = np.arange(num_rows)
    for tier in (memory, file):
        tier.store_initial(everything)
    for step in range(data.draw(st.integers(1, 4))):
        rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
        near = int(rng.integers(1, num_rows + 1))  # distinct rows, dense or scattered
        chosen = rng.permutation(near)[: int(rng.integers(0, near + 1))] + int(rng.integers(0, num_rows - near + 1))
        weights, state = values(memory, num_rows, step)
        places = rng.permutation(num_rows)[: len(chosen)]
        for tier in (memory, file):
            tier.copy_in(chosen, weights, state, places)
            tier.store_initial(chosen[: len(chosen) // 4])
        ours, theirs = values(memory, num_rows, 99), values(memory, num_rows, 99)
        memory.copy_out(chosen, *ours, places)
        file.copy_out(chosen, *theirs, places)
        assert all(map(np.array_equal, ours, theirs))
    assert all(map(np.array_equal, memory.read(everything), file.read(everything)))
    if in_place:
        assert np.array_equal(file.weights, memory.weights) and np.array_equal(file.state, memory.state)
    file.close()


def test_rows_used_in_place_are_those_of_the_file(tmp_path: Path) -> None:
    host = FileHost(group(), Adagrad(), tmp_path, in_place=True)
    weights, state = values(host, 2)
    host.write(rows(4, 40), weights, state)
    assert np.array_equal(host.weights[[4, 40]], weights) and np.array_equal(host.state[[4, 40]], state)
    host.weights[4] += 1
    host.state[40] = 7
    again = host.read(rows(4, 40))
    assert np.array_equal(again[0], [weights[0] + 1, weights[1]]) and np.array_equal(again[1], [state[0], [7, 7, 7]])
    host.poison(rows(4))
    assert np.isnan(host.weights[4]).all() and np.isfinite(host.weights[40]).all()


@pytest.mark.parametrize("policy", [Hybrid, LFUOnHost, Scattered])
def test_rows_used_in_place_are_prefetched(
    tmp_path: Path, policy: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefetched: list[list[int]] = []
    monkeypatch.setattr(records, "expect", lambda fd, rows, row_bytes: prefetched.append(rows.tolist()))
    batches = [bags([k, (3 * k) % 20], [7]) for k in range(8)]
    device_rows = policy.device_rows or "6"
    with one_table(20, device_rows, policy, host=f"mmap:{tmp_path}") as embeddings:
        done = step_all(embeddings, batches, depth=1)
        all_row_updates = [planned.works[0].plan.row_updates for planned in done if planned.works[0].plan]
    on_host = [sorted(g.rows[g.locations < 0].tolist()) for g in all_row_updates]
    assert prefetched == ([] if policy is Scattered else on_host)
    assert policy is not Hybrid or all(map(len, on_host))


def test_all_blocks_of_a_page_are_allocated_before_use_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first change of a row through the map could meet a full disk, and end the process."""
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_frsize=1024))
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, at, size: taken.append((at, size)), raising=False)
    page, num_rows = mmap.PAGESIZE, mmap.PAGESIZE  # 16 bytes a row: 16 pages
    weights, state = np.zeros((5, 3), np.float32), np.zeros((5, 1), np.float32)
    FileHost(group(num_rows), RowwiseAdagrad(), tmp_path).write(np.arange(5), weights, state)
    assert taken == []  # rows only change through writes
    mapped = FileHost(group(num_rows + 1), RowwiseAdagrad(), tmp_path, in_place=True)
    mapped.write(rows(5, page // 16 - 1, page // 16, 3 * page // 16, num_rows), weights, state)
    assert taken == [(0, page), (0, 2 * page), (3 * page, page), (16 * page, 16)]

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="No space left on device"):
        mapped.store_initial(rows(9))


def test_a_billion_rows_take_the_disk_of_those_stored(tmp_path: Path) -> None:
    tables = make_groups([TableConfig(name="t", num_embeddings=10**9, embedding_dim=16)], 0)[0]
    for in_place in (False, True):
        host = FileHost(tables, RowwiseAdagrad(), tmp_path, in_place=in_place)
        weights, state = values(host, 2)
        host.write(rows(10**9 - 1, 3), weights, state)
        host.flush()
        assert host.disk_bytes <= 1 << 16
        assert all(map(np.array_equal, host.read(rows(10**9 - 1, 3)), (weights, state)))
        assert host.num_bytes == (64 * 10**9, 4 * 10**9)
        host.close()


# --- a disk that fails -----------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels report every run as unfinished, as if a signal had interrupted all their calls."""

    def move(fd: int, first_rows: Int64s, starts: Int64s, num: int, block: Floats, left: Int64s, *_: Int64s) -> int:
        left[:num] = np.arange(num)
        return num

    monkeypatch.setattr(records, "read_runs", move)
    monkeypatch.setattr(records, "write_runs", move)


@pytest.mark.usefixtures("nothing_finished")
def test_calls_that_move_a_part_are_repeated(host: FileHost, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:5], at))
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: preadv(fd, [parts[0][:3]], at))
    weights, state = values(host, 50)
    host.write(np.arange(50), weights, state)
    assert all(map(np.array_equal, host.read(np.arange(50)), (weights, state)))


@pytest.mark.usefixtures("nothing_finished")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_write_that_fails_says_where_and_why(host: FileHost, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    weights, state = values(host, 3)
    host.write(rows(1, 2, 3), weights, state)
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StorageError, match=rf"cannot write rows in .*/a/b: .*{os.strerror(code)}.*last checkpoint"):
        host.write(rows(1, 2, 3), weights, state)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="cannot write rows"):  # rows that were not written must not be read
        host.read(rows(1))
    with pytest.raises(StorageError, match="cannot write rows"):
        host.flush()


def test_a_truncated_file_is_an_error(host: FileHost) -> None:
    os.ftruncate(host._fd, 16 * 20 + 3)
    host.read(rows(0, 19))
    with pytest.raises(StorageError, match=r"cannot read rows in .*: the file ends at byte 323"):
        host.read(rows(20))


needs_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")


def fill_disk(host: HostTier) -> None:
    """From now on the tier's file is on a full disk."""
    assert isinstance(host, FileHost)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, host._fd)
    os.close(full)


@needs_full_disk
@pytest.mark.parametrize("depth", [0, 3])
def test_training_ends_with_the_error_of_a_full_disk(tmp_path: Path, depth: int) -> None:
    """The training loop raises it; the look-ahead thread is joined; rows that were moving are not read."""
    embeddings = one_table(40, "12", Scattered, host=f"mmap:{tmp_path}")
    batches = [bags([k % 40, (7 * k) % 40]) for k in range(60)]
    step_all(embeddings, batches[:20], depth=depth)
    fill_disk(embeddings.runtime.pipeline.tiered_groups[0].host)
    with pytest.raises(StorageError, match="No space left on device"):
        step_all(embeddings, batches[20:], depth=depth)
    assert not [thread for thread in threading.enumerate() if thread.name == "adaptive-look-ahead"]
    with pytest.raises(AdaptiveError, match=r"batch 20 was planned and its rows moved \(StorageError\)"):
        embeddings.rows.table_weights("t")
    embeddings.close()


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_has_no_name_and_ends_with_the_tier(tmp_path: Path) -> None:
    gc.collect()  # files of earlier tests
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    hosts = [FileHost(group(), SGD(), tmp_path, in_place=in_place) for in_place in (False, True)]
    assert list(tmp_path.iterdir()) == []
    for host in hosts:
        host.close()
        host.close()
        assert host.disk_bytes == 0
        host.flush()
        with pytest.raises(StorageError, match="their tables were closed"):
            host.read(rows(1))
        with pytest.raises(StorageError, match="their tables were closed"):
            host.write(rows(1), np.zeros((1, 3), np.float32), np.zeros((1, 0), np.float32))
    FileHost(group(), SGD(), tmp_path)  # never closed
    del hosts, host
    gc.collect()
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"tier\.host: expected room for a file of 800 bytes in .*file/rows, got"):
        FileHost(group(), RowwiseAdagrad(), tmp_path / "file" / "rows")


# --- training --------------------------------------------------------------------------------------------------------

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=3, features=("x", "y")),
    TableConfig(name="b", num_embeddings=30, embedding_dim=16, pooling="mean"),
)
POLICIES: list[type[Policy]] = [LRU, LFU, Scattered, LFUOnHost, ScatteredOnHost, Hybrid]


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    optimizer=st.sampled_from(OPTIMIZERS),
    share=st.sampled_from(["60%", "80%", "100%"]),
    device=st.sampled_from(["cpu", "cpu", "cpu-torch"]),
    depth=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_training_on_a_file_equals_training_in_memory(
    directory: Path,
    policy: type[Policy],
    optimizer: RowOptimizer,
    share: str,
    device: Any,
    depth: int,
    seed: int,
) -> None:
    batches = random_batches(TABLES, 10, seed=seed, samples=4)
    share = policy.device_rows or share
    results = []
    for place in ("memory", f"mmap:{directory}"):
        tier = TierConfig(device_rows=share, poison=True, when_full="reduce_lookahead", host=place, device=device)
        with TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer) as embeddings:
            results.append(train(embeddings, TABLES, batches, depth))
            assert (sum(embeddings.statistics.host_io().values()) == 0) == (place == "memory")
    results[0].assert_equals(results[1])


def test_reads_and_writes_are_counted(tmp_path: Path) -> None:
    """Rows that are fetched for the first time are computed; unchanged rows are not written."""
    with one_table(4000, "2", host=f"mmap:{tmp_path}", poison=False) as embeddings:
        for ids, expected in (
            ([], (0, 0, 0, 0)),
            ([0, 3999], (0, 0, 0, 0)),
            ([1, 2], (0, 0, 2, 32)),
            ([0, 3999], (2, 32, 3, 64)),
        ):
            step_all(embeddings, [bags(ids)] if ids else [])
            assert tuple(embeddings.statistics.host_io().values()) == expected  # reads, bytes, writes, bytes
