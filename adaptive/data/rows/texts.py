"""`TextKeeper`: the distinct texts of a table's categories, by the keys that stand for them elsewhere."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels import texts as kernels
from adaptive.data.kernels.text_rows import insert_keys

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Texts:
    """T texts in UTF-8: text t is `data[ends[t] : ends[t + 1]]`."""

    data: NDArray[np.uint8]
    ends: Ids  # (T + 1,)

    def __iter__(self) -> Iterator[str]:
        """Raises UnicodeDecodeError if one is not UTF-8."""
        whole = self.data.tobytes()
        return (whole[start:stop].decode() for start, stop in zip(self.ends[:-1], self.ends[1:], strict=True))

    def followed_by(self, others: "Texts", chosen: Ids) -> "Texts":
        """These texts, then the chosen (n,) of the others, in this order."""
        starts, lengths = others.ends[chosen], others.ends[chosen + 1] - others.ends[chosen]
        after = np.cumsum(lengths, dtype=np.int64)
        within = np.arange(int(after[-1]) if len(after) else 0) - np.repeat(after - lengths, lengths)
        data = others.data[np.repeat(starts, lengths) + within]
        return Texts(np.concatenate([self.data[: self.ends[-1]], data]), np.append(self.ends, self.ends[-1] + after))


class TextKeeper:
    """Keeps each distinct text once: its bytes, and 40 bytes beside them."""

    def __init__(self) -> None:
        self._places, self._keys, self._ends = np.full(64, -1), np.empty(32, np.int64), np.zeros(33, np.int64)
        self._data, self._count = np.empty(1024, np.uint8), 0

    def add(self, data: NDArray[np.uint8], spans: Ids) -> None:
        """Add the texts at `spans` of `data`; see `kernels.data.texts`."""
        done = 0
        while done < len(spans):
            done, self._count = kernels.keep(
                data, spans, done, self._places, self._keys, self._ends, self._data, self._count
            )
            if done < len(spans):
                self._grow(int(spans[done, kernels.STOP] - spans[done, kernels.START]))

    def _grow(self, size: int) -> None:
        """Twice the room of what is full."""
        used = int(self._ends[self._count])
        if used + size > len(self._data):
            self._data = np.concatenate([self._data, np.empty(len(self._data) + size, np.uint8)])
            return
        self._keys = np.concatenate([self._keys, np.empty_like(self._keys)])
        self._ends = np.concatenate([self._ends, np.zeros(len(self._keys) + 1 - len(self._ends), np.int64)])
        self._places = np.full(2 * len(self._places), -1)
        filled = np.zeros(len(self._places), np.int64)
        insert_keys(self._keys[: self._count], np.arange(self._count), filled, self._places)

    def texts_of(self, keys: Ids) -> Texts:
        """The texts of keys that came, in the order of the keys."""
        known = np.argsort(self._keys[: self._count], kind="stable")
        found = known[np.searchsorted(self._keys[: self._count], keys, sorter=known)]
        starts, sizes = self._ends[found], np.diff(self._ends[: self._count + 1])[found]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        picks = np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])
        return Texts(self._data[picks], ends)
