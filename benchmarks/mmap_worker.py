"""The child process of `bench_mmap`: trains tables in a file, told what to do by lines of JSON.

    {"do": "start"}              build the variant
    {"do": "touch"}              write every row's initial values to the file, where it does not hold them yet
    {"do": "fill"}               let popular rows come onto the device, without training
    {"do": "rows"}               train the check batches, write the compared rows to `rows.npy`
    {"do": "steps"}              train a block; answers the seconds of its timed part

Every answer is one line of JSON.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.counters import Counter
from benchmarks.streams import kaggle_tables, make_batches, one_each
from benchmarks.variants import Embeddings, Ours, Setup, feature_spans, hit_rate

CHECK_STEPS = 3
WEIGHTS = "weights.bin"  # in the task's folder, all tables joined; for `memmap`


@dataclass(frozen=True)
class Task:
    kind: Literal["tiered", "memmap"]
    folder: str
    rows: int
    dim: int
    batch: int
    device_rows: str
    depth: int
    lead_in: int  # steps of a block before the clock starts
    steps: int  # timed ones
    blocks: int
    fill: int  # batches planned before the first is trained
    exponent: float

    def json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def setup(self) -> Setup:
        return Setup(kaggle_tables(self.rows, self.dim), "sgd")


class Memmap(Embeddings):
    """What one would write by hand: `np.memmap`, `torch.index_select`, `Tensor.index_add_`; SGD."""

    name = "np.memmap, index_select, index_add_"

    def __init__(self, setup: Setup, path: Path) -> None:
        self._rate, self._dim = setup.rate, setup.dim
        self._starts = np.concatenate([[0], np.cumsum([table.num_embeddings for table in setup.tables])[:-1]])
        mapped: Any = np.memmap(path, np.float32, "r+", shape=(setup.num_rows, setup.dim))
        self._weight = torch.from_numpy(mapped)

    def load(self, weights: Iterable[NDArray[np.float32]]) -> None:
        raise AssertionError("the file holds the initial values")

    def prepare(self, batch: Batch) -> Tensor:
        shifted = [ids + start for (ids, _), start in zip(feature_spans(batch), self._starts, strict=True)]
        return torch.from_numpy(np.stack(shifted, axis=1).reshape(-1))

    def pool(self, inputs: Tensor) -> Tensor:
        self._ids = inputs
        features = len(self._starts)
        self._pooled = torch.index_select(self._weight, 0, inputs).view(-1, features, self._dim).requires_grad_()
        return self._pooled

    def update(self) -> None:
        assert self._pooled.grad is not None
        self._weight.index_add_(0, self._ids, self._pooled.grad.view(-1, self._dim), alpha=-self._rate)


def make_variant(task: Task) -> Embeddings:
    if task.kind == "memmap":
        return Memmap(task.setup, Path(task.folder) / WEIGHTS)
    host = f"mmap:{task.folder}"
    return Ours(task.setup, device_rows=task.device_rows, policy="lru", depth=task.depth, host=host)


def train(embeddings: Embeddings, inputs: Iterator[Any], gradient: Tensor, count: int) -> float:
    """Seconds of `count` steps."""
    start = time.perf_counter()
    for _ in range(count):
        pooled = embeddings.pool(next(inputs))
        torch.autograd.backward(pooled, [gradient[: len(pooled)]])
        embeddings.update()
    return time.perf_counter() - start


class Worker:
    """Answers of one child."""

    def __init__(self, task: Task) -> None:
        self._task = task
        count = CHECK_STEPS + task.blocks * (task.lead_in + task.steps)
        self._batches = make_batches(task.setup.tables, count, task.batch, exponent=task.exponent)
        self._next = CHECK_STEPS
        generator = torch.Generator().manual_seed(1)
        features = len(task.setup.tables)
        self._gradient = torch.randn((task.batch, features, task.dim), generator=generator).mul_(0.01)
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile or load every kernel on small tables: compilers take memory that is no table's."""
        folder = Path(self._task.folder) / "warm-up"
        folder.mkdir()
        task = replace(self._task, rows=20_000, device_rows="100%", folder=str(folder))
        (folder / WEIGHTS).write_bytes(bytes(4 * task.rows * task.dim))
        self._variant = make_variant(task)
        self._train(make_batches(task.setup.tables, 8, task.batch), self._gradient)
        self._variant.rows(np.zeros((1, len(task.setup.tables)), np.int64))
        self._variant.close()

    def start(self) -> dict[str, Any]:
        self._variant = make_variant(self._task)
        return {}

    def touch(self) -> dict[str, Any]:
        """Train every row once with a gradient of zero, so that all rows lie in the file with their initial values."""
        sizes = [table.num_embeddings for table in self._task.setup.tables]
        gradient = torch.zeros_like(self._gradient)
        for first in range(0, max(sizes), self._task.batch):
            self._train([_all_rows(sizes, first, self._task.batch)], gradient)
        return {}

    def fill(self) -> dict[str, Any]:
        """Plan batches of the same stream without training them; their ids are not those of the timed ones."""
        assert isinstance(self._variant, Ours)
        task = self._task
        for seed in range(1, task.fill + 1):
            batches = make_batches(task.setup.tables, 1, task.batch, exponent=task.exponent, seed=seed)
            for _ in self._variant.bag.look_ahead(batches, depth=0):
                pass
        return {}

    def _train(self, batches: list[Batch], gradient: Tensor) -> None:
        stream = self._variant.stream(batches)
        train(self._variant, stream, gradient, len(batches))
        assert next(stream, None) is None, "batches are left"

    def rows(self) -> dict[str, Any]:
        batches = self._batches[:CHECK_STEPS]
        ids = one_each(self._task.setup.tables, batches, limit=512)
        before = self._variant.rows(ids)
        self._train(batches, self._gradient)
        path = Path(self._task.folder) / "rows.npy"
        np.save(path, np.stack([before, self._variant.rows(ids)]))
        return {"path": str(path)}

    def steps(self) -> dict[str, Any]:
        task = self._task
        part = self._batches[self._next : self._next + task.lead_in + task.steps]
        self._next += len(part)
        stream = self._variant.stream(part)
        train(self._variant, stream, self._gradient, task.lead_in)
        seconds = train(self._variant, stream, self._gradient, task.steps)
        assert next(stream, None) is None, "batches are left"
        return {"seconds": seconds, **self._told(len(part))}

    def _told(self, num_batches: int) -> dict[str, float]:
        if not isinstance(self._variant, Ours):
            return {}
        statistics = self._variant.statistics()
        counts = statistics.counts.sum(axis=0)
        return {
            "hit_rate": hit_rate(statistics),
            "fetched": float(counts[Counter.FETCHED]) / num_batches,
            "written_back": float(counts[Counter.WRITTEN_BACK]) / num_batches,
            "demoted": float(counts[Counter.DEMOTED]) / num_batches,
        }


def _all_rows(sizes: list[int], first: int, num_samples: int) -> Batch:
    """The batch that looks up the rows [first, first + num_samples) of every table, as far as it has them."""
    last = [min(size, first + num_samples) for size in sizes]
    parts = [np.arange(min(first, end), end) for end in last]
    counts = np.concatenate([np.arange(num_samples) < len(part) for part in parts])
    return Batch(
        dense=np.zeros((num_samples, 0), np.float32),
        ids=np.concatenate(parts),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        labels=np.zeros(num_samples, np.float32),
    )


def main() -> None:
    worker = Worker(Task(**json.loads(sys.argv[1])))
    commands = {
        "start": worker.start,
        "touch": worker.touch,
        "fill": worker.fill,
        "rows": worker.rows,
        "steps": worker.steps,
    }
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(commands[json.loads(line)["do"]]()), flush=True)


if __name__ == "__main__":
    main()
