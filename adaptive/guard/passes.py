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

    def left_out(self, place: int) -> LeftOut:
        """Of the batches before `place`, which is what `place()` gives now."""
        seen, kept = self._earlier
        if self.stream is not None:
            inputs = self.stream.inputs(place)
            seen, kept = seen + inputs.seen, kept + inputs.kept
        return left_out(self._embeddings, seen, kept)
