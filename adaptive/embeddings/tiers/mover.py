"""`Mover`: the order of copying and training on a device.

This is the only file that knows which stream waits for which. Work is queued now and done later. Each stream does its
work in the order in which it was queued:

    copying stream   queued by the look-ahead thread: plans and rows to the device, rows back to the host
    compute stream   queued by the training thread: forward, backward, update. On CUDA it is the stream that is current
                     in the training loop when the loop requests a batch; a batch is trained on one stream.
    finding stream   queued by the look-ahead thread or a helper: lookups of batches that the host has found, or the
                     search for them

Exactly one of the methods `await_*` waits for each thing that one stream needs from another, or the host from any:

    await_trained    rows are evicted for batch n, then its plan and rows are copied, after batch n - depth - 1: that
                     batch may change the evicted rows, and use the memory that the copies overwrite
    await_moved      batch n starts after its rows and its plan have arrived
    await_computed   a flush copies rows as all work queued so far leaves them
    await_unused     lookups are written to memory that no batch in training reads
    await_found      batch n's plan comes after its lookups, if the host has found them
    await_sent       the host writes to a pinned buffer again after its last contents have been sent
    await_brought    the host reads a pinned buffer after numbers or rows have arrived
    await_copies     the host touches rows of the tiers itself after every queued copy is done

The copying stream's own order ensures that rows fetched for batch n find their slots free, and rows evicted just before
on the host.

The first five take no time of the host. The training thread waits in `await_brought` if a batch updates rows on the
host, and in `await_sent` if the device is several batches behind. `tests/embeddings/tiers/test_mover.py` delays and
reorders the streams at random, and drops each wait in turn to see that results then differ.

Data that crosses between streams is in memory that is owned for the whole run (slots, plan buffers, staging blocks), so
no allocator can reuse it while the other stream still needs it. The same code runs without streams (`inline`:
everything is done at once) and on simulated ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

Shape = int | tuple[int, ...]


class Event(Protocol):
    """A point in a stream's work."""

    def wait(self) -> None:
        """Block this thread until the stream has reached it."""


class Stream(Protocol):
    """A queue of work for a device, done in order."""

    def run(self, work: Callable[[], object]) -> None:
        """Queue torch operations or kernels, which write their results to existing memory."""

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Queue a copy between device and pinned memory; touch neither until it is done."""

    def empty(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uninitialized device memory for work on this stream."""

    def record(self) -> Event:
        """Return the point after all work queued so far."""

    def after(self, event: Event) -> None:
        """Let work that is queued from now on start after `event`."""


@dataclass(frozen=True)
class Streams:
    """A device's streams and the host memory it copies from."""

    device: torch.device
    copying: Stream
    compute: Stream
    pinned: Callable[[int], Tensor]  # (num_bytes,) uint8 on the host, for copies that do not wait
    settle: Callable[[], None]  # waits for all work on the device, including other streams
    another: Callable[[], Stream]  # makes a stream for work that need not wait for these


class Mover:
    """Keeps copying and training on a device in order.

    `trained` and number arguments count batches; -1 and below: before the first.
    """

    def __init__(self, streams: Streams) -> None:
        self.device = streams.device
        self.copying, self.compute = streams.copying, streams.compute
        self.pinned, self._settle, self._another = streams.pinned, streams.settle, streams.another
        self._waited_for = -1
        self._trained: dict[int, Event] = {}
        self._moved: dict[int, Event] = {}
        self._buffers: list[int] = []  # of each plan buffer: the batch that uses it

    def enter_thread(self) -> None:
        """Make the device current in the calling thread.

        Otherwise CUDA would open a context on device 0 for the thread.
        """
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    # --- the order of batches --------------------------------------------------------------------------------

    def begin(self, trained: int) -> None:
        """Start a look-ahead: no batch is in flight; moves come after everything queued so far."""
        self._waited_for = trained
        self._trained = {trained: self.compute.record()}
        self._moved = {}
        self._buffers = []

    def start_moves(self, number: int, after: int) -> int:
        """Queue copies for batch `number` from now on, after batch `after` is trained.

        Returns the number of a plan buffer that is free then; there are depth + 1. From the look-ahead thread.
        """
        after = self._waited_for = max(after, self._waited_for)  # an earlier batch may have waited for more
        self.rest(after)
        for past in [past for past in list(self._trained) if past < after]:
            del self._trained[past]
        free = [buffer for buffer, user in enumerate(self._buffers) if user <= after]
        if free:
            self._buffers[free[0]] = number
            return free[0]
        self._buffers.append(number)
        return len(self._buffers) - 1

    @cached_property
    def finding(self) -> Stream:
        """The finding stream."""
        return self._another()

    def start_finding(self) -> int:
        """Queue work on the finding stream from now on after the training of earlier batches.

        Returns the number of the last of these. From the look-ahead thread.
        """
        self.await_unused(self._trained[self._waited_for])
        return self._waited_for

    def end_moves(self, number: int) -> None:
        """Mark that all copies for batch `number` have been queued."""
        self._moved[number] = self.copying.record()

    def start_training(self, number: int) -> None:
        """Queue batch `number` on the compute stream from now on. From the training thread."""
        self.await_moved(self._moved.pop(number))

    def end_training(self, number: int) -> None:
        """Mark that all work of batch `number` has been queued. From the training thread."""
        self._trained[number] = self.compute.record()

    def rest(self, trained: int) -> None:
        """Let copies from now on see rows as batch `trained` leaves them.

        From the look-ahead thread.
        """
        self.await_trained(self._trained[trained])

    def catch_up(self) -> None:
        """Let rows be written back from now on as all work so far leaves them."""
        self.await_computed(self.compute.record())

    def finish_copies(self) -> None:
        """Wait until every copy is done."""
        self.await_copies(self.copying.record())

    def settle(self) -> None:
        """Wait for all work so far, on any stream.

        Slots, sums and constants are made when tiers are built or resized, on the stream that is current then. A
        loop may train on another one, after which `begin` orders the first moves.
        """
        self._settle()

    # --- waits -----------------------------------------------------------------------------------------------

    def await_trained(self, event: Event) -> None:
        self.copying.after(event)

    def await_moved(self, event: Event) -> None:
        self.compute.after(event)

    def await_computed(self, event: Event) -> None:
        self.copying.after(event)

    def await_unused(self, event: Event) -> None:
        self.finding.after(event)

    def await_found(self, event: Event) -> None:
        self.copying.after(event)

    def await_sent(self, event: Event) -> None:
        event.wait()

    def await_brought(self, event: Event) -> None:
        event.wait()

    def await_copies(self, event: Event) -> None:
        event.wait()


def inline(device: torch.device) -> Streams:
    """Return streams that do everything at once."""
    now = _Now(device)
    pinned = partial(torch.empty, dtype=torch.uint8)
    return Streams(device, now, now, pinned, lambda: None, lambda: now)


class _Now:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def run(self, work: Callable[[], object]) -> None:
        work()

    def copy(self, to: Tensor, source: Tensor) -> None:
        to.copy_(source)

    def empty(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def record(self) -> Event:
        return _Past()

    def after(self, event: Event) -> None:
        pass


class _Past:
    def wait(self) -> None:
        pass
