"""Kernels by themselves, in two to four minutes: run these first.

    python -m benchmarks.gpu.bench_gpu_probe [--smoke] [--set parts=kernels seconds=120]

*kernels*: pooling and update of a batch, with and without its rows with many lookups.
*dense*: the model with its optimizer but without embeddings: the GPU's time, and the host's to launch it.
*planning*: the search for lookups on the device, and its sort.

Numbers are milliseconds of the device unless their name says otherwise. Results of these kernels are checked elsewhere
(`tests/kernels`, the stage `suite`).
"""

import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.lookups import DistinctFinder, LookupsAhead
from adaptive.embeddings.tiers.gpu.lookups import DeviceSearch, DeviceSearcher
from adaptive.embeddings.tiers.gpu.upload import bag_arrays
from adaptive.embeddings.tiers.mover import Mover
from adaptive.embeddings.tiers.streams import streams_of
from adaptive.kernels.planning.lookups import hot_chunks
from adaptive.kernels.planning.torch_lookups import find_lookups
from adaptive.kernels.rows.choose import RowKernels, row_kernels
from adaptive.optim import RowwiseAdagrad
from benchmarks import harness
from benchmarks.ending import kept_when_ended
from benchmarks.gpu.accelerator import Accelerator, open_accelerator
from benchmarks.gpu.floors import Rates, measure_rates, traffic
from benchmarks.gpu.parts import WholeStep
from benchmarks.gpu.turns import quartiles
from benchmarks.gpu.workloads import NUM_TABLES, Precision, Workload
from benchmarks.harness import Report, Table
from benchmarks.streams import kaggle_tables, make_batches
from benchmarks.variants import NotAvailable


@dataclass(frozen=True)
class Settings:
    device: str = "cuda"
    parts: tuple[str, ...] = ("kernels", "dense", "planning")
    rows: int = 8_000_000  # of the tables that kernels work on
    ids: int = 39_000_000  # of the tables whose ids are sorted
    dims: tuple[int, ...] = (64, 128)
    batches: tuple[int, ...] = (2048, 16_384, 65_536)
    heavy: int = 16_384  # samples of a batch with ten ids a bag; 0: none
    gigabytes: float = 10.0  # of the tables beside the dense part, which it does not touch
    copy_megabytes: int = 512
    rounds: int = 15
    seconds: float = 240.0


SETTINGS = {
    "full": Settings(),
    "quick": Settings(rows=2_000_000, ids=10_000_000, dims=(64,), batches=(2048, 16_384), rounds=9, seconds=90.0),
    "smoke": Settings(
        rows=500_000, ids=1_000_000, dims=(64,), batches=(16_384,), heavy=0, copy_megabytes=256, rounds=5, seconds=40.0,
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
    probe.note(f"{name}_hot_rows", float(len(set(hot_chunks(segments)[::2]))))
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
    state, norms = (
        torch.zeros((len(weights), 1), device=probe.device),
        torch.empty((1, len(slots)), device=probe.device),
    )
    settings, corrections = [float(value) for value in optimizer.settings()], probe.send(optimizer.corrections())
    hot = hot_chunks(segments)
    cold = np.setdiff1d(np.arange(len(slots)), hot[::2])
    starts = np.concatenate([[0], np.cumsum(np.diff(segments)[cold])])
    positions = np.repeat(segments[cold] - starts[:-1], np.diff(starts)) + np.arange(starts[-1])

    def work(hot: NDArray[np.int32], *arrays: NDArray[Any]) -> Callable[[], object]:
        sent = [probe.send(array) for array in arrays]
        arguments = *sent, none, gradients, optimizer.kind, settings, corrections, norms[:, : len(sent[0])].contiguous()
        sent_hot = probe.send(hot)
        return lambda: kernels.update(weights, state, *arguments, hot=sent_hot)

    yield "usual", work(hot, slots, segments, vectors)
    yield "without_hot_rows", work(hot[:0], slots[cold], starts, vectors[positions])


# --- the dense part ----------------------------------------------------------------------------------------------


def _dense(probe: Probe) -> None:
    accelerator, rounds = probe.accelerator, probe.settings.rounds
    table = probe.report.table(
        "dense part", "precision", "batch", "ms", "quartiles", "busy ms", "kernels", "launch ms", "its quartiles"
    )
    for precision in get_args(Precision):
        workload = Workload("dlrm", probe.settings.gigabytes, probe.settings.dims[0], precision=precision)
        step = WholeStep(workload, accelerator)
        for samples in probe.settings.batches:
            work = step.dense_alone(*workload.batches(1, samples, seed=0))
            times = accelerator.times_ms(work, rounds=rounds, warm_up=3)
            launches = accelerator.launch_ms(work, rounds=rounds)
            seen = accelerator.profile(work)
            table.add(
                precision, samples, median(times), quartiles(times), seen.busy_ms if accelerator.is_gpu else None,
                seen.kernels, median(launches), quartiles(launches),
            )  # fmt: skip


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


PARTS: dict[str, Callable[[Probe], None]] = {"kernels": _kernels, "dense": _dense, "planning": _planning}

if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
