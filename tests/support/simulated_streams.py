"""A simulated device: work is queued by stream and done later, in any order that the events allow.

Each request for work also turns the clock, at random: some queued work is done, of streams chosen by a seed. Values
that have not arrived yet are not numbers: new memory is poisoned, the target of a copy is poisoned until the copy is
done, and a copy takes two turns. A device's memory is ordinary memory here, so work done too early or too late shows in
the results.
"""

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from adaptive.embeddings.tiers.mover import Event, Shape, Streams

LAZINESS = (0.0, 0.3, 0.7, 0.95, 1.0)  # share of turns that a stream skips


class Simulation:
    """Two streams, more if asked for, and a clock."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.lock = threading.RLock()
        self.copying, self.compute = SimulatedStream(self), SimulatedStream(self)
        self.all = [self.copying, self.compute]
        self.streams = Streams(torch.device("cpu"), *self.all, self.pinned, self.settle, self.another)
        self.settled = 0
        self._pinned: set[int] = set()
        self._memory: list[Tensor] = []

    def another(self) -> "SimulatedStream":
        self.all.append(SimulatedStream(self))
        return self.all[-1]

    def pinned(self, num_bytes: int) -> Tensor:
        memory = torch.empty(num_bytes, dtype=torch.uint8)
        poison(memory)
        self._memory.append(memory)  # otherwise other memory could get its address
        self._pinned.add(memory.untyped_storage().data_ptr())
        return memory

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def settle(self) -> None:
        self.settled += 1
        for stream in self.all:
            stream.catch_up()

    def turn(self) -> None:
        """Time passes."""
        for stream in self.all:
            while stream.can_run() and self.random.random() > stream.laziness:
                stream.run_next()

    def run_until(self, event: "SimulatedEvent") -> None:
        while not event.happened:
            able = [stream for stream in self.all if stream.can_run()]
            assert able, "the streams wait for each other"
            able[self.random.integers(len(able))].run_next()


class SimulatedEvent:
    """See `adaptive.embeddings.tiers.mover.Event`."""

    def __init__(self, simulation: Simulation) -> None:
        self.happened = False
        self._simulation = simulation

    def happen(self) -> None:
        self.happened = True

    def wait(self) -> None:
        with self._simulation.lock:
            self._simulation.run_until(self)


class SimulatedStream:
    """See `adaptive.embeddings.tiers.mover.Stream`."""

    def __init__(self, simulation: Simulation) -> None:
        self.laziness = float(simulation.random.choice(LAZINESS))
        self._simulation = simulation
        self._queue: deque[Callable[[], object] | SimulatedEvent] = deque()  # work, or what it must wait for

    def run(self, work: Callable[[], object]) -> None:
        with self._simulation.lock:
            self._queue.append(work)
            self._simulation.turn()

    def copy(self, to: Tensor, source: Tensor) -> None:
        assert self._simulation.is_pinned(to) != self._simulation.is_pinned(source), (
            "only pinned memory is asynchronous"
        )
        assert to.is_contiguous() and source.is_contiguous(), "one copy, not many"
        if self._simulation.is_pinned(to):
            poison(to)  # the host may look at once
        self.run(lambda: poison(to))
        self.run(lambda: to.copy_(source))

    def empty(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        poison(tensor)
        return tensor

    def record(self) -> SimulatedEvent:
        event = SimulatedEvent(self._simulation)
        self.run(event.happen)
        return event

    def after(self, event: Event) -> None:
        assert isinstance(event, SimulatedEvent)
        with self._simulation.lock:
            self._queue.append(event)

    def can_run(self) -> bool:
        while self._queue and isinstance(self._queue[0], SimulatedEvent) and self._queue[0].happened:
            self._queue.popleft()
        return bool(self._queue) and not isinstance(self._queue[0], SimulatedEvent)

    def run_next(self) -> None:
        work = self._queue.popleft()
        assert not isinstance(work, SimulatedEvent)
        work()

    def catch_up(self) -> None:
        """Do all queued work."""
        self.record().wait()


def poison(memory: Tensor) -> None:
    """Overwrite every byte: NaN as float32, far out of range as a row number."""
    if memory.dtype == torch.uint8:
        memory.fill_(0xFF)
    elif memory.is_floating_point():
        memory.fill_(torch.nan)
    elif memory.dtype != torch.bool:
        memory.fill_(torch.iinfo(memory.dtype).min)
