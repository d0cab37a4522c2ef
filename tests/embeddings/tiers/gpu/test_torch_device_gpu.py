"""The device tier on a CUDA device: bits, waits, memory that runs out, pinned tables."""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.helpers import Scattered, bags, one_table, random_batches, step_all
from support.simulated_training import CASES, SKIP, TABLES, Case, Run, Skips, expected, patched, same
from torch import Tensor

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.engine import build as build_module
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.gpu.build import free_bytes
from adaptive.embeddings.tiers.gpu.pinned import Pinned
from adaptive.embeddings.tiers.host import whole_pages
from adaptive.embeddings.tiers.mover import Stream, Streams
from adaptive.embeddings.tiers.streams import streams_of
from adaptive.errors import DeviceMemoryError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policy import Policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch finds none here"),
]
CUDA = "cuda"


class Sleepy:
    """A stream that sleeps before some of its work."""

    def __init__(self, stream: Stream, random: np.random.Generator) -> None:
        self._stream, self._random = stream, random

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name in ("run", "copy") and self._random.random() < 0.5:
            self._stream.run(lambda: torch.cuda._sleep(int(self._random.integers(1, 2_000_000))))
        method: Callable[..., object] = getattr(self._stream, name)
        return method


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.policy.__name__}-{case.depth}-{case.way}")
@pytest.mark.parametrize("sleeps", ["none", "copying", "compute", "all"])
@pytest.mark.parametrize("seed", range(2))
def test_bits_are_those_of_the_cpu_if_streams_sleep(case: Case, sleeps: str, seed: int) -> None:
    random = np.random.default_rng(seed)

    def sleepy(device: torch.device) -> Streams:
        real = streams_of(device)
        copying = Sleepy(real.copying, random) if sleeps in ("copying", "all") else real.copying
        compute = Sleepy(real.compute, random) if sleeps in ("compute", "all") else real.compute
        another = (lambda: Sleepy(real.another(), random)) if sleeps == "all" else real.another
        return replace(real, copying=copying, compute=compute, another=another)  # type: ignore[arg-type]

    arrays, readings = expected(case)
    with patched(build_module, streams_of=sleepy):
        run = Run(case.build(CUDA), case.depth, np.random.default_rng(seed), {}, case.forgets)
        results = run.train()
    assert [name for name, array in arrays.items() if not same(results[name], array)] == []
    for number, numbers in run.readings.items():
        assert all(map(np.array_equal, numbers, readings[number]))


# --- a loop as users write it: two threads, autograd on the device ---------------------------------------------------


def train(
    policy: type[Policy],
    optimizer: RowOptimizer,
    batches: Sequence[Batch],
    *,
    device: str = CUDA,
    depth: int = 3,
    before_each: Callable[[int], None] = lambda number: None,
    **tier: object,
) -> dict[str, NDArray[np.float32]]:
    """The gradient of the sum of squares is exact in any order of sums: tables equal those of a CPU."""
    settings = TierConfig.model_validate({"device": device, "device_rows": "70%", "poison": True} | tier)
    with TieredEmbeddingBag(TABLES, settings, policy=policy, optimizer=optimizer, skip=SKIP) as embeddings:
        for planned in embeddings.look_ahead(batches, depth=depth):
            before_each(planned.number)
            torch.stack([vectors.square().sum() for vectors in embeddings(planned).values()]).sum().backward()
            embeddings.step()
        torch.cuda.set_sync_debug_mode("default")
        return {table.name: embeddings.rows.table_weights(table.name) for table in TABLES}


def assert_same(left: dict[str, NDArray[np.float32]], right: dict[str, NDArray[np.float32]]) -> None:
    assert all(np.array_equal(left[name], right[name]) for name in left)


BATCHES = random_batches(TABLES, 30, seed=9, samples=3)
OPTIMIZERS = [SGD(lr=0.05), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.05)]


@pytest.mark.parametrize("transfer", ["direct", "staged"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_no_step_synchronizes_with_the_device(optimizer: RowOptimizer, transfer: str) -> None:
    """In neither thread, from the fourth batch on, when buffers and kernels exist."""

    def forbid(number: int) -> None:
        if number == 4:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls it a prototype
                torch.cuda.set_sync_debug_mode("error")

    try:
        result = train(
            Skips, optimizer, BATCHES, transfer=transfer, device_rows="90%", poison=False, before_each=forbid
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(result, train(Skips, optimizer, BATCHES, device="cpu", device_rows="90%"))


def test_the_training_thread_does_not_wait_for_its_device() -> None:
    """On a device that sleeps 0.2 s in each batch, the last batch is queued before the first is done."""
    first_done: list[bool] = []
    done = [torch.cuda.Event(enable_timing=False) for _ in range(3)]

    def sleep(number: int) -> None:
        if 4 <= number < 7:
            torch.cuda._sleep(400_000_000)
            done[number - 4].record()
            first_done.append(done[0].query())

    train(Scattered, SGD(lr=0.05), BATCHES[:8], before_each=sleep, depth=4, device_rows="100%")
    assert not first_done[-1]


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory() -> Iterator[int]:
    """About 300 MiB, for this process."""
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (300 << 20)) / total)
    yield 300 << 20
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_out_of_memory_when_the_tiers_are_made(little_memory: int) -> None:
    table = TableConfig(name="t", num_embeddings=2_000_000, embedding_dim=64)
    with pytest.raises(DeviceMemoryError, match="out of GPU memory while tables were created"):
        TieredEmbeddingBag([table], TierConfig(device=CUDA, device_rows="100%"))


def test_free_memory_includes_what_torch_caches() -> None:
    device = torch.device(CUDA, torch.cuda.current_device())
    before = free_bytes(device)
    assert before is not None
    block: Tensor | None = torch.empty(64 << 20, dtype=torch.uint8, device=device)
    during = free_bytes(device)
    del block
    after = free_bytes(device)
    assert during is not None and after is not None
    assert before - during >= 60 << 20 and after - during >= 60 << 20


def test_pinned_memory_is_the_same_memory_on_both_sides() -> None:
    device = torch.device(CUDA, torch.cuda.current_device())
    array = whole_pages(1000, 33)
    pinned = Pinned(array, device)
    pinned.tensor[500] = 3.0
    torch.cuda.synchronize()
    assert (array[500] == 3).all() and not array[499].any()
    array[7] = 5.0
    assert pinned.tensor[7].tolist() == [5.0] * 33
    pinned.close()
    Pinned(array, device).close()  # it can be pinned again


def test_no_thread_and_no_pinned_table_is_left_behind() -> None:
    before = threading.active_count()
    embeddings = one_table(100, "10", device=CUDA, transfer="direct")
    step_all(embeddings, [bags([row]) for row in range(50)], depth=3)
    embeddings.close()
    embeddings.close()
    assert threading.active_count() == before
