"""`NumberedBatches`: batches on the way to the look-ahead, which a guard reads too.

The look-ahead thread takes batches. The training thread looks at them and does not wait while one is read. The source
alone decides which batches come, and in which order.
"""

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.policy import Policy, drops_inputs, inputs_of
from adaptive.training.guard.account import LoopRecorder, SkipCounts, skip_counts


class Inputs(NamedTuple):
    """Numbers of samples that the policy received, and that it did not drop."""

    seen: int
    trained: int


class NumberedBatches(Iterator[Batch]):
    """The numbered batches of a pass, stored until the guard calls `forget`.

    Attributes:
        first: number of the first batch; numbers continue from pass to pass.
        taken: number of the next batch for the look-ahead.
    """

    def __init__(self, batches: Iterator[Batch], policy: Policy, first: int = 0) -> None:
        self.first = self.taken = first
        self._source, self._policy = batches, policy
        self._inputs_at_start = _inputs(policy)
        self._oldest = first  # number of the first stored batch
        self._batches: deque[Batch] = deque()
        self._inputs: deque[Inputs] = deque()  # of this pass, after each batch from the oldest to the second latest
        self._forgotten = Inputs(0, 0)  # up to the oldest
        self._num_read = 0
        self._ended = False
        self._error: Exception | None = None
        self._switch: tuple[int, float] | None = None
        self._lock = threading.Lock()  # guards all counts and queues
        self._reading = threading.Lock()  # serializes reads of the source

    def __next__(self) -> Batch:
        """Return the next batch to the look-ahead thread."""
        with self._lock:
            if len(self._inputs) < self.taken - self._oldest:
                self._inputs.append(self._latest())
        batch = self.get(self.taken)
        if batch is None:
            raise self._error or StopIteration
        with self._lock:
            if self._switch is not None and self.taken >= self._switch[0]:
                assert self._policy.rule is not None
                self._policy.rule.allowance, self._switch = self._switch[1], None
            self.taken += 1
        return batch

    def switch(self, number: int, allowance: float) -> int:
        """Set the allowance from the first untaken batch >= `number` on; return its number."""
        with self._lock:
            number = max(number, self.taken)
            self._switch = number, allowance
            return number

    # --- for the training thread -----------------------------------------------------------------------------

    def get(self, number: int) -> Batch | None:
        """Return batch `number`, reading it if necessary; None after the last one.

        An error of the source is stored; the look-ahead raises it when it takes this batch.
        """
        while True:
            with self._lock:
                at = number - self._oldest
                assert at >= 0, (number, self._oldest)
                if at < len(self._batches) or self._ended:
                    return self._batches[at] if at < len(self._batches) else None
                num_seen = self._num_read
            with self._reading:
                if num_seen == self._num_read and not self._ended:  # else the other thread has read a batch
                    self._read()

    def labels(self, number: int) -> NDArray[np.float32]:
        """Labels (B,) of batch `number`, which the look-ahead has taken."""
        batch = self.get(number)
        assert batch is not None, number
        return batch.labels

    def coming(self, number: int, num_samples: int) -> list[Batch]:
        """Return batches from `number` on that hold `num_samples`, or all that remain."""
        batches: list[Batch] = []
        while num_samples > 0 and (batch := self.get(number + len(batches))) is not None:
            batches.append(batch)
            num_samples -= batch.num_samples
        return batches

    def place(self, trained: int) -> int:
        """Return the number of the batch after the first `trained` samples of this pass.

        If the policy drops inputs, part of the batch before it may be untrained.
        """
        with self._lock:
            if self._forgotten.trained >= trained:
                return self._oldest
            for number, inputs in enumerate(self._inputs, self._oldest + 1):
                if inputs.trained >= trained:
                    return number
            return self.taken

    def inputs(self, number: int) -> Inputs:
        """Counts of inputs in the batches before `number`, a result of `place`."""
        with self._lock:
            at = number - self._oldest - 1
            if at < 0:
                return self._forgotten
            # The latest batch is not counted yet; it was trained, so the policy has processed it.
            return self._inputs[at] if at < len(self._inputs) else self._latest()

    def forget(self, number: int) -> None:
        """Drop the batches before `number`."""
        with self._lock:
            while self._oldest < min(number, self.taken - 1):
                self._batches.popleft()
                self._forgotten = self._inputs.popleft()
                self._oldest += 1

    def _read(self) -> None:
        try:
            batch = next(self._source)
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._error, self._ended = error, True
        else:
            with self._lock:
                self._batches.append(batch)
                self._num_read += 1

    def _latest(self) -> Inputs:
        """Counts of inputs up to the latest taken batch. The caller holds the lock."""
        if drops_inputs(self._policy):
            now = _inputs(self._policy)
            start = self._inputs_at_start
            return Inputs(now.seen - start.seen, now.trained - start.trained)
        last = self._inputs[-1] if self._inputs else self._forgotten
        samples = last.seen + self._batches[self.taken - 1 - self._oldest].num_samples
        return Inputs(samples, samples)


def _inputs(policy: Policy) -> Inputs:
    seen, dropped = inputs_of(policy)
    return Inputs(seen, seen - dropped)


class Passes:
    """The passes of a run over the data; batches are numbered through all of them."""

    def __init__(self, embeddings: TieredEmbeddingBag, recorder: LoopRecorder) -> None:
        self.stream: NumberedBatches | None = None
        self._embeddings, self._recorder = embeddings, recorder
        self._earlier = Inputs(0, 0)  # of finished passes
        self._samples = 0  # trained in finished passes

    def begin(self, batches: Iterator[Batch], place: int) -> NumberedBatches:
        """Begin a pass at batch `place`."""
        self._samples = self._recorder.samples
        self.stream = NumberedBatches(batches, self._embeddings.policy, place)
        return self.stream

    def end(self) -> None:
        """End the current pass, if there is one. No look-ahead may be running."""
        if self.stream is not None:
            inputs = self.stream.inputs(self.stream.taken)
            self._earlier = Inputs(self._earlier.seen + inputs.seen, self._earlier.trained + inputs.trained)
            self.stream = None

    def place(self) -> int:
        """Number of the first batch that is not trained yet."""
        assert self.stream is not None
        return self.stream.place(self._recorder.samples - self._samples)

    def ends_within(self, place: int, num_samples: int, left: int | None) -> bool:
        """True if this pass has fewer samples from `place` on, and another pass follows.

        `left`: remaining batches of the run. False at the start of a pass, where waiting for the next would not help.
        """
        assert self.stream is not None
        if left is None or place <= self.stream.first + 1:
            return False
        ahead = self.stream.coming(place, num_samples)
        return sum(batch.num_samples for batch in ahead) < num_samples and left > len(ahead)

    def skip_counts(self, place: int) -> SkipCounts:
        """Counts of skipped work in the batches before `place`, the current result of `place()`."""
        seen, trained = self._earlier
        if self.stream is not None:
            inputs = self.stream.inputs(place)
            seen, trained = seen + inputs.seen, trained + inputs.trained
        return skip_counts(self._embeddings, seen, trained)
