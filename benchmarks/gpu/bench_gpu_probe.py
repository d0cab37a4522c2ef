"""The measurements that decide the design, in two to four minutes: run these first.

    python -m benchmarks.gpu.bench_gpu_probe [--smoke] [--set parts=kernels,link seconds=120]

*kernels*: pooling and update of a batch, with and without its rows with many lookups.
*link*: pinned rows read and written by kernels of 16, 64 and all programs, alone and during matrix products.
*planning*: the search for lookups on the device, and its sort. *dense*: the dense part in float32, TF32 and
bfloat16, and the interaction three ways. *host*: host time of launches, streams, events and packing a plan.

Numbers are milliseconds of the device unless their name says otherwise. Results of these kernels are checked elsewhere
(`tests/kernels`, the stage `suite`).
"""

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder, LookupsAhead
from adaptive.embeddings.tiers.gpu.lookups import DeviceSearch, DeviceSearcher
from adaptive.embeddings.tiers.gpu.pinned import Pinned
from adaptive.embeddings.tiers.gpu.sent_plan import bag_arrays
from adaptive.embeddings.tiers.host import whole_pages
from adaptive.embeddings.tiers.mover import Mover
from adaptive.embeddings.tiers.streams import streams_of
from adaptive.kernels.planning.lookups import hot_rows
from adaptive.kernels.planning.torch_lookups import find_lookups
from adaptive.kernels.rows.choose import RowKernels, row_kernels
from adaptive.models.dense.interactions import dot_interaction, gathered_dot_interaction, plain_dot_interaction
from adaptive.optim import RowwiseAdagrad
from benchmarks import harness
from benchmarks.ending import kept_when_ended
from benchmarks.gpu.accelerator import Accelerator, open_accelerator
from benchmarks.gpu.floors import GB, Rates, measure_rates, traffic
from benchmarks.gpu.parts import WholeStep
from benchmarks.gpu.workloads import NUM_TABLES, Workload
from benchmarks.harness import Report, Table
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import NotAvailable


@dataclass(frozen=True)
class Settings:
    device: str = "cuda"
    parts: tuple[str, ...] = ("host", "kernels", "link", "planning", "dense")
    rows: int = 8_000_000  # of the tables that kernels work on
    ids: int = 39_000_000  # of the tables whose ids are sorted
    dims: tuple[int, ...] = (64, 128)
    batches: tuple[int, ...] = (2048, 16_384, 65_536)
    heavy: int = 16_384  # samples of a batch with ten ids a bag; 0: none
    pinned_rows: int = 4_000_000
    moved_rows: tuple[int, ...] = (15_000, 65_536)
    programs: tuple[int, ...] = (16, 64, 100_000)  # of a copy between the tiers
    product: int = 4096  # side of the matrices
    copy_megabytes: int = 512
    rounds: int = 15
    seconds: float = 240.0


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=2_000_000, ids=10_000_000, dims=(64,), batches=(2048, 16_384), rounds=9, seconds=90.0),
    "smoke": Settings(
        rows=500_000, ids=1_000_000, dims=(64,), batches=(16_384,), heavy=0, pinned_rows=200_000, moved_rows=(15_000,),
        programs=(64,), product=2048, copy_megabytes=256, rounds=5, seconds=40.0,
    ),
}  # fmt: skip


class Probe:
    """Figures with their units in their names, and one table of all."""

    def __init__(self, settings: Settings, accelerator: Accelerator, report: Report) -> None:
        self.settings, self.accelerator, self.report = settings, accelerator, report
        self.device = accelerator.device
        self._table: Table = report.table("probe", "what", "value")

    def note(self, name: str, value: float) -> None:
        self._table.add(name, value)
        self.report.figures[f"gpu_probe_{name}"] = value
        print(f"  {name} = {value:.4g}", flush=True)

    def ms(self, work: Callable[[], object]) -> float:
        return median(self.accelerator.times_ms(work, rounds=self.settings.rounds))

    def host_us(self, work: Callable[[], object], count: int = 200) -> float:
        """Return the host's time for a call; the device may be behind."""
        work()
        self.accelerator.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        spent = time.perf_counter() - start
        self.accelerator.synchronize()
        return spent / count * 1e6

    def send(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array)).to(self.device)


def run(settings: Settings) -> Report:
    until = time.monotonic() + settings.seconds
    accelerator, report = open_accelerator(settings.device), Report()
    probe = Probe(settings, accelerator, report)
    with kept_when_ended(report):
        for name in settings.parts:
            if name not in PARTS:
                raise SystemExit(f"parts={name}: there are {', '.join(PARTS)}")
            if time.monotonic() > until:
                report.absent[f"probe, {name}"] = "the time was over"
                continue
            try:
                PARTS[name](probe)
            except NotAvailable as reason:
                report.absent[f"probe, {name}"] = str(reason)
            except Exception as error:  # the other parts still count
                traceback.print_exception(error)
                report.absent[f"bench_gpu_probe {name}"] = f"{type(error).__name__}: {error}"
    return report


# --- kernels -----------------------------------------------------------------------------------------------------


def _kernels(probe: Probe) -> None:
    rates = measure_rates(probe.accelerator, probe.settings.copy_megabytes)
    for dim in probe.settings.dims:
        for samples in probe.settings.batches:
            _rows_of_a_batch(probe, rates, dim, samples, mean_hot=1)
    if probe.settings.heavy:
        _rows_of_a_batch(probe, rates, probe.settings.dims[0], probe.settings.heavy, mean_hot=10)


def _rows_of_a_batch(probe: Probe, rates: Rates, dim: int, samples: int, *, mean_hot: int) -> None:
    name = f"b{samples}_d{dim}{'_heavy' if mean_hot > 1 else ''}"
    tables = kaggle_tables(probe.settings.rows, dim)
    (group,) = make_groups(list(tables), 0)
    (batch,) = make_batches(tables, 1, samples, mean_hot=mean_hot)
    lookups = LookupsAhead([group], 0).start(batch)()[0]
    distinct, kernels = lookups.distinct, row_kernels(probe.device)
    slots = np.random.default_rng(0).permutation(group.num_rows)[: len(distinct.rows)]
    weights = torch.full((group.num_rows, dim), 0.01, device=probe.device)
    out = torch.empty((lookups.bags.num_vectors, dim), device=probe.device)
    pooling = lookups.bags.pooling(distinct.inverse, slots)
    bags = [probe.send(array) for array in bag_arrays(pooling, slots)]
    floor = traffic(len(distinct.rows), samples, NUM_TABLES, dim, 1)
    probe.note(f"{name}_distinct_rows", float(len(distinct.rows)))
    probe.note(f"{name}_most_lookups_of_a_row", float(distinct.counts.max()))
    took = probe.ms(lambda: kernels.pool(weights, None, *bags, out, pooling.num_samples))
    probe.note(f"{name}_pool_ms", took)
    probe.note(f"{name}_pool_over_floor", took / (floor.forward / rates.memory * 1e3))
    segments = lookups.segments
    probe.note(f"{name}_hot_rows", float(len(hot_rows(segments))))
    for way, work in _updates(probe, kernels, weights, slots, segments, lookups.vectors, torch.randn_like(out)):
        took = probe.ms(work)
        probe.note(f"{name}_update_{way}_ms", took)
        probe.note(f"{name}_update_{way}_over_floor", took / (floor.update / rates.memory * 1e3))


def _updates(
    probe: Probe,
    kernels: RowKernels,
    weights: Tensor,
    slots: NDArray[np.int64],
    segments: NDArray[np.int64],
    vectors: NDArray[np.int32],
    gradients: Tensor,
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Row-wise Adagrad of all rows as in training, and of the rows that are not hot."""
    optimizer, none = RowwiseAdagrad(), torch.empty(0, device=probe.device)
    state, norms = torch.zeros((len(weights), 1), device=probe.device), torch.empty(len(slots), device=probe.device)
    settings, corrections = [float(value) for value in optimizer.settings()], probe.send(optimizer.corrections())
    hot = hot_rows(segments)
    cold = np.setdiff1d(np.arange(len(slots)), hot)
    starts = np.concatenate([[0], np.cumsum(np.diff(segments)[cold])])
    positions = np.repeat(segments[cold] - starts[:-1], np.diff(starts)) + np.arange(starts[-1])

    def work(hot: NDArray[np.int32], *arrays: NDArray[Any]) -> Callable[[], object]:
        sent = [probe.send(array) for array in arrays]
        arguments = *sent, none, gradients, optimizer.kind, settings, corrections, norms[: len(sent[0])]
        sent_hot = probe.send(hot)
        return lambda: kernels.update(weights, state, *arguments, hot=sent_hot)

    yield "usual", work(hot, slots, segments, vectors)
    yield "without_hot_rows", work(hot[:0], slots[cold], starts, vectors[positions])


# --- link --------------------------------------------------------------------------------------------------------


def _link(probe: Probe) -> None:
    settings, dim = probe.settings, probe.settings.dims[0]
    array = whole_pages(settings.pinned_rows, dim)
    start = time.perf_counter()
    pinned = Pinned(array, probe.device)
    try:
        probe.note("pin_s_per_gb", (time.perf_counter() - start) / (array.nbytes / GB))
        rng = np.random.default_rng(0)
        here = torch.zeros((max(settings.moved_rows), dim), device=probe.device)
        states = torch.zeros((len(here), 0), device=probe.device), pinned.tensor[:, :0]
        products = _products(probe)
        probe.note("products_alone_ms", probe.ms(products))
        for count in settings.moved_rows:
            rows = probe.send(rng.choice(len(array), count, replace=False))
            slots = probe.send(rng.permutation(len(here))[:count])
            for programs in settings.programs:
                with _capped(probe, programs):
                    _move(probe, f"{count}_rows_{programs}_programs", (here, *states, slots, pinned.tensor, rows))
    finally:
        probe.accelerator.synchronize()
        pinned.close()


def _products(probe: Probe) -> Callable[[], object]:
    side = probe.settings.product
    one, other = (torch.randn(side, side, device=probe.device, dtype=torch.bfloat16) for _ in range(2))
    return lambda: [one @ other for _ in range(6)]


def _move(probe: Probe, name: str, tensors: tuple[Tensor, ...]) -> None:
    device, state, host_state, slots, host, rows = tensors
    copy_rows, products = row_kernels(probe.device).copy_rows, _products(probe)
    num_bytes = len(rows) * device.shape[1] * 4

    def fetch() -> None:
        copy_rows(device, state, slots, host, host_state, rows)

    def fetch_during_products() -> None:
        with probe.accelerator.side_stream():
            for _ in range(8):
                fetch()
        products()

    probe.note(f"fetch_{name}_gb_per_s", num_bytes / probe.ms(fetch) / 1e6)
    back = probe.ms(lambda: copy_rows(host, host_state, rows, device, state, slots))
    probe.note(f"write_back_{name}_gb_per_s", num_bytes / back / 1e6)
    probe.note(f"products_beside_{name}_ms", probe.ms(fetch_during_products))
    probe.accelerator.synchronize()


@contextmanager
def _capped(probe: Probe, programs: int) -> Iterator[None]:
    """Limit the programs of Triton's copies between the tiers."""
    if not probe.accelerator.is_gpu:
        yield
        return
    from adaptive.kernels.rows.gpu import move

    before = move.COPY_PROGRAMS
    move.COPY_PROGRAMS = programs
    try:
        yield
    finally:
        move.COPY_PROGRAMS = before


# --- planning on the device --------------------------------------------------------------------------------------


def _planning(probe: Probe) -> None:
    tables = kaggle_tables(probe.settings.ids, 64)
    (group,) = make_groups(list(tables), 0)
    for samples, mean_hot in ((max(probe.settings.batches), 1), (probe.settings.heavy, 10)):
        if samples:
            (batch,) = make_batches(tables, 1, samples, mean_hot=mean_hot)
            mover = Mover(streams_of(probe.device))
            mover.begin(-1)
            search = DeviceSearcher(group, mover, least=0, least_per_bag=0).start(batch)
            assert isinstance(search, DeviceSearch)
            search.launch(DistinctFinder(group))
            search.lookups()
            memory, (rows, ends) = search._memory, search._memory.sent.tensors[:2]
            name, given = f"{len(rows)}_lookups", (rows, ends, memory.bags, memory.results)
            probe.note(f"sort_{name}_ms", probe.ms(lambda rows=rows: torch.sort(rows, stable=True)))  # type: ignore[misc]
            probe.note(f"find_{name}_ms", probe.ms(lambda given=given: find_lookups(*given)))  # type: ignore[misc]


# --- the dense part ----------------------------------------------------------------------------------------------


def _dense(probe: Probe) -> None:
    products: Any = torch.backends.cuda.matmul
    before = products.allow_tf32
    for samples in probe.settings.batches:
        for name, bf16, tf32 in (("fp32", False, False), ("tf32", False, True), ("bf16", True, True)):
            workload = Workload(gigabytes=0.1, dim=probe.settings.dims[0], bf16=bf16)
            (batch,) = workload.batches(1, samples, seed=0)
            products.allow_tf32 = tf32
            try:
                work = WholeStep(workload, probe.accelerator).dense_alone(batch)
                probe.note(f"dense_b{samples}_{name}_ms", probe.ms(work))
                probe.note(f"dense_b{samples}_{name}_host_us", probe.host_us(work, 10))
            finally:
                products.allow_tf32 = before
        for name, interact in (
            ("chosen", dot_interaction),
            ("gathered", gathered_dot_interaction),
            ("plain", plain_dot_interaction),
        ):
            _interaction(probe, f"interaction_b{samples}_{name}", samples, interact)


def _interaction(probe: Probe, name: str, samples: int, interact: Callable[..., Tensor]) -> None:
    dim = probe.settings.dims[0]
    bottom = torch.randn(samples, dim, device=probe.device, requires_grad=True)
    pooled = torch.randn(samples, NUM_TABLES, dim, device=probe.device, requires_grad=True)
    probe.note(f"{name}_forward_ms", probe.ms(lambda: interact(bottom, pooled)))
    out = interact(bottom, pooled)
    gradient = torch.randn_like(out)

    def backward() -> None:
        bottom.grad = pooled.grad = None
        out.backward(gradient, retain_graph=True)

    probe.note(f"{name}_backward_ms", probe.ms(backward))


# --- the host ----------------------------------------------------------------------------------------------------


def _host(probe: Probe) -> None:
    device, kernels = probe.device, row_kernels(probe.device)
    weights, out = torch.zeros((64, 64), device=device), torch.zeros((8, 64), device=device)
    slots, segments, none = (
        torch.arange(8, device=device),
        torch.arange(9, device=device),
        torch.empty(0, device=device),
    )
    state, norms, vectors = torch.zeros((64, 1), device=device), torch.empty(8, device=device), slots.int()
    optimizer = RowwiseAdagrad()
    settings = [float(value) for value in optimizer.settings()]
    bags = slots, vectors, none, none, none
    probe.note("pool_host_us", probe.host_us(lambda: kernels.pool(weights, None, *bags, out, 8)))
    arguments = slots, segments, vectors, none, out, optimizer.kind, settings, none, norms
    options = {"hot": vectors[:0]}
    update = lambda: kernels.update(weights, state, *arguments, **options)  # noqa: E731
    probe.note("update_host_us", probe.host_us(update))
    probe.note("mark_host_us", probe.host_us(probe.accelerator.mark, 500))
    if probe.accelerator.is_gpu:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

        def switch() -> None:
            with torch.cuda.stream(stream):
                pass

        probe.note("stream_context_host_us", probe.host_us(switch, 2000))
    plan, block = np.zeros(11_500_000, np.uint8), probe.accelerator.pinned(1 << 22).numpy().view(np.uint8)
    probe.note("pack_11_5_mb_host_us", probe.host_us(lambda: np.copyto(block[: len(plan)], plan), 20))


PARTS: dict[str, Callable[[Probe], None]] = {
    "host": _host, "kernels": _kernels, "link": _link, "planning": _planning, "dense": _dense,
}  # fmt: skip

if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
