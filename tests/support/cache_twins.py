"""Slow, obvious cache simulations over whole batches. Dictionaries and sorting; never make them fast.

A batch needs all its distinct rows on the device at once. A *hit* is a distinct row that is there when its batch is
planned. A row may leave only if no held batch (this one, or one planned and not yet trained) needs it.
"""

from collections.abc import Callable, Iterator, Sequence

Batches = Sequence[Sequence[int]]  # look-ups of each batch, in the planner's order: table by table

NEVER = 10**9


def next_uses(batches: Batches) -> dict[int, list[int]]:
    """The batches that use each row, in order."""
    uses: dict[int, list[int]] = {}
    for number, batch in enumerate(batches):
        for row in dict.fromkeys(batch):
            uses.setdefault(row, []).append(number)
    return uses


def belady_hits(batches: Batches, num_slots: int) -> int:
    """Hits of the best possible eviction: the row whose next use is farthest leaves, and only when it must.

    That no eviction does better is Belady's theorem; that batches need several rows at once changes nothing in its
    proof, since the rows of the present batch are the ones whose next use is nearest.
    """
    return sum(len(hits) for hits in belady_hit_rows(batches, num_slots))


def belady_hit_rows(batches: Batches, num_slots: int) -> Iterator[set[int]]:
    """The rows of each batch that hit under that eviction."""
    uses = next_uses(batches)
    resident: set[int] = set()
    for batch in batches:
        needed = set(batch)
        assert len(needed) <= num_slots, (len(needed), num_slots)
        yield needed & resident
        for row in needed:
            uses[row].pop(0)
        surplus = len(needed | resident) - num_slots
        idle = sorted(resident - needed, key=lambda row: (uses[row] or [NEVER])[0], reverse=True)
        resident = (needed | resident) - set(idle[: max(surplus, 0)])


class History:
    """What a policy may know of rows while batch `step` is planned."""

    def __init__(self, batches: Batches, window: int) -> None:
        self.step = 0
        self.accesses: dict[int, int] = {}
        self.last_access: dict[int, int] = {}
        self._uses = next_uses(batches)
        self._window = window

    def record(self, batch: Sequence[int]) -> None:
        for row in batch:
            self.accesses[row] = self.accesses.get(row, 0) + 1
            self.last_access[row] = self.step

    def next_access(self, row: int) -> int:
        following = [number for number in self._uses[row] if self.step < number <= self.step + self._window]
        return min(following, default=NEVER)


Score = Callable[[History, int], float]


def staged_hits(
    batches: Batches, num_slots: int, score: Score, *, depth: int = 0, window: int = 0, eviction_share: float = 0.02
) -> int:
    """Hits of `score` where missing rows are staged.

    When slots run short, the lowest idle rows leave, at least `eviction_share` of the slots at once. Among equal scores
    the lowest slot is vacated, and the slot vacated last is filled first.
    """
    history = History(batches, window)
    slots: list[int | None] = [None] * num_slots
    free = list(range(num_slots - 1, -1, -1))
    hits = 0
    for history.step, batch in enumerate(batches):
        distinct = list(dict.fromkeys(batch))
        resident = {row for row in slots if row is not None}
        missing = [row for row in distinct if row not in resident]
        hits += len(distinct) - len(missing)
        shortage = len(missing) - len(free)
        if shortage > 0:
            idle = [
                slot
                for slot, row in enumerate(slots)
                if row is not None and row not in distinct and history.last_access[row] < history.step - depth
            ]
            assert len(idle) >= shortage, "the held rows do not fit"
            lowest = sorted(idle, key=lambda slot: score(history, slots[slot] or 0))
            for slot in sorted(lowest[: max(shortage, int(eviction_share * num_slots))]):
                slots[slot] = None
                free.append(slot)
        for row in missing:
            slots[free.pop()] = row
        history.record(batch)
    return hits
