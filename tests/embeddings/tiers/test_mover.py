"""The order of copying and training, on a simulated device with any order of streams.

For every seed, tables, state, records and rows read during training equal those of a device without streams, bit for
bit (`simulated_training`). Leave out one wait, anywhere, and for some seed they do not.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import Scattered, ScatteredOnHost, Trainee, train_more, train_slowly
from support.simulated_training import BATCHES, CASES, TABLES, Case, check, simulated, small_buffers
from torch import Tensor

from adaptive.config import TierConfig
from adaptive.embeddings.planned_batch import GroupBatch
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.mover import Mover, inline
from adaptive.embeddings.tiers.streams import _CudaStream


@pytest.mark.nightly
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(CASES))
def test_any_order_that_events_allow_gives_the_same_bits(seed: int, case: Case) -> None:
    check(case, seed)


# --- every wait is needed --------------------------------------------------------------------------------------------

Site = tuple[str, ...]  # a wait, and the functions that called it
REDUNDANT = {  # with the reason
    (
        "await_brought",
        "StagedTransfer._store_next",
        "StagedTransfer.finish_host_writes",
        "TorchDevice.finish_host_writes",
    ): "settle() has waited for all copies",
    (
        "await_brought",
        "DirectTransfer.write_back",
        "TorchDevice.write_back",
        "TieredGroup.write_back_changed",
    ): "a flush waits for all copies before it ends",
    (
        "await_sent",
        "PinnedBlock.take",
        "TransferBuffer.take",
        "DeviceSearch._send",
    ): "its results have come back; if its batch was dropped, nothing reads them",
    (
        "await_trained",
        "Mover.rest",
        "drop_hot_rows",
        "_release",
    ): "feedback has been taken in, which ends each training",
    (
        "await_copies",
        "Mover.finish_copies",
        "Pipeline.finish_copies",
        "drop_hot_rows",
    ): "the same, and training waits for the copies of its batch",
}


@contextmanager
def observed_waits(met: Callable[[Site], bool]) -> Iterator[None]:
    """Leave out waits for which `met` returns False."""
    waits = {name: wait for name, wait in vars(Mover).items() if name.startswith("await_")}

    def replaced(name: str) -> Callable[[Mover, Any], None]:
        def wait(self: Mover, event: Any) -> None:
            if met((name, *callers())):
                waits[name](self, event)

        return wait

    for name in waits:
        setattr(Mover, name, replaced(name))
    try:
        yield
    finally:
        for name, wait in waits.items():
            setattr(Mover, name, wait)


def callers() -> Iterator[str]:
    """The three functions above the wait."""
    frame = sys._getframe(2)
    for _ in range(3):
        yield frame.f_code.co_qualname.split(".<")[0]
        assert frame.f_back is not None
        frame = frame.f_back


def all_sites(cases: list[Case]) -> dict[Site, set[Case]]:
    """Return the sites that wait, and the cases in which they do."""
    sites: dict[Site, set[Case]] = {}
    for case in cases:

        def met(site: Site, case: Case = case) -> bool:
            sites.setdefault(site, set()).add(case)
            return True

        with observed_waits(met):
            check(case, 0)
    return {site: cases for site, cases in sites.items() if "Run.assert" not in site[-1]}


def is_missed(left_out: Site, cases: set[Case]) -> bool:
    """True if some seed shows that this wait is missing."""
    with observed_waits(lambda site: site != left_out):
        for seed in range(30):
            for case in (case for case in CASES if case in cases):
                try:
                    check(case, seed)
                except (AssertionError, IndexError, RuntimeError):
                    return True
    return False


def test_a_wait_that_is_left_out_is_missed() -> None:
    sites = all_sites(CASES)
    assert {site[0] for site in sites} == {name for name in vars(Mover) if name.startswith("await_")}
    assert sites.keys() >= REDUNDANT.keys()
    assert [site for site, cases in sites.items() if site not in REDUNDANT and not is_missed(site, cases)] == []


# --- two threads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", ["staged", "direct"])
def test_a_look_ahead_thread_and_a_model_on_the_host(way: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real threads, at any pace; the model needs each batch's vectors at once."""
    case = Case([Scattered, ScatteredOnHost][seed % 2], seed % 4, way, ample=seed > 2)
    with simulated(seed) as simulation, small_buffers(case.ample):
        pool = GroupBatch.pool

        def pool_now(self: GroupBatch) -> Tensor:
            vectors = pool(self)
            simulation.compute.catch_up()
            return vectors

        monkeypatch.setattr(GroupBatch, "pool", pool_now)
        embeddings, trainee = case.build(), Trainee(TABLES)
        trained = train_more(embeddings, trainee, BATCHES, case.depth)
    trained.assert_equals(train_slowly(TABLES, BATCHES, embeddings.runtime.sized.optimizer))


def test_slots_and_sums_exist_before_another_stream_uses_them() -> None:
    """They are made on the stream that is current when tiers are built; a loop may train on another one."""
    with simulated(1) as simulation, small_buffers(ample=True):
        simulation.copying.laziness = simulation.compute.laziness = 1.0
        embeddings = Case(way="direct", device_rows="60%").build()
        assert not simulation.copying._queue and not simulation.compute._queue
        for tiered in embeddings.runtime.pipeline.tiered_groups:
            before = simulation.settled
            tiered.device.begin_sums(5)
            assert simulation.settled > before and not simulation.compute._queue


def test_the_current_stream_is_not_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate stream, or another device, is: Triton launches on what is current in the thread."""
    current, entered, done = [0], list[object](), list[int]()

    def enter(stream: object) -> nullcontext[None]:
        entered.append(stream)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(torch.cuda, "stream", enter)
    device = torch.device("cuda", 0)
    _CudaStream(device, None).run(lambda: done.append(1))
    assert (done, entered) == ([1], [])
    _CudaStream(device, "own").run(lambda: done.append(2))  # type: ignore[arg-type]
    current[0] = 1
    _CudaStream(device, None).run(lambda: done.append(3))
    assert (done, entered) == ([1, 2, 3], ["own", "current"])


def test_threads_make_the_device_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-ahead thread and its helpers: otherwise CUDA would open a context on device 0 for each."""
    entered: set[str] = set()
    monkeypatch.setattr(Mover, "enter_thread", lambda self: entered.add(threading.current_thread().name))
    tier = TierConfig(device="cpu-torch", device_rows="60%", plan_threads=3)
    with TieredEmbeddingBag(TABLES, tier, policy=Scattered) as embeddings:
        train_more(embeddings, Trainee(TABLES), BATCHES, 2)
    assert "adaptive-look-ahead" in entered and any(name.startswith("adaptive-lookups") for name in entered)
    set_for: list[object] = []
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "set_device", set_for.append)
    for device in (torch.device("cpu"), torch.device("cuda", 1)):
        Mover(replace(inline(torch.device("cpu")), device=device)).enter_thread()
    assert set_for == [torch.device("cuda", 1)]


# --- closing ---------------------------------------------------------------------------------------------------------


def test_host_memory_is_released_when_no_copy_uses_it() -> None:
    """Even if a look-ahead has not ended: a kernel that reads released memory ends the process."""
    case = Case(way="direct", device_rows="60%")
    with simulated(1) as simulation, small_buffers(ample=True):
        embeddings = case.build()
        simulation.copying.laziness = 1.0
        left: list[int] = []
        for tiered in embeddings.runtime.pipeline.tiered_groups:
            tiered.device._transfer._release = lambda: left.append(len(simulation.copying._queue))  # type: ignore[attr-defined]
        batches = embeddings.look_ahead(BATCHES, depth=0)
        next(batches)
        assert simulation.copying._queue
        embeddings.close()
        assert left == [0] * len(embeddings.runtime.pipeline.tiered_groups)
        with pytest.raises(AssertionError, match="closed"):
            next(batches)
