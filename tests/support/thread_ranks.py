"""Threads as ranks: a transport of lists and a condition, and a way to run one function on each of them."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.transport import CHANNELS, ROWS, Bytes, Transport, TransportError

T = TypeVar("T")
SECONDS = 600.0  # only a hang comes to it
GLANCE = 0.2  # seconds after which a waiting rank looks how long it is to wait


class _Meeting:
    """Meeting point of the ranks of one channel, round after round."""

    def __init__(self, town: "Town") -> None:
        self._size, self._town = town.size, town
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, Any]] = defaultdict(dict)
        self._round = [0] * town.size
        self._gone: set[int] = set()

    def swap(self, rank: int, given: Any) -> list[Any]:
        with self._changed:
            number = self._round[rank]
            self._round[rank] += 1
            here = self._rounds[number]
            here[rank] = given
            self._changed.notify_all()
            begun = time.monotonic()
            while not (len(here) == self._size or self._gone - set(here)):
                self._changed.wait(GLANCE)
                if time.monotonic() > begun + self._town.seconds:  # which may have become fewer
                    break
            if len(here) < self._size:
                raise TransportError("a rank is gone or late")
            return [here[other] for other in range(self._size)]

    def leave(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()


@dataclass
class Town:
    """Meeting point of threads that are ranks. `spoil(rank, channel, message)` may change what a rank sends, and is
    called for each receiver in turn, also for the rank itself; `values_on`: devices between which numbers cross as
    they do by NCCL."""

    size: int
    seconds: float = SECONDS
    spoil: Callable[[int, int, bytes], bytes] | None = None
    values_on: str | None = None
    meetings: list[_Meeting] = field(init=False)
    sent: list[int] = field(init=False)  # bytes of all messages to others, of each rank

    def __post_init__(self) -> None:
        self.meetings = [_Meeting(self) for _ in CHANNELS]
        self.sent = [0] * self.size

    def leave(self, rank: int) -> None:
        for meeting in self.meetings:
            meeting.leave(rank)


class ThreadTransport(Transport):
    """One thread's way to the others."""

    def __init__(self, town: Town, rank: int) -> None:
        self.rank, self.size = rank, town.size
        self._town, self.values_on = town, town.values_on

    def swap_values(self, values: Tensor, sizes: Sequence[int], lengths: Sequence[int]) -> Tensor:
        pieces = [piece.clone() for piece in values.split(list(sizes))]
        answers = [row[self.rank] for row in self._town.meetings[ROWS].swap(self.rank, pieces)]
        assert [len(piece) for piece in answers] == list(lengths)
        return torch.cat(answers)

    def swap(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int], largest: int) -> list[Bytes]:
        wholes = [np.concatenate(part) for part in parts]
        self._town.sent[self.rank] += sum(len(whole) for to, whole in enumerate(wholes) if to != self.rank)
        assert largest >= max(map(len, wholes))
        if self._town.spoil is not None:
            wholes = [np.frombuffer(self._town.spoil(self.rank, channel, one.tobytes()), np.uint8) for one in wholes]
        rows = self._town.meetings[channel].swap(self.rank, wholes)
        answers = [row[self.rank] for row in rows]
        assert [len(part) for part in answers] == list(sizes)
        return answers

    def name_of(self, rank: int) -> str:
        return f"thread {rank}"

    def silent(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def transport_of(ranks: Ranks) -> Transport:
    """The transport of this rank."""
    return ranks._transport


def on_ranks(size: int, work: Callable[[Ranks], T], *, town: Town | None = None, **options: Any) -> list[T]:
    """`work(ranks)` in one thread for each rank; raises the error of the first rank that had one."""
    answers = outcomes(size, work, town=town, **options)
    errors = [one for one in answers if isinstance(one, BaseException)]
    if errors:
        raise errors[0]
    return answers


def outcomes(size: int, work: Callable[[Ranks], Any], *, town: Town | None = None, **options: Any) -> list[Any]:
    """`on_ranks`, with errors in the place of results."""
    town = Town(size) if town is None else town
    answers: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            answers[rank] = work(Ranks(ThreadTransport(town, rank), **options))
        except BaseException as error:
            answers[rank] = error
        finally:
            town.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * town.seconds)
        assert not thread.is_alive(), "a rank hangs"
    return answers
