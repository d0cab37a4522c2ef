"""`look_ahead`: plans and fetches batches up to `depth` ahead of training, in order.

    look-ahead thread                                   training thread
    read       batch k + depth, arranged by the policy
    plan       distinct rows, slots, lookups by row     wait       for batch k's rows
    write back evicted rows, device -> host             ...        forward, backward, update
    fetch      missing rows, host -> device             next batch: batch k counts as trained

A batch may be run in parts. If its first part needs no row that is fetched for the batch, the batch is handed over
before its rows move: training starts with that part, and waits for the rest (`ReadyBatch.arrived`) before the next one.

The thread boundary is one queue and one number, `trained`. Batch n is planned, and its rows move, only when batch
n - depth - 1 has been trained. Holds are counted in batches and never tied to backward passes, so a forward pass
without backward leaks nothing. With depth 0 there is no thread: the same steps run in the training thread, nothing
overlaps, and a batch is yielded when all its rows are in place.

Where training takes all of a CPU's few cores, the thread only reads, up to `depth` batches ahead, and the training
thread drops inputs and plans each batch right before it is trained (`Pipeline.plans_in_turn`). Held rows and the age of
feedback are as if it had been planned `depth` batches ahead, so plans are equal.
"""

import inspect
import logging
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from adaptive.batch import Batch
from adaptive.embeddings.engine.between_batches import describe_shortage, drop_hot_rows, give_rows
from adaptive.embeddings.engine.pipeline import Pipeline, QueuedBatch, ReadyBatch
from adaptive.embeddings.planning.lookups import Lookups
from adaptive.errors import AdaptiveError, DeviceMemoryError
from adaptive.kernels.planning.lookups import Distinct
from adaptive.policy import arranges
from adaptive.system import Uninterrupted, start_thread

logger = logging.getLogger("adaptive.embeddings.engine")

T = TypeVar("T")
LookedUp = tuple[Batch, Callable[[], list[Lookups]]]
"""A batch, and a function that waits for its lookups in each group; with keys, until `give_rows`."""

Arrange = Callable[[Iterator[Batch]], Iterator[Batch]]
"""What the policy makes of the batches that are read."""

JOIN_SECONDS = 60.0  # that the data source has to return when the look-ahead ends
CHECK_SECONDS = 1.0  # after which training looks whether the thread that it waits for still lives

_END: Final[Any] = object()  # the last entry of a queue


class LookAheadPass:
    """A look-ahead from its first batch to its end, of which an exception at any line leaves a state that can be ended.

    The pipeline knows the pass until `end` has run to its last line. If an exception has ended it earlier, the next
    look-ahead, or `TieredEmbeddingBag.end_look_ahead`, ends it first.

    Attributes:
        owner: the iterator of the loop.
        failed: the error with which the loop ended.
    """

    def __init__(self, pipeline: Pipeline, depth: int) -> None:
        self._pipeline, self._depth = pipeline, depth
        self._worker: _Reading | _Planning | None = None
        self.owner: Callable[[], Generator[object, None, None] | None] = lambda: None
        self.failed: BaseException | None = None

    @property
    def is_abandoned(self) -> bool:
        owner = self.owner()
        return owner is None or inspect.getgeneratorstate(owner) == inspect.GEN_CLOSED

    def ready_batches(self, batches: Iterator[Batch], arrange: Arrange) -> Generator[ReadyBatch, None, None]:
        """Yield each batch when it may be trained. Call it once."""
        pipeline = self._pipeline
        pipeline.begin(self._depth, self)
        try:
            for ready in self._start(batches, arrange):
                pipeline.start_training(ready)
                yield ready
                pipeline.end_training(ready)
        except BaseException as error:
            self.failed = error
            raise
        finally:
            try:
                self.end()
            finally:
                self.failed = None  # its traceback would keep the source of the batches alive

    def _start(self, batches: Iterator[Batch], arrange: Arrange) -> Iterator[ReadyBatch]:
        """Start the threads of the look-ahead, if it has any; return the batches that become ready."""
        pipeline, depth = self._pipeline, self._depth
        if not depth:
            return _plan_and_move(pipeline, arrange(batches), depth, lambda number: None)
        pipeline.lookups_ahead.start_helpers()
        if pipeline.plans_in_turn:
            # Known before it starts, so that `end` finds it wherever an exception comes.
            reading = self._worker = _Reading(pipeline, batches, depth)
            reading.start()
            # Arranged here: a thread that predicts, too, would take a core for which torch's threads then wait.
            return _plan_and_move(pipeline, arrange(reading.items()), depth, lambda number: None)
        planning = self._worker = _Planning(pipeline, arrange(batches), depth)
        planning.start()
        return planning.ready()

    def end(self) -> None:
        """End the look-ahead and join its threads; may be called again if an exception has ended this method."""
        pipeline, worker = self._pipeline, self._worker
        if pipeline.current is not self or pipeline.lock.is_forked:  # in a child, threads and rows belong to the parent
            return
        if worker is not None and worker.is_current_thread:  # garbage-collected in the look-ahead's own thread
            worker.stop_later(self._end_joined)
            return
        pipeline.lock.release_leaked()
        if worker is not None:
            worker.stop()
        self._end_joined()

    def close(self) -> None:
        """Close the iterator, which ends the look-ahead."""
        if (owner := self.owner()) is not None:
            owner.close()
        self.end()

    def _end_joined(self) -> None:
        """End the look-ahead when its thread makes no more batches."""
        pipeline = self._pipeline
        if pipeline.current is not self:
            return
        pipeline.lookups_ahead.end_helpers()
        failed = self.failed
        dropped = pipeline.next_number - 1 - pipeline.trained
        if dropped > 0 and isinstance(failed, GeneratorExit) and pipeline.has_keys:
            warnings.warn(
                f"the look-ahead was closed with {dropped} planned batches that are not trained, whose lookups have "
                "given keys rows. Limit the batches instead (itertools.islice), so that this does not depend on the "
                "depth.",
                stacklevel=2,
            )
        try:
            pipeline.end()
        except Exception as error:  # after a device fault every wait fails, too: only the first error tells why
            if failed is None or isinstance(failed, GeneratorExit):
                raise
            logger.warning("ending the look-ahead failed after another error: %s: %s", type(error).__name__, error)


def _plan_and_move(
    pipeline: Pipeline,
    batches: Iterator[Batch],
    depth: int,
    wait_until_trained: Callable[[int], None],
    start_early: Callable[[ReadyBatch], None] | None = None,
) -> Iterator[ReadyBatch]:
    """Plan batches, move their rows, and yield each.

    `start_early` receives a batch whose first part may be trained while rows for the others are in flight; such a
    batch is not yielded.
    """
    for queued in _windowed(pipeline, _look_up(pipeline, batches)):
        number = pipeline.next_number
        wait_until_trained(number - depth - 1)
        if pipeline.ending:  # before `learn`, which must run once for each batch that is planned
            return
        pipeline.learn()
        _make_room_in_hot_sets(pipeline, wait_until_trained)
        queued = give_rows(pipeline, queued, depth, wait_until_trained)
        ready, has_started = _plan_one(pipeline, queued, depth, wait_until_trained, start_early)
        if not has_started:
            yield ready


def _look_up(pipeline: Pipeline, batches: Iterator[Batch]) -> Iterator[LookedUp]:
    """Yield each batch, checked, with its lookups."""
    while True:
        with pipeline.stopwatch.stage("read"):
            batch = next(batches, None)
        if batch is None:
            return
        batch = pipeline.check(batch)
        with pipeline.stopwatch.stage("plan"):
            lookups = pipeline.lookups_ahead.start(batch)
        yield batch, lookups


def _plan_one(
    pipeline: Pipeline,
    queued: QueuedBatch,
    depth: int,
    wait_until_trained: Callable[[int], None],
    start_early: Callable[[ReadyBatch], None] | None,
) -> tuple[ReadyBatch, bool]:
    """Plan and move a batch; return it, and True if it was passed to `start_early`."""
    number, held = pipeline.next_number, depth  # `held`: earlier batches whose rows keep their slots
    while True:
        try:
            return pipeline.plan_and_move(queued, held, start_early)
        except DeviceMemoryError:
            if pipeline.tier.when_full != "reduce_lookahead" or held == 0:
                if len(pipeline.groups) == 1:  # whose planner has said what is needed
                    raise
                raise describe_shortage(pipeline, queued, held) from None
        held -= 1
        wait_until_trained(number - held - 1)


def _make_room_in_hot_sets(pipeline: Pipeline, wait_until_trained: Callable[[int], None]) -> None:
    """Drop hot rows that are no longer looked up, if a hot set is full.

    The selection follows from lookups and batch numbers alone.
    """
    number = pipeline.next_number
    skippers = [(tiered, tiered.skipper) for tiered in pipeline.tiered_groups]
    leaving = [(tiered, skipper.inactive_entries(number)) for tiered, skipper in skippers if skipper is not None]
    if not any(len(entries) for _, entries in leaving):
        return
    drop_hot_rows(pipeline, leaving, wait_until_trained)


def _windowed(pipeline: Pipeline, batches: Iterator[LookedUp]) -> Iterator[QueuedBatch]:
    """Yield each batch with its lookups and the distinct rows of the policy's window.

    With helper threads, batches are read further ahead than the window. Not if the policy arranges batches: what it
    has learnt must not depend on how far ahead they are read. If the source fails, the batches that it returned before
    are still yielded, so that what is trained by then does not depend on that either.
    """
    policy = pipeline.policy_caller.policy
    window = policy.window
    spare = 0 if arranges(policy) else pipeline.lookups_ahead.num_ahead
    ahead: deque[LookedUp] = deque()
    glances: deque[list[Distinct]] = deque()  # for each batch in the window, the rows of each group

    def found(lookups: Callable[[], list[Lookups]]) -> list[Lookups]:
        with pipeline.stopwatch.stage("find"):  # the part of `plan` that waits for helpers or the device
            return lookups()

    def first() -> QueuedBatch:
        with pipeline.stopwatch.stage("plan"):
            batch, all_lookups = ahead.popleft()
            if glances:
                glances.popleft()
            for _, later in islice(ahead, len(glances), window):
                of_groups = zip(pipeline.tiered_groups, found(later), strict=True)
                glances.append([tiered.glance(of_group) for tiered, of_group in of_groups])
            windows = [[rows[i] for rows in glances] for i in range(len(pipeline.tiered_groups))]
            return QueuedBatch(batch, found(all_lookups), windows)

    failure: Exception | None = None
    while failure is None:
        try:
            ahead.append(next(batches))
        except StopIteration:
            break
        except Exception as error:
            failure = error
        else:
            if len(ahead) > window + spare:
                yield first()
    while ahead:
        yield first()
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # break the cycle with its traceback, which would keep this frame and the source alive


class _Stopped(Exception):  # noqa: N818 (not an error: the training thread requests no more batches)
    pass


class _Worker(Generic[T]):
    """A thread of a look-ahead, and the queue of what it hands to training.

    `_make`, `_wait_until` and `stop_later` run in that thread, all other methods in the training thread.
    The threads share two queues and no lock: an exception at any line of the training thread leaves nothing that the
    other one would wait for.
    """

    def __init__(self, pipeline: Pipeline, batches: Iterator[Batch], depth: int) -> None:
        self._pipeline, self._batches, self._depth = pipeline, batches, depth
        self._queue: SimpleQueue[T] = SimpleQueue()
        self._wake: SimpleQueue[None] = SimpleQueue()  # an entry after each change for which the thread may wait
        self._error: BaseException | None = None
        self._done = False  # True once the thread puts nothing into the queue any more
        self._stopping = False
        self._afterwards: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="adaptive-look-ahead", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        with Uninterrupted():  # an interrupt in `Thread.start` would leave a thread that cannot be joined
            start_thread(self._thread)

    def _make(self) -> Iterator[T]:
        """Yield what training gets."""
        raise NotImplementedError

    def items(self) -> Iterator[T]:
        """Yield what the thread makes, then raise its error, if any."""
        while True:
            self._pipeline.lock.release_leaked()  # an interrupted evaluation may have left the lock to this thread
            try:
                item = self._queue.get(timeout=CHECK_SECONDS)
            except Empty:
                has_ended = self._done or not self._thread.is_alive()
                if has_ended and self._queue.empty():  # in this order: it may have put its last ones meanwhile
                    break
                continue
            if self._queue.qsize() == self._depth // 2:  # each time the thread wakes, it takes a core from training
                self.wake()
            if item is _END:
                break
            yield item
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        """Let the thread see that something has changed."""
        self._wake.put(None)

    @property
    def is_current_thread(self) -> bool:
        """True if the caller runs in the look-ahead's thread."""
        return threading.current_thread() is self._thread

    def stop_later(self, afterwards: Callable[[], None]) -> None:
        """End the thread at its next batch, then call `afterwards`.

        For the thread itself, which cannot join itself and may hold the pipeline's lock.
        """
        self._stopping, self._afterwards = True, afterwards

    def stop(self) -> None:
        """End the thread and join it."""
        self._stopping = True
        self.wake()
        if self._thread.ident is None:  # never started
            return
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            raise AdaptiveError(
                f"look-ahead thread: expected it to end within {JOIN_SECONDS:.0f} s, got no response. The data source "
                "or the policy's arrange() does not return: fix it, and kill this process if it does not exit."
            )

    def _run(self) -> None:
        try:
            for item in self._make():
                if self._stopping:
                    return
                self._queue.put(item)
        except _Stopped:
            pass
        except BaseException as error:  # `items` raises it in the training thread
            self._error = error
        finally:
            self._done = True
            self._queue.put(_END)
            if self._afterwards is not None:
                self._afterwards()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not self._wake.empty():  # entries of changes that the condition sees anyway
            self._wake.get_nowait()
        while not (self._stopping or condition()):
            self._wake.get()
        if self._stopping:
            raise _Stopped


class _Reading(_Worker[Batch]):
    """Reads batches while others are trained; the training thread plans them."""

    def _make(self) -> Iterator[Batch]:
        for batch in self._batches:
            if self._queue.qsize() >= self._depth:
                self._wait_until(lambda: self._queue.qsize() <= self._depth // 2)
            yield batch


class _Planning(_Worker[ReadyBatch]):
    """The look-ahead thread: reads batches, plans them and moves their rows."""

    def ready(self) -> Iterator[ReadyBatch]:
        """Yield batches as they become ready, then raise the thread's error, if any.

        When a batch is requested, the one before is trained, for which the thread may wait.
        """
        items = self.items()
        while True:
            with self._pipeline.stopwatch.stage("wait"):
                ready = next(items, None)
            if ready is None:
                return
            yield ready
            self.wake()

    def _make(self) -> Iterator[ReadyBatch]:
        self._pipeline.mover.enter_thread()
        return _plan_and_move(self._pipeline, self._batches, self._depth, self._wait_until_trained, self._queue.put)

    def _wait_until_trained(self, number: int) -> None:
        self._wait_until(lambda: self._pipeline.trained >= number)
