"""`NumberedBatches`: numbers training batches on their way to the look-ahead, so that a guard can read them too.

The look-ahead thread takes batches, the training thread asks about them and does not wait while one is being read.
The source alone decides which batches are handed out, and in which order.
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
from adaptive.training.guard.account import LoopRecorder, SkipCounts, left_out


class Inputs(NamedTuple):
    """Samples that came to the policy, and those of them that it did not drop."""

    seen: int
    kept: int


class NumberedBatches(Iterator[Batch]):
    """The batches of one pass over the data, numbered, and kept for the guard until it has no use for them.

    Attributes:
        first: number of the first batch; numbers go on from pass to pass.
        taken: number of the batch that will be handed out next.
    """

    def __init__(self, batches: Iterator[Batch], policy: Policy, first: int = 0) -> None:
        self.first = self.taken = first
        self._source, self._policy = batches, policy
        self._before = _inputs(policy)
        self._oldest = first  # number of the first batch that is remembered
        self._batches: deque[Batch] = deque()
        self._inputs: deque[Inputs] = deque()  # in this pass, after each batch from the oldest on; lacks the latest
        self._forgotten = Inputs(0, 0)  # up to the oldest
        self._num_read = 0
        self._ended = False
        self._error: Exception | None = None
        self._switch: tuple[int, float] | None = None
        self._lock = threading.Lock()  # for the books
        self._reading = threading.Lock()  # for the source

    def __next__(self) -> Batch:
        """For the look-ahead: the next batch. The policy has seen all before it."""
        with self._lock:
            if len(self._inputs) < self.taken - self._oldest:
                self._inputs.append(self._latest())
        batch = self._find(self.taken)
        if batch is None:
            raise self._error or StopIteration
        with self._lock:
            if self._switch is not None and self.taken >= self._switch[0]:
                assert self._policy.rule is not None
                self._policy.rule.allowance, self._switch = self._switch[1], None
            self.taken += 1
        return batch

    def switch(self, number: int, allowance: float) -> int:
        """Set the skip rule's allowance from batch `number` on, or from the next one not taken yet; returns which."""
        with self._lock:
            number = max(number, self.taken)
            self._switch = number, allowance
            return number

    # --- for the training thread -----------------------------------------------------------------------------

    def get(self, number: int) -> Batch | None:
        """Batch `number`, read ahead if need be; None after the last one. An error of the source is kept for the
        look-ahead, which raises it when the batch's turn comes."""
        return self._find(number)

    def labels(self, number: int) -> NDArray[np.float32]:
        """Labels (B,) of batch `number`, which has been taken."""
        batch = self._find(number)
        assert batch is not None, number
        return batch.labels

    def coming(self, number: int, num_samples: int) -> list[Batch]:
        """Batches from `number` on that hold so many samples, or as many as there are."""
        batches: list[Batch] = []
        while num_samples > 0 and (batch := self.get(number + len(batches))) is not None:
            batches.append(batch)
            num_samples -= batch.num_samples
        return batches

    def place(self, trained: int) -> int:
        """Number of the first batch not needed for the first `trained` samples of this pass.

        If the policy drops inputs, part of the batch before it may still wait to be trained.
        """
        with self._lock:
            if self._forgotten.kept >= trained:
                return self._oldest
            for number, inputs in enumerate(self._inputs, self._oldest + 1):
                if inputs.kept >= trained:
                    return number
            return self.taken

    def inputs(self, number: int) -> Inputs:
        """Counts of inputs in the batches before `number`, a result of `place`."""
        with self._lock:
            at = number - self._oldest - 1
            if at < 0:
                return self._forgotten
            # The latest has not been counted; as it was needed, the policy is done with it.
            return self._inputs[at] if at < len(self._inputs) else self._latest()

    def forget(self, number: int) -> None:
        """Batches before `number` will not be asked for any more."""
        with self._lock:
            while self._oldest < min(number, self.taken - 1):
                self._batches.popleft()
                self._forgotten = self._inputs.popleft()
                self._oldest += 1

    def _find(self, number: int) -> Batch | None:
        while True:
            with self._lock:
                at = number - self._oldest
                assert at >= 0, (number, self._oldest)
                if at < len(self._batches) or self._ended:
                    return self._batches[at] if at < len(self._batches) else None
                num_seen = self._num_read
            with self._reading:
                if num_seen == self._num_read and not self._ended:  # else the other thread has read on
                    self._read()

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
        """Counts of inputs up to the latest batch handed out. The caller holds the lock."""
        if drops_inputs(self._policy):
            now = _inputs(self._policy)
            return Inputs(now.seen - self._before.seen, now.kept - self._before.kept)
        last = self._inputs[-1] if self._inputs else self._forgotten
        samples = last.seen + self._batches[self.taken - 1 - self._oldest].num_samples
        return Inputs(samples, samples)


def _inputs(policy: Policy) -> Inputs:
    seen, dropped = inputs_of(policy)
    return Inputs(seen, seen - dropped)


class Passes:
    """The passes of a run over the data, one after the other; batches are numbered through all of them."""

    def __init__(self, embeddings: TieredEmbeddingBag, recorder: LoopRecorder) -> None:
        self.stream: NumberedBatches | None = None
        self._embeddings, self._recorder = embeddings, recorder
        self._earlier = Inputs(0, 0)  # of the passes that are over
        self._samples = 0  # trained in them

    def begin(self, batches: Iterator[Batch], place: int) -> NumberedBatches:
        """Begin a pass at batch `place`."""
        self._samples = self._recorder.samples
        self.stream = NumberedBatches(batches, self._embeddings.policy, place)
        return self.stream

    def end(self) -> None:
        """End the pass, if there is one; no look-ahead is running."""
        if self.stream is not None:
            inputs = self.stream.inputs(self.stream.taken)
            self._earlier = Inputs(self._earlier.seen + inputs.seen, self._earlier.kept + inputs.kept)
            self.stream = None

    def place(self) -> int:
        """Number of the first batch that has not been needed yet."""
        assert self.stream is not None
        return self.stream.place(self._recorder.samples - self._samples)

    def ends_within(self, place: int, num_samples: int, left: int | None) -> bool:
        """Whether this pass has fewer than `num_samples` samples from batch `place` on and another one follows, with
        `left` batches left of the run. False at a pass's beginning: waiting for the next one would gain nothing."""
        assert self.stream is not None
        if left is None or place <= self.stream.first + 1:
            return False
        ahead = self.stream.coming(place, num_samples)
        return sum(batch.num_samples for batch in ahead) < num_samples and left > len(ahead)

    def left_out(self, place: int) -> SkipCounts:
        """What was left out of the batches before `place`, which is what `place()` gives now."""
        seen, kept = self._earlier
        if self.stream is not None:
            inputs = self.stream.inputs(place)
            seen, kept = seen + inputs.seen, kept + inputs.kept
        return left_out(self._embeddings, seen, kept)
