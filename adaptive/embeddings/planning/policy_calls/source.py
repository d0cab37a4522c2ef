"""`PolicySource`: the batches that a policy arranges. Their errors, and the time to read them, are not the policy's."""

from collections.abc import Iterator
from contextlib import nullcontext

from adaptive.batch import Batch, as_batch
from adaptive.embeddings.planning.policy_calls.thread import PolicyThread


class PolicySource(Iterator[Batch]):
    """Batches on their way to the policy.

    Attributes:
        error: what reading them raised.
        num_samples: handed out so far.
        closed: no more are handed out: a method that was given up reads no more.
    """

    def __init__(self, batches: Iterator[Batch], thread: PolicyThread | None) -> None:
        self.error: Exception | None = None
        self.num_samples = 0
        self.closed = False
        self._batches = batches
        self._thread = thread

    def __next__(self) -> Batch:
        if self.closed:
            raise StopIteration
        try:
            with nullcontext() if self._thread is None else self._thread.elsewhere():
                batch = as_batch(next(self._batches))
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        self.num_samples += batch.num_samples
        return batch
