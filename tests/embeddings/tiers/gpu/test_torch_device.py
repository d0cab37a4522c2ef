"""The device tier of a GPU on the CPU: bits, waits, and what crosses."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.helpers import (
    LFUOnHost,
    Scattered,
    after_sums,
    bags,
    one_table,
    random_batches,
    step_all,
    sum_of,
)
from test_invariance import OPTIMIZERS, Case, cases
from torch import Tensor

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.engine import build as build_module
from adaptive.embeddings.planning.plan import Pooling
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.gpu import link as link_module
from adaptive.embeddings.tiers.gpu import transfer as transfer_module
from adaptive.embeddings.tiers.gpu.link import ComputeLink
from adaptive.embeddings.tiers.gpu.upload import bag_arrays, send_pooling
from adaptive.embeddings.tiers.host import MemoryHost
from adaptive.embeddings.tiers.mover import Mover
from adaptive.kernels.rows import cpu_tensors
from adaptive.kernels.rows.cpu import pool
from adaptive.optim import SGD, Adagrad, Adam, RowwiseAdagrad
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    cases(optimizers=OPTIMIZERS),
    st.sampled_from(["direct", "staged"]),
    st.sampled_from(["host", "device"]),
    st.sampled_from([1, 3]),
)
def test_bits_are_those_of_ordinary_memory(case: Case, transfer: str, lookups: str, threads: int) -> None:
    searches = lookups if case.policy.misses == "prefetch" else "host"
    update = {"device": "cpu-torch", "transfer": transfer, "lookups": searches, "plan_threads": threads}
    single = case.run(LRU, TierConfig(device_rows="100%", poison=True), 0)
    case.run(case.policy, case.tier.model_copy(update=update), case.depth).assert_equals(single)


# --- waits -----------------------------------------------------------------------------------------------------------


@contextmanager
def waits() -> Iterator[list[str]]:
    """Names of the waits of the training thread while inside."""
    names: list[str] = []
    methods = {name: method for name, method in vars(Mover).items() if name.startswith("await_")}

    def noted(name: str) -> Callable[[Mover, Any], None]:
        def wait(self: Mover, event: Any) -> None:
            if threading.current_thread() is threading.main_thread():
                names.append(name)
            methods[name](self, event)

        return wait

    for name in methods:
        setattr(Mover, name, noted(name))
    try:
        yield names
    finally:
        for name, method in methods.items():
            setattr(Mover, name, method)


@pytest.mark.parametrize("optimizer", [SGD(), Adagrad(), RowwiseAdagrad(), Adam()], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(("policy", "rows", "waited"), [(Scattered, "40%", 0), (Hybrid, "0", 1)])
def test_a_step_waits_only_for_gradients_of_rows_on_the_host(
    policy: type[Policy], rows: str, waited: int, optimizer: Any
) -> None:
    tables = [TableConfig(name="t", num_embeddings=50, embedding_dim=4)]
    tier = TierConfig(device="cpu-torch", device_rows=rows)
    embeddings = TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer)
    batches = random_batches(tables, 10, samples=3)
    with waits() as names:
        for planned in embeddings.look_ahead(batches, depth=2):
            planned.dense.sum()
            sum_of(embeddings(planned)).backward()
            embeddings.step()
            # The device waits in "moved"; "sent" waits only if it is many batches behind, see below.
            assert [name for name in names if name not in ("await_moved", "await_sent")] == ["await_brought"] * waited
            names.clear()


class Counted:
    """A stream that counts calls."""

    def __init__(self) -> None:
        self._stream = torch_streams().compute
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._stream, name)


@pytest.mark.parametrize(("policy", "norms"), [(LRU, 0), (Scattered, 1)])
def test_calls_of_the_device_in_a_step(policy: type[Policy], norms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of torch or CUDA by either thread, for a batch that evicts and fetches rows.

    Norms of updates come back if the policy can read them: one that scores rows.
    """
    copying, compute, finding = counted = Counted(), Counted(), Counted()
    streams = replace(torch_streams(), copying=copying, compute=compute, another=lambda: finding)
    monkeypatch.setattr(build_module, "streams_of", lambda device: streams)
    tier = {"device": "cpu-torch", "transfer": "direct", "poison": False}
    with one_table(100, "20", policy, **tier) as embeddings:
        batches = [bags(list(range(n, n + 5))) for n in range(0, 50, 5)] * 2  # the first round only makes rows
        last = [Counter[str]()] * 3
        for planned in embeddings.look_ahead(batches, depth=0):
            sum_of(embeddings(planned)).backward()
            embeddings.step()
            counts = [Counter(stream.calls) for stream in counted]
            copies, computed, lookups = (total - earlier for total, earlier in zip(counts, last, strict=True))
            last = counts
    # Dense inputs, labels, pooling, update; events of rows, of norms, and of the trained batch.
    assert computed == {"empty": 4, "run": 4, "after": 1, "record": 1 + norms} | ({"copy": 1} if norms else {})
    # A plan is sent after the lookups, and its rows are written back and fetched.
    assert copies == {"copy": 1, "run": 2, "record": 3, "after": 2}
    assert lookups == {"copy": 1, "record": 1, "after": 1}


def test_sends_wait_only_when_too_many_are_in_flight() -> None:
    mover = Mover(torch_streams())
    link = ComputeLink(mover)
    with waits() as names:
        for number in range(link_module.SENDS):
            assert link.send(np.full(3, number, np.float32)).tolist() == [number] * 3
        assert names == []
        link.send(np.zeros(3, np.float32))
        assert names == ["await_sent"]


def torch_streams() -> Any:
    from adaptive.embeddings.tiers.streams import streams_of

    return streams_of(torch.device("cpu"))


def test_plans_name_hot_rows_to_the_kernels() -> None:
    embeddings = one_table(10, "100%", device="cpu-torch")
    batch = bags([1] * 65, [2, 3], [4] * 70, [2] * 60)
    for planned in embeddings.look_ahead([batch]):
        (work,) = planned.works
        # Two chunks each; rows 1, 2, 3, 4 in order of first lookup.
        assert work.device_plan.row_updates.segments.hot.tolist() == [3, 0, 3, 1, 0, 0, 0, 1]
        embeddings.discard()


@pytest.mark.parametrize("fails", [False, True])
def test_threads_gather_staged_rows_if_there_are_cores(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row once, in any thread; an error in any of them is raised."""
    monkeypatch.setattr(transfer_module, "PIECE_ROWS", 3)
    monkeypatch.setattr(transfer_module, "usable_cores", lambda: 99)
    threads, copy_in = set[str](), MemoryHost.copy_in

    def noted(self: MemoryHost, rows: Any, *arguments: Any) -> None:
        threads.add(threading.current_thread().name)
        if fails and 17 in rows:
            raise OSError("row 17")
        time.sleep(0.01)  # so that the others do their share
        copy_in(self, rows, *arguments)

    batches = [bags(list(range(40))), bags(list(range(40, 80))), bags(list(range(40)))]
    staged = one_table(100, "40", device="cpu-torch", transfer="staged")
    expected = one_table(100, "40")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryHost, "copy_in", noted)
        with pytest.raises(OSError, match="row 17") if fails else nullcontext():
            step_all(staged, batches, depth=0)
            staged.rows.flush()
    if not fails:
        step_all(expected, batches)
        assert np.array_equal(staged.rows.table_weights("t"), expected.rows.table_weights("t"))
        assert len(threads) == transfer_module.THREADS
    staged.close()


# --- what crosses when rows stay on the host -------------------------------------------------------------------------


@contextmanager
def crossings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Shapes of the float32 blocks that the training thread sends."""
    shapes: list[tuple[int, ...]] = []
    send = ComputeLink.send_filled

    def noted(self: ComputeLink, dtype: Any, shape: Any, fill: Any) -> Tensor:
        if np.dtype(dtype) == np.float32:
            shapes.append(tuple(shape))
        return send(self, dtype, shape, fill)

    with monkeypatch.context() as patch:
        patch.setattr(ComputeLink, "send_filled", noted)
        yield shapes


class TwoStay(LFUOnHost):
    """Rows 0 to 2 deserve the device."""

    def score(self, rows):  # type: ignore[no-untyped-def]
        return -rows.rows


def test_bags_on_the_host_cross_as_vectors_others_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = one_table(10, "3", policy=TwoStay, device="cpu-torch")
    warm = [bags([0, 1, 2])] * 3
    batch = bags([0, 1], [5, 6, 7], [1, 8], [9], [])
    initial = embeddings.rows.table_weights("t")
    step_all(embeddings, warm)
    with crossings(monkeypatch) as shapes:
        for planned in embeddings.look_ahead([batch]):
            shapes.clear()
            loss = sum_of(embeddings(planned))
            assert sorted(shapes) == [(1, 4), (2, 4)]  # row 8; the vectors of [5, 6, 7] and [9]
            loss.backward()
            embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(initial, [*warm, batch]))


# --- how plans are cut -----------------------------------------------------------------------------------------------


def pooling_of(sizes: list[int], locations: list[int], scaled: bool) -> Pooling:
    starts = np.cumsum([0, *sizes])
    scales = np.linspace(0.5, 2, len(locations), dtype=np.float32) if scaled else np.zeros(0, np.float32)
    bag_vectors = np.random.default_rng(0).permutation(len(sizes)).astype(np.int32)
    tables = np.zeros(len(sizes), np.int32)
    rows = np.arange(len(locations), dtype=np.int32)[::-1].copy()
    return Pooling(len(sizes), bag_vectors, starts, tables, rows, np.array(locations, np.int64)[::-1].copy(), scales)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    on_host=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    scaled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_forward_pass_that_is_cut_equals_the_whole(sizes: list[int], on_host: float, scaled: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    host, device = random.normal(size=(9, 4)).astype(np.float32), random.normal(size=(9, 4)).astype(np.float32)
    places = random.integers(0, 9, sum(sizes))
    locations = np.where(random.random(len(places)) < on_host, ~places, places)
    pooling = pooling_of(sizes, locations.tolist(), scaled)
    expected = np.empty((len(sizes), 4), np.float32)
    assert np.array_equal(pooling.locations, locations)
    pool.pool(expected, pooling_arguments(pooling), device, host, 1)
    assert np.array_equal(pool_cut(pooling, device, host), expected)


def pooling_arguments(pooling: Pooling) -> tuple[np.ndarray, ...]:
    return pooling.bag_vectors, pooling.bag_starts, pooling.inverse, pooling.row_locations, pooling.scales


def pool_cut(pooling: Pooling, device: np.ndarray, host: np.ndarray) -> np.ndarray:
    cut = send_pooling(pooling, ComputeLink(Mover(torch_streams())))
    out = torch.full((pooling.num_vectors, device.shape[1]), torch.nan)
    if cut.bags is not None:
        assert not set(cut.crossing.tolist()) - set((~pooling.locations[pooling.locations < 0]).tolist())
        rows = torch.from_numpy(host[cut.crossing]) if len(cut.crossing) else None
        bags_ = cut.bags
        where = bags_.row_locations, bags_.inverse, bags_.vectors, bags_.starts, bags_.scales
        cpu_tensors.pool(torch.from_numpy(device), rows, *where, out, bags_.num_samples)
    if cut.on_host is not None:
        part = cut.on_host
        assert (part.locations < 0).all()
        vectors = np.empty((part.num_vectors, device.shape[1]), np.float32)
        pool.pool(vectors, pooling_arguments(part), device[:0], host, 1)
        places = torch.arange(len(vectors)) if cut.host_vectors is None else cut.host_vectors.long()
        out[places] = torch.from_numpy(vectors)
    return out.numpy()


@pytest.mark.parametrize(
    ("sizes", "num_samples", "vectors", "starts"),
    [([1] * 6, 3, 0, 0), ([1] * 6, 0, 6, 0), ([2, 0, 1, 1, 1, 1], 3, 0, 7), ([2, 0, 1, 1, 1], 0, 5, 6)],
)
def test_arrays_that_a_bags_number_implies_are_not_sent(
    sizes: list[int], num_samples: int, vectors: int, starts: int
) -> None:
    pooling = replace(pooling_of(sizes, list(range(sum(sizes))), scaled=False), num_samples=num_samples)
    row_locations, inverse, sent_vectors, sent_starts, scales = bag_arrays(pooling, pooling.row_locations)
    assert (len(sent_vectors), len(sent_starts), len(scales)) == (vectors, starts, 0)
    assert inverse is pooling.inverse and inverse.itemsize == 4 and row_locations is pooling.row_locations


# --- Triton's kernels in the place of numba's ---------------------------------------------------------------

UNDER_TRITON = """
import sys
sys.path[:0] = {paths!r}
import numpy as np
from adaptive.kernels.rows import choose
from adaptive.embeddings.tiers.gpu import build
from support.simulated_training import Case, Run, SkipsOnHost, Skips, same
build.row_kernels = lambda device: choose.triton_rows()
for case in (Case(SkipsOnHost, 1, "staged", "30%"), Case(SkipsOnHost, 2, "direct", "60%")):
    runs = [Run(case.build(d), case.depth, np.random.default_rng(1), {{}}, False) for d in ("cpu-torch", "cpu")]
    results = [run.train(6) for run in runs]
    assert [name for name in results[0] if not same(results[0][name], results[1][name])] == []
print("equal")
"""


@pytest.mark.nightly
def test_triton_kernels_give_the_same_bits() -> None:
    """Interpreted, in a separate process: others must not take a CPU for a GPU."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed; it comes with CUDA builds of torch")
    tests = Path(__file__).parents[3]
    code = UNDER_TRITON.format(paths=[str(tests), str(tests.parent)])
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert process.stdout == "equal\n", process.stderr
