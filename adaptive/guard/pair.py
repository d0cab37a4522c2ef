"""`Pair`: a run and its fork on their way side by side."""

import numpy as np

from adaptive.build import Parts
from adaptive.config import TrainConfig
from adaptive.guard.evidence import Evidence, compare
from adaptive.guard.fork import Fork, predict
from adaptive.guard.share import LeftOut
from adaptive.guard.stream import Stream


class Pair:
    """To be closed.

    Attributes:
        start: batch at which both were equal.
        left_out: by the run until then.
        trained, judged: batches that the fork has trained, and that both have predicted.
    """

    def __init__(self, run: Parts, config: TrainConfig, start: int, left_out: LeftOut) -> None:
        self.start, self.left_out = start, left_out
        self.trained = self.judged = 0
        self._run, self._fork = run, Fork(run, config)
        self._place = start

    @property
    def num_bytes(self) -> int:
        """Memory of the fork."""
        return self._fork.num_bytes

    def train_until(self, place: int, stream: Stream) -> None:
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

    def compare(self, stream: Stream, num_samples: int) -> Evidence | None:
        """The two on the samples that come next, which neither has trained on."""
        batches = stream.coming(self._place, num_samples)
        self.judged += len(batches)
        if not batches:
            return None
        labels = np.concatenate([batch.labels for batch in batches])
        return compare(predict(self._run, batches), predict(self._fork.parts, batches), labels)

    def undo(self, left_out: LeftOut) -> None:
        """The run takes over the fork's values; both start again from there."""
        self._fork.overwrite(self._run)
        self.start, self.left_out = self._place, left_out

    def close(self) -> None:
        self._fork.close()
