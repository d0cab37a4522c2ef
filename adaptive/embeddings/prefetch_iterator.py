"""`LookAhead`: the iterator that `TieredEmbeddingBag.look_ahead` returns."""

from collections.abc import Callable, Generator, Iterable
from typing import Any

from adaptive.embeddings.planned_batch import Planned


class LookAhead(Generator[Planned, None, None]):
    """Batches of one pass over the data, planned and fetched ahead.

    `iter` after the last batch begins the next pass, as with a `DataLoader`. Its length is that of `batches`, if they
    have one, so progress bars know their total and frameworks know the last batch. A policy that arranges batches may
    yield fewer.
    """

    def __init__(self, begin: Callable[[], Generator[Planned, None, None]], batches: Iterable[Any]) -> None:
        """`begin`: starts a pass; `batches`: only their length is used here."""
        self._begin, self._batches = begin, batches
        self._pass, self._num_yielded, self._has_ended = begin(), 0, False

    def __len__(self) -> int:
        """Return the number of batches of a pass.

        Raises:
            TypeError: if `batches` has no length.
        """
        return len(self._batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True  # as for any generator, also if its length is 0

    def __iter__(self) -> "LookAhead":
        if self._has_ended or self._has_yielded_all():
            self.close()
            self._pass, self._num_yielded, self._has_ended = self._begin(), 0, False
        return self

    def _has_yielded_all(self) -> bool:
        """True after the last batch; callers that know the length stop without StopIteration."""
        try:
            return 0 < len(self) <= self._num_yielded
        except TypeError:
            return False

    def __next__(self) -> Planned:
        return self.send(None)

    def send(self, value: None) -> Planned:
        return self._advance(self._pass.send, value)

    def throw(self, *error: Any) -> Planned:
        return self._advance(self._pass.throw, *error)

    def _advance(self, resume: Callable[..., Planned], *arguments: Any) -> Planned:
        try:
            planned = resume(*arguments)
        except BaseException:  # also StopIteration: a generator that has raised is finished
            self._has_ended = True
            raise
        self._num_yielded += 1
        return planned

    def close(self) -> None:
        """End the pass: the current batch counts as trained, and no later one is."""
        self._has_ended = True
        self._pass.close()
