"""`Passes`: the streams of one pass over the data after the other, and what was left out of them."""

from collections.abc import Iterator

from adaptive.batch import Batch
from adaptive.embedding import TieredEmbeddingBag
from adaptive.guard.share import LeftOut, left_out
from adaptive.guard.stream import Inputs, Stream
from adaptive.recorder import Recorder


class Passes:
    """Batches are numbered through over all passes."""

    def __init__(self, embeddings: TieredEmbeddingBag, recorder: Recorder) -> None:
        self.stream: Stream | None = None
        self._embeddings, self._recorder = embeddings, recorder
        self._earlier = Inputs(0, 0)  # of the passes that are over
        self._samples = 0  # trained in them

    def begin(self, batches: Iterator[Batch], place: int) -> Stream:
        """A pass begins at batch `place`."""
        self._samples = self._recorder.samples
        self.stream = Stream(batches, self._embeddings.policy, place)
        return self.stream

    def end(self) -> None:
        """The pass is over, if there is one; no look-ahead is running."""
        if self.stream is not None:
            inputs = self.stream.inputs(self.stream.taken)
            self._earlier = Inputs(self._earlier.seen + inputs.seen, self._earlier.kept + inputs.kept)
            self.stream = None

    def place(self) -> int:
        """Number of the first batch that has not been needed yet."""
        assert self.stream is not None
        return self.stream.place(self._recorder.samples - self._samples)

    def ends_within(self, place: int, num_samples: int, left: int | None) -> bool:
        """Fewer than so many samples follow in this pass from batch `place` on, and another pass comes, as `left`
        batches are left of the run. False at its beginning, where waiting for the next would gain nothing."""
        assert self.stream is not None
        if left is None or place <= self.stream.first + 1:
            return False
        ahead = self.stream.coming(place, num_samples)
        return sum(batch.num_samples for batch in ahead) < num_samples and left > len(ahead)

    def left_out(self, place: int) -> LeftOut:
        """Of the batches before `place`, which is what `place()` gives now."""
        seen, kept = self._earlier
        if self.stream is not None:
            inputs = self.stream.inputs(place)
            seen, kept = seen + inputs.seen, kept + inputs.kept
        return left_out(self._embeddings, seen, kept)
