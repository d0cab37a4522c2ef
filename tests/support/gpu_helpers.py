"""What the tests on a GPU share: trainings on any device, delays in every stream and thread, a count of waits."""

import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from adaptive.optim import RowOptimizer
from adaptive.policy import Policy
from support.helpers import Trained, Trainee, random_batches, train_more

EXAMPLES = int(os.environ.get("GPU_SUITE_EXAMPLES", "40"))


class HostTrainee(Trainee):
    """Its dense side is on the CPU whatever the rows' device, so that all its bits are the slow twin's."""

    def learn(self, vectors: Mapping[str, Tensor], batch: Batch) -> None:
        super().learn({name: values.cpu() for name, values in vectors.items()}, batch)


def train_on(
    device: str,
    tables: Sequence[TableConfig],
    batches: Iterable[Batch],
    optimizer: RowOptimizer,
    policy: type[Policy],
    tier: TierConfig,
    depth: int,
) -> Trained:
    """Train rows on `device` and a small readout on the CPU."""
    tier = tier.model_copy(update={"device": device})
    with TieredEmbeddingBag(tables, tier, policy=policy, optimizer=optimizer) as embeddings:
        return train_more(embeddings, HostTrainee(tables), batches, depth)


# --- a model all of which is on the device -----------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """A DLRM over skewed ids, dense part and rows on one device."""

    device: str
    policy: type[Policy]
    optimizer: RowOptimizer
    device_rows: str = "40%"
    depth: int = 3
    dim: int = 16
    samples: int = 64
    bf16: bool = False
    num_batches: int = 12
    lookups: str = "auto"

    def tables(self) -> list[TableConfig]:
        sizes = (2000, 500, 40)
        return [TableConfig(name=f"t{n}", num_embeddings=rows, embedding_dim=self.dim) for n, rows in enumerate(sizes)]

    def batches(self) -> list[Batch]:
        return random_batches(self.tables(), self.num_batches, samples=self.samples, max_bag=4)

    def open(self) -> "Running":
        rows = self.policy.device_rows or self.device_rows
        ways = {"lookups": self.lookups}
        tier = TierConfig.model_validate({"device_rows": rows, "device": self.device} | ways)
        embeddings = TieredEmbeddingBag(self.tables(), tier, policy=self.policy, optimizer=self.optimizer)
        config = DLRMConfig(embedding_dim=self.dim, bottom_mlp=(32, self.dim), top_mlp=(64, 1), bf16=self.bf16)
        model = DLRM(config, num_dense=1, num_features=3).to(embeddings.device)
        return Running(embeddings, model, torch.optim.SGD(model.parameters(), lr=0.05))

    def run(self, disturb: Callable[[], None] = lambda: None) -> dict[str, np.ndarray[Any, Any]]:
        """All numbers at the end; `disturb` is called between the parts of every step."""
        running = self.open()
        with running.embeddings:
            for _ in running.train(self._slowly(disturb), self.depth, disturb):
                pass
            return running.numbers()

    def _slowly(self, disturb: Callable[[], None]) -> Iterator[Batch]:
        for batch in self.batches():
            disturb()  # in the look-ahead thread
            yield batch


@dataclass
class Running:
    """A training at work."""

    embeddings: TieredEmbeddingBag
    model: DLRM
    optimizer: torch.optim.Optimizer
    losses: list[Tensor] = field(default_factory=list)

    def train(
        self, batches: Iterable[Batch], depth: int, disturb: Callable[[], None] = lambda: None
    ) -> Generator[int, None, None]:
        """Yields the number of steps done; nothing here waits for the device. Close it before the embeddings."""
        with closing(self.embeddings.look_ahead(batches, depth=depth)) as coming:
            for number, planned in enumerate(coming, start=1):
                disturb()
                logits = self.model(planned.dense, self.embeddings.stack(planned))
                loss = binary_cross_entropy_with_logits(logits, planned.labels)
                self.optimizer.zero_grad()
                disturb()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                disturb()
                self.embeddings.step()
                self.losses.append(loss.detach())
                yield number

    def numbers(self) -> dict[str, np.ndarray[Any, Any]]:
        """Tables, optimizer state, dense weights, losses."""
        found = {f"table {name}": self.embeddings.rows.table_weights(name) for name in self.embeddings.table_names}
        found |= {f"rows {name}": array for name, array in self.embeddings.rows.state_arrays().items()}
        found |= {f"dense {name}": value.detach().cpu().numpy() for name, value in self.model.named_parameters()}
        found["losses"] = torch.stack(self.losses).cpu().numpy()
        return found


def assert_same(one: Mapping[str, np.ndarray[Any, Any]], other: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Bit for bit, and finite."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        if array.dtype.kind == "f":
            assert np.isfinite(array).all(), name
        assert np.array_equal(array, other[name]), f"{name} differs"


# --- delays ------------------------------------------------------------------------------------------------------


class Delays:
    """Sleeps at random: host threads where it is called, and, on a GPU, whatever stream is current there."""

    def __init__(self, device: str, seed: int, *, host_ms: float = 2.0, device_ms: float = 2.0) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._host_ms, self._device_ms, self._is_gpu = host_ms, device_ms, device == "cuda"
        self.count = 0

    def __call__(self) -> None:
        with self._lock:
            self.count += 1
            host, here = self._random.random() < 0.3, self._random.random()
        if host:
            time.sleep(here * self._host_ms / 1e3)
        elif self._is_gpu:
            torch.cuda._sleep(int(here * self._device_ms * 1.5e6))  # cycles, at about 1.5 GHz

    @contextmanager
    def around_events(self) -> Iterator[None]:
        """Also before every event is recorded, and after every wait, in the stream that does it.

        What a stream forgot to wait for is then late, and what it reuses too early is still in use.
        """
        if not self._is_gpu:
            yield
            return
        event, record, wait = torch.cuda.Event, torch.cuda.Event.record, torch.cuda.Event.wait

        def late_record(self: torch.cuda.Event, stream: Any = None) -> None:
            with torch.cuda.stream(stream or torch.cuda.current_stream()):
                delays()
            record(self, stream)

        def late_wait(self: torch.cuda.Event, stream: Any = None) -> None:
            wait(self, stream)
            with torch.cuda.stream(stream or torch.cuda.current_stream()):
                delays()

        delays = self
        try:
            event.record, event.wait = late_record, late_wait  # type: ignore[method-assign]
            yield
        finally:
            event.record, event.wait = record, wait  # type: ignore[method-assign]


@contextmanager
def waiting_is_an_error(device: str) -> Iterator[None]:
    """torch raises where an operation would make the host wait for the device. Nothing happens on the CPU."""
    if device != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def reading_is_allowed(device: str) -> Iterator[list[int]]:
    """Inside `waiting_is_an_error`: `Tensor.tolist` may wait; a 1 is listed for each call."""
    calls: list[int] = []
    read = torch.Tensor.tolist

    def counted(self: Tensor) -> Any:
        calls.append(1)
        if device != "cuda":
            return read(self)
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return read(self)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    torch.Tensor.tolist = counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        torch.Tensor.tolist = read  # type: ignore[method-assign]
