"""`look_ahead`: batches planned and fetched up to `depth` ahead of training, in order, each exactly once.

    look-ahead thread                                   training thread
    read       batch k + depth, arranged by the policy
    plan       distinct rows, slots, look-ups by row    wait       for batch k's rows
    write back rows that leave, device -> host          ...        forward, backward, update
    fetch      rows that come, host -> device           next batch: batch k counts as trained

If the first part of a batch in parts needs no row that is fetched for it, the batch is handed over before its rows
move: training starts with that part, and waits for the rest (`ReadyBatch.arrived`) before the next one.

The thread boundary is one queue and one number, `trained`. Batch n is planned, and its rows move, only when batch
n - depth - 1 has been trained; holds are counted in batches, never tied to backward passes, so a forward without
backward leaks nothing. With depth 0 there is no thread, the same steps run in the training thread, and nothing
overlaps: a batch comes when all its rows are there, in parts or not.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from itertools import islice

from adaptive.batch import Batch
from adaptive.embeddings.engine.pipeline import Pipeline, QueuedBatch, ReadyBatch
from adaptive.embeddings.engine.resizing import find_slots, rebalance_slots, too_few
from adaptive.embeddings.exchange.exchange import LookedUp
from adaptive.errors import AdaptiveError, DeviceMemoryError
from adaptive.policy import arranges
from adaptive.system import count_as_thread, start_thread

logger = logging.getLogger("adaptive.embeddings.engine")

MANY_LOOKUPS = 1 << 18  # of a batch: planning takes milliseconds, and must not wait for threads that only spin
JOIN_SECONDS = 60.0  # a source that does not return within this time is reported instead of waited for


def look_ahead(pipeline: Pipeline, batches: Iterator[Batch], depth: int) -> Generator[ReadyBatch, None, None]:
    """Yield each batch when it may be trained. Asking for the next one means that the last one is trained."""
    pipeline.begin(depth)
    with pipeline.lookups_ahead.working() if depth else nullcontext():
        worker = _Worker(pipeline, batches, depth) if depth else None
        source = worker.ready() if worker else _plan_and_move(pipeline, batches, 0, lambda number: None)
        try:
            for ready in source:
                pipeline.start_training(ready)
                yield ready
                pipeline.end_training(ready)
                if worker:
                    worker.wake()
        finally:
            if worker and worker.is_here:  # abandoned, and collected as garbage by chance in its own thread
                worker.stop_later(lambda: _end(pipeline, GeneratorExit()))
            elif not pipeline.is_forked:  # in a forked child the thread, and the rows, are the parent's
                if worker:
                    worker.stop()
                _end(pipeline, sys.exception())  # in no variable of this frame: the error would keep the source alive


def _end(pipeline: Pipeline, failed: BaseException | None) -> None:
    """End the look-ahead. Where it ends because something `failed`, that is what is raised: after a fault of the device
    nothing that waits for the device works any more, and only the first error says why."""
    try:
        pipeline.end()
    except Exception as error:
        if failed is None or isinstance(failed, GeneratorExit):
            raise
        logger.warning("the look-ahead could not be ended either: %s: %s", type(error).__name__, error)


def _plan_and_move(
    pipeline: Pipeline,
    batches: Iterator[Batch],
    depth: int,
    wait_until_trained: Callable[[int], None],
    start_early: Callable[[ReadyBatch], None] | None = None,
) -> Iterator[ReadyBatch]:
    """Plan and move batch after batch; yield each when its rows have moved. Other ranks hear of an error, in the place
    of what they next wait for.

    `start_early` is given a batch whose first part may be trained while rows for the others are on their way; such a
    batch is not yielded.
    """
    try:
        looked_up = pipeline.exchange.batches(batches, pipeline.check, pipeline.lookups_ahead, pipeline.stopwatch)
        for queued in _windowed(pipeline, looked_up):
            number = pipeline.next_number
            wait_until_trained(number - depth - 1)
            if pipeline.ending:  # before anything is learnt, which is done once for each batch that is planned
                return
            pipeline.learn()
            _make_room_to_watch(pipeline, wait_until_trained)
            ready, has_started = _plan_one(pipeline, queued, depth, wait_until_trained, start_early)
            pipeline.answer(ready)
            if not has_started:
                yield ready
    except Exception as error:
        if not isinstance(error, _Stopped):
            pipeline.exchange.report_failure(error)
        raise


def _plan_one(
    pipeline: Pipeline,
    queued: QueuedBatch,
    depth: int,
    wait_until_trained: Callable[[int], None],
    start_early: Callable[[ReadyBatch], None] | None,
) -> tuple[ReadyBatch, bool]:
    """Plan and move one batch, with other numbers of slots or a smaller depth if it does not fit. Returns it, and
    whether it was given to `start_early`."""
    number, held = pipeline.next_number, depth
    while True:
        try:
            with pipeline.lock:
                ready = pipeline.plan(queued, held)
                has_started = start_early is not None and ready.may_start
                if start_early is not None and has_started:
                    start_early(ready)
                pipeline.move(ready)
            return ready, has_started
        except DeviceMemoryError:
            slots = find_slots(pipeline, queued, held)
            if slots is None and (pipeline.tier.when_full != "reduce_lookahead" or held == 0):
                if (error := too_few(pipeline, queued, held)) is not None:
                    raise error from None
                raise
        if slots is not None:
            wait_until_trained(number - 1)
            rebalance_slots(pipeline, slots)
            continue
        held -= 1
        wait_until_trained(number - held - 1)


def _make_room_to_watch(pipeline: Pipeline, wait_until_trained: Callable[[int], None]) -> None:
    """Watch rows that no longer come no more where a hot set is full, so that others can be watched.

    Which rows go follows from lookups and batch numbers alone. Nothing they learnt is lost: gradients that wait for
    them are applied. That their sums are at hand, and that entries can be numbered anew, takes that no batch is in
    flight; so training catches up with planning first, at most once in many questions.
    """
    number = pipeline.next_number
    skippers = [(lane, lane.skipper) for lane in pipeline.lanes]
    leaving = [(lane, skipper.no_longer_come(number)) for lane, skipper in skippers if skipper is not None]
    if not any(len(entries) for _, entries in leaving):
        return
    wait_until_trained(number - 1)
    pipeline.feedback.take_in_until(number)  # what was measured names rows by their entries
    with pipeline.lock:
        pipeline.mover.rest(number - 1)
        pipeline.finish_copies()
        for lane, entries in leaving:
            if len(entries):
                lane.evict_watched(entries)
        pipeline.finish_copies()
    pipeline.exchange.forget_cached()


def _windowed(pipeline: Pipeline, batches: Iterator[LookedUp]) -> Iterator[QueuedBatch]:
    """Each batch with its look-ups per group, and the distinct rows of the window's batches after it, nearest first.

    With helper threads, batches are read further ahead than the window. Not if the policy arranges batches: what it
    has learnt must not depend on how far ahead they are read. If the source fails, the batches that it yielded before
    come first, so that what is trained by then does not depend on it either.
    """
    policy = pipeline.policy_caller.policy
    window = policy.window
    spare = 0 if arranges(policy) else pipeline.lookups_ahead.num_ahead
    ahead: deque[LookedUp] = deque()

    def first() -> QueuedBatch:
        with pipeline.stopwatch.stage("plan"):
            batch, all_lookups = ahead.popleft()
            following = [later() for _, later in islice(ahead, window)]
            windows = [[later[i].distinct for later in following] for i in range(len(pipeline.lanes))]
            return QueuedBatch(batch, all_lookups(), windows)

    failure: Exception | None = None
    while failure is None:
        try:
            ahead.append(next(batches))
        except StopIteration:
            break
        except Exception as error:
            if not pipeline.exchange.ranks.is_local:  # others plan nothing more: they wait for this one's lookups
                raise
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
            failure = None  # its traceback has this frame, which would keep it and the source alive


class _Stopped(Exception):  # noqa: N818 (not an error: the training thread wants no more batches)
    pass


class _Worker:
    """The look-ahead thread, and the queue of batches that it hands to training."""

    def __init__(self, pipeline: Pipeline, batches: Iterator[Batch], depth: int) -> None:
        self._pipeline = pipeline
        self._batches = batches
        self._depth = depth
        self._queue: deque[ReadyBatch] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._done = False
        self._stopping = False
        self._counted = False
        self._afterwards: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, name="adaptive-look-ahead", daemon=True)
        start_thread(self._thread)

    def ready(self) -> Iterator[ReadyBatch]:
        """Yield batches as they become ready; then raise the thread's error, if there is one."""
        while True:
            with self._pipeline.stopwatch.stage("wait"), self._changed:
                self._changed.wait_for(lambda: self._queue or self._done)
                if not self._queue:
                    break
                ready = self._queue.popleft()
            yield ready
        if self._error is not None:
            raise self._error

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def is_here(self) -> bool:
        """True if the look-ahead thread is the one that asks."""
        return threading.current_thread() is self._thread

    def stop_later(self, afterwards: Callable[[], None]) -> None:
        """From the thread itself, which cannot wait for itself and may hold the pipeline's lock: end it when it comes
        to its next batch, and then call `afterwards`."""
        self._stopping, self._afterwards = True, afterwards

    def stop(self) -> None:
        """End the thread and wait for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            raise AdaptiveError(
                f"the look-ahead thread did not end within {JOIN_SECONDS:.0f} s: the data source or the policy's "
                f"arrange() does not return. Check the source; the process may need to be killed."
            )

    def _run(self) -> None:
        try:
            self._pipeline.mover.enter_thread()
            ready_batches = _plan_and_move(
                self._pipeline, self._batches, self._depth, self._wait_until_trained, self._hand_over
            )
            for ready in ready_batches:
                if self._stopping:
                    return
                self._hand_over(ready)
        except _Stopped:
            pass
        except BaseException as error:  # handed to the training thread, which raises it
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()
            if self._afterwards is not None:
                self._afterwards()

    def _hand_over(self, ready: ReadyBatch) -> None:
        if not self._counted and len(ready.batch.ids) >= MANY_LOOKUPS:
            count_as_thread()
            self._counted = True
        with self._changed:
            self._queue.append(ready)
            self._changed.notify_all()

    def _wait_until_trained(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._pipeline.trained >= number)
            if self._stopping:
                raise _Stopped
