"""`Fork`: a copy of a run that skips nothing, in memory.

Its rows lie on the host, whatever the run's tiers are: placement does not change the numbers, and the device keeps its
memory. Gradients that wait in the run are applied to the fork's rows.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.policy import Policy, RowStats
from adaptive.training.evaluation import evaluating
from adaptive.training.guard.account import SkipCounts
from adaptive.training.guard.adapters import Trained, concatenated
from adaptive.training.guard.judge import Evidence, compare
from adaptive.training.guard.stream import NumberedBatches


class Fork:
    """A copy of a run that skips nothing. Made between two steps of the run, and trained in the same thread.

    Attributes:
        trained: what is trained.
        num_bytes: memory of its rows, their state and the dense weights.
    """

    def __init__(self, run: Trained, start: int) -> None:
        """`start`: the step that comes next, from which dropout follows."""
        arrays = run.embeddings.state_arrays()
        self.trained = run.copied(_OnHost(), arrays)
        self._step = start
        self.num_bytes = self.trained.num_bytes + sum(array.nbytes for array in arrays.values())

    def train(self, batch: Batch) -> None:
        """One step, nothing left out.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite.
        """
        with _own_random_numbers():
            self.trained.train(batch, self._step)
        self._step += 1

    def overwrite(self, run: Trained) -> None:
        """Give the run the fork's values; the fork can go on."""
        run.take_over(self.trained)

    def close(self) -> None:
        self.trained.embeddings.close()


def predict(trained: Trained, batches: Sequence[Batch]) -> NDArray[np.float32]:
    """(n,) logits of all samples, of several labels the first one's; nothing is moved, counted or trained."""
    with _own_random_numbers(), torch.no_grad(), ExitStack() as stack:
        for module in trained.modules:
            stack.enter_context(evaluating(module))
        return concatenated([trained.logits(trained.embeddings.read(batch)) for batch in batches])


def _own_random_numbers() -> AbstractContextManager[None]:
    """Inside, random numbers are the fork's: the run draws the numbers that it would draw without it."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


class _OnHost(Policy):
    misses = "host"
    device_rows = "0"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))


class Pair:
    """A run and its fork, trained on the same batches and then compared. To be closed.

    Attributes:
        start: batch at which both were equal.
        left_out: what the run had left out until then.
        trained, judged: batches that the fork has trained, and that both have predicted.
    """

    def __init__(self, run: Trained, start: int, left_out: SkipCounts) -> None:
        self.start, self.left_out = start, left_out
        self.trained = self.judged = 0
        self._run, self._fork = run, Fork(run, start)
        self._place = start

    @property
    def num_bytes(self) -> int:
        """Memory of the fork."""
        return self._fork.num_bytes

    def train_until(self, place: int, stream: NumberedBatches) -> None:
        """Train the fork on all batches before `place`.

        Raises:
            NonFiniteError: if the fork cannot go on.
        """
        while self._place < place:
            batch = stream.get(self._place)
            assert batch is not None, self._place
            self._fork.train(batch)
            self._place += 1
            self.trained += 1

    def compare(self, stream: NumberedBatches, num_samples: int) -> Evidence | None:
        """Compare the two on the next samples, which neither has trained on."""
        batches = stream.coming(self._place, num_samples)
        self.judged += len(batches)
        if not batches:
            return None
        labels = np.concatenate([batch.labels for batch in batches])
        return compare(predict(self._run, batches), predict(self._fork.trained, batches), labels)

    def undo(self, left_out: SkipCounts) -> None:
        """The run takes over the fork's values; both start again from there."""
        self._fork.overwrite(self._run)
        self.start, self.left_out = self._place, left_out

    def close(self) -> None:
        self._fork.close()
