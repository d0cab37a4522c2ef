"""The slow twin of `AccessLog`: SRRIP over sets of four, in plain Python, with a list of [tag, value] for each set."""

from collections.abc import Iterable

from reference import mix

WAYS = 4


class SlowLog:
    """Sets of (tag, re-reference value); 0 was just used again, 2 has just come in, 3 leaves first."""

    def __init__(self, num_entries: int) -> None:
        self.sets: list[list[list[int]]] = [[] for _ in range(num_entries // WAYS)]

    def home(self, row: int) -> tuple[list[list[int]], int]:
        mixed = mix(row)
        return self.sets[(mixed >> 32) * len(self.sets) >> 32], mixed % 2**32 % (2**14 - 1) + 1

    def add(self, rows: Iterable[int]) -> None:
        for row in rows:
            if not self.sets:
                continue
            entries, tag = self.home(row)
            mine = [entry for entry in entries if entry[0] == tag]
            if mine:
                mine[0][1] = 0
            elif len(entries) < WAYS:
                entries.append([tag, 2])
            else:
                while all(value < 3 for _, value in entries):
                    for entry in entries:
                        entry[1] += 1
                at = [value for _, value in entries].index(3)
                entries[at] = [tag, 2]

    def holds(self, row: int) -> bool:
        if not self.sets:
            return False
        entries, tag = self.home(row)
        return any(entry[0] == tag for entry in entries)

    def entries(self) -> list[list[int]]:
        """As `AccessLog` lays them out."""
        return [[tag << 2 | value for tag, value in entries] + [0] * (WAYS - len(entries)) for entries in self.sets]
