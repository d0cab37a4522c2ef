"""`LookAhead`: what `TieredEmbeddingBag.look_ahead` gives to a loop, or to a framework that has the loop."""

from collections.abc import Callable, Generator, Iterable
from typing import Any

from adaptive.embeddings.planned_batch import Planned


class LookAhead(Generator[Planned, None, None]):
    """The batches of one pass, planned and fetched ahead. `iter`, once all of them have come, begins the next pass.

    So it goes where a `DataLoader` does, for several epochs. Its length is that of `batches`, where that has one:
    progress bars know their total, and frameworks need not ask for a batch more to know that there is none. A policy
    that arranges batches may yield fewer.
    """

    def __init__(self, begin: Callable[[], Generator[Planned, None, None]], batches: Iterable[Any]) -> None:
        self._begin, self._batches = begin, batches
        self._pass, self._came, self._ended = begin(), 0, False

    def __len__(self) -> int:
        """Number of batches of a pass.

        Raises:
            TypeError: `batches` has no length.
        """
        return len(self._batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True  # as any generator, whatever its length

    def __iter__(self) -> "LookAhead":
        if self._ended or self._all_came():
            self.close()
            self._pass, self._came, self._ended = self._begin(), 0, False
        return self

    def _all_came(self) -> bool:
        """Whoever knows the length may stop there, and never hear that a pass has ended."""
        try:
            return 0 < len(self) <= self._came
        except TypeError:
            return False

    def __next__(self) -> Planned:
        return self.send(None)

    def send(self, value: None) -> Planned:
        return self._moved_on(self._pass.send, value)

    def throw(self, *error: Any) -> Planned:
        return self._moved_on(self._pass.throw, *error)

    def _moved_on(self, way: Callable[..., Planned], *words: Any) -> Planned:
        try:
            planned = way(*words)
        except BaseException:  # StopIteration, too: a generator that has raised is over
            self._ended = True
            raise
        self._came += 1
        return planned

    def close(self) -> None:
        """End the pass: the batch that came last is trained, those behind it are not."""
        self._ended = True
        self._pass.close()
