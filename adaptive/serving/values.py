"""From values as they stand in the data to rows and dense inputs, by numpy alone. A copy of this file lies
in each export.

Letters: B samples, N look-ups of one feature.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORD = 2**64 - 1
Bag = tuple[NDArray[np.int64], NDArray[np.int64]]


class Values:
    """What a model takes of samples, by the `facts` of an export's `model.json`, which lies in `folder`."""

    def __init__(self, facts: Mapping[str, Any], folder: Path) -> None:
        self.facts = facts
        self.ids = [IdMap(feature, folder) for feature in facts["features"]]

    def dense(self, samples: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """(B, dense inputs), as they are after their transformation."""
        found = [[dense_input(sample, one) for one in self.facts["dense"]] for sample in samples]
        return np.array(found, np.float32).reshape(len(samples), len(self.facts["dense"]))

    def bags(self, samples: Sequence[Mapping[str, Any]]) -> list[Bag]:
        """For each feature in order the rows of all its look-ups (N,) and where those of each sample begin (B,)."""
        found = []
        for ids in self.ids:
            rows = [ids.rows(sample.get(ids.name)) for sample in samples]
            starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)[:-1]
            found.append((np.array([row for one in rows for row in one], np.int64), starts))
        return found


def dense_input(sample: Mapping[str, Any], facts: Mapping[str, Any]) -> float:
    value = sample.get(facts["name"])
    if value is None or value == "":
        return 0.0
    return math.log1p(max(float(value), 0.0)) if facts["transform"] == "log" else float(value)


class IdMap:
    """Which row of its table a value of a feature looks up."""

    def __init__(self, facts: Mapping[str, Any], folder: Path) -> None:
        self.facts, self.name = facts, facts["name"]
        if facts["rule"] == "vocabulary":
            keys = np.load(folder / facts["vocabulary"], allow_pickle=False)
            self._order = np.argsort(keys)
            self._keys = keys[self._order]

    def rows(self, value: Any) -> list[int]:
        """The rows of one sample: one, or of a bag any number."""
        if not self.facts["bag"]:
            return [self.row(value)]
        return [self.row(one) for one in value or () if one is not None and one != ""]

    def row(self, value: Any) -> int:
        """The row of one value; None or an empty text: it is missing.

        Raises:
            ValueError: for a value that has no row.
        """
        facts = self.facts
        if value is None or value == "":
            return self._special("missing", value)
        if facts["rule"] == "hash":
            return mixed(key_of(value, facts["key"])) * int(facts["rows"]) >> 64
        key = key_of(value, facts["key"])
        if facts["rule"] == "row":
            return key if 0 <= key < facts["rows"] else self._special("unknown", value)
        place = int(np.searchsorted(self._keys, key))
        if place < len(self._keys) and self._keys[place] == key:
            return int(self._order[place])
        return self._special("unknown", value)

    def _special(self, name: str, value: Any) -> int:
        row = self.facts[name]
        if row is None:
            raise ValueError(f"feature {self.name}: {value!r} has no row, and the table has none for {name} values")
        return int(row)


def key_of(value: Any, kind: str) -> int:
    """The 64-bit key of a value: a whole number itself, hex digits as a number, of a text its FNV-1a hash."""
    if kind == "int":
        return int(value)
    if kind == "hex":
        key = int(str(value), 16)
    else:
        key = 0xCBF29CE484222325
        for byte in str(value).encode():
            key = (key ^ byte) * 0x100000001B3 & WORD
    return key - 2**64 if key >= 2**63 else key


def mixed(key: int) -> int:
    """The hash of a key: the finaliser of SplitMix64."""
    x = key & WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)
