"""`Mover`: the order of copying and training on a device. The only file that knows which stream waits for which.

Work on a device is asked for now and done later. Streams, each of which does its work in the order it was asked:

    copying stream   asked by the look-ahead thread: plans and rows to the device, rows back to the host
    compute stream   asked by the training thread: forward, backward, update. On CUDA it is whatever stream is
                     current in the training loop when a batch is asked for; a batch is trained on one stream.
    finding stream   asked by the look-ahead thread or a helper, where the device finds what batches look up

What one stream needs of another, or the host of any, is waited for by exactly one of the methods `await_*`:

    await_trained    rows leave for batch n, then its plan and rows come, when batch n - depth - 1 has been trained: it
                     may change the former and use what the latter overwrite
    await_moved      batch n starts when its rows and its plan have come
    await_computed   a flush copies rows as all work asked for so far leaves them
    await_unused     lookups are found in memory that no batch in training reads
    await_sent       the host writes into a pinned buffer again when its last contents have been sent
    await_brought    the host reads a pinned buffer when numbers or rows have come
    await_copies     the host touches rows of the tiers itself when every copy asked for is done

Rows that come for batch n find their slots free, and rows that left just now back on the host, by the copying stream's
own order.

Those from `await_trained` to `await_unused` take no time of the host. The training thread waits in `await_brought` if a
batch updates rows on the host, and in `await_sent` if the device is several batches behind;
`tests/embeddings/tiers/test_mover.py` delays and reorders the streams at random, and drops each wait in turn to see it
missed.

Whatever crosses between the streams lies in memory that is owned for the whole run (slots, plan buffers, staging
blocks), so no allocator can hand it out while the other stream still uses it. The same code runs without streams
(`inline`: everything is done when it is asked for) and on simulated ones.
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
        """Block this thread until the stream has come to it."""


class Stream(Protocol):
    """A queue of work for a device, done in the order it is asked for."""

    def run(self, work: Callable[[], None]) -> None:
        """Do torch operations or kernels. They write to memory that exists; results are read from there."""

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Copy between device and pinned memory; neither may be touched from outside until it is done."""

    def empty(self, shape: Shape, dtype: torch.dtype = torch.float32) -> Tensor:
        """Device memory for work on this stream."""

    def record(self) -> Event:
        """The point behind all work asked for so far."""

    def after(self, event: Event) -> None:
        """Work asked for from now on starts behind `event`."""


@dataclass(frozen=True)
class Streams:
    """A device's streams and the host memory it copies from."""

    device: torch.device
    copying: Stream
    compute: Stream
    pinned: Callable[[int], Tensor]  # (num_bytes,) uint8 on the host, for copies that do not wait
    settle: Callable[[], None]  # wait until all work of every stream is done, also of such as are not known here
    another: Callable[[], Stream]  # a new one, for work that need not wait for these


class Mover:
    """Keeps copying and training on a device in order: one method for each wait of one stream for another.

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
        """Make the device current in the calling thread: else CUDA would open a context on device 0 for it."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    # --- the order of batches --------------------------------------------------------------------------------

    def begin(self, trained: int) -> None:
        """A look-ahead starts: no batch is in flight. Moves come behind everything asked for so far."""
        self._waited_for = trained
        self._trained = {trained: self.compute.record()}
        self._moved = {}
        self._buffers = []

    def start_moves(self, number: int, after: int) -> int:
        """From the look-ahead thread: copies asked for from now on are for batch `number`, and `after` must be trained
        before. Returns the number of a plan buffer that is free then; there are depth + 1."""
        after = self._waited_for = max(after, self._waited_for)  # an earlier batch may have asked for more
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
        """From the look-ahead thread: what is asked of the finding stream from now on comes behind the training of all
        batches up to the one whose number is returned."""
        self.await_unused(self._trained[self._waited_for])
        return self._waited_for

    def end_moves(self, number: int) -> None:
        """All that batch `number` needs has been asked of the copying stream."""
        self._moved[number] = self.copying.record()

    def start_training(self, number: int) -> None:
        """From the training thread: what is asked of the compute stream from now on is batch `number`."""
        self.await_moved(self._moved.pop(number))

    def end_training(self, number: int) -> None:
        """The training thread asks for no more work of batch `number`."""
        self._trained[number] = self.compute.record()

    def rest(self, trained: int) -> None:
        """From the look-ahead thread: copies asked for from now on see rows as batch `trained` leaves them."""
        self.await_trained(self._trained[trained])

    def catch_up(self) -> None:
        """Rows written back from now on are so as all work so far leaves them."""
        self.await_computed(self.compute.record())

    def finish_copies(self) -> None:
        """Wait until every copy is done."""
        self.await_copies(self.copying.record())

    def settle(self) -> None:
        """Wait for all work so far, whatever stream it was asked of.

        Slots, snapshots and constants are made where tiers are built or resized, on the stream that is current there; a
        loop may train on another one, behind which `begin` orders the first moves.
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

    def await_sent(self, event: Event) -> None:
        event.wait()

    def await_brought(self, event: Event) -> None:
        event.wait()

    def await_copies(self, event: Event) -> None:
        event.wait()


def inline(device: torch.device) -> Streams:
    """No streams: everything is done when it is asked for."""
    now = _Now(device)
    pinned = partial(torch.empty, dtype=torch.uint8)
    return Streams(device, now, now, pinned, lambda: None, lambda: now)


class _Now:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def run(self, work: Callable[[], None]) -> None:
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
