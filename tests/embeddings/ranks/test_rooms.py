"""Most exchanges are one message, whose size all ranks know beforehand; what does not fit crosses in a second one."""

from typing import Any

import numpy as np
import pytest
from thread_ranks import on_ranks, outcomes, transport_of

from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import MOST_OF_RANK, SizePredictor
from adaptive.embeddings.ranks.transport import Kind
from adaptive.errors import InputError

LARGE = MOST_OF_RANK + 1000


def part(sender: int, to: int, size: int) -> np.ndarray:
    return np.random.default_rng([sender, to]).integers(0, 256, size).astype(np.uint8)


def counting(ranks: Ranks) -> list[int]:
    """The largest part of each message from now on."""
    transport, found = transport_of(ranks), []
    swap = transport.swap

    def counted(channel: int, parts: Any, sizes: Any, largest: int) -> Any:
        found.append(largest)
        return swap(channel, parts, sizes, largest)

    transport.swap = counted  # type: ignore[method-assign]
    return found


def test_all_parts_come_whole_in_one_message_or_two() -> None:
    sizes = {0: 1, 100: 2, 105: 1, 5000: 2, 90: 1, LARGE: 2, LARGE + 1: 2, 3: 1}  # bytes: messages

    def work(ranks: Ranks) -> list[int]:
        messages, found = counting(ranks), []
        for number, size in enumerate(sizes):
            own = [part(ranks.rank, to, size + to) if size else part(0, 0, 0) for to in range(3)]
            before = len(messages)
            came = ranks.rows.exchange(Kind.VECTORS, number, own).parts
            found.append(len(messages) - before)
            expected = [part(sender, ranks.rank, size + ranks.rank) if size else part(0, 0, 0) for sender in range(3)]
            assert all(np.array_equal(one, other) for one, other in zip(came, expected, strict=True))
        return found

    assert on_ranks(3, work) == [list(sizes.values())] * 3


def test_room_is_that_of_the_same_place_in_the_order_of_exchanges() -> None:
    """Gradients of 10 bytes behind vectors of 9,000, again and again."""

    def work(ranks: Ranks) -> list[int]:
        messages = counting(ranks)
        for number in range(3):
            for kind, size in ((Kind.VECTORS, 9000), (Kind.GRADIENTS, 10)):
                ranks.rows.exchange(kind, number, [np.zeros(size, np.uint8)] * 2)
        return messages[-2:]

    for vectors, gradients in on_ranks(2, work):
        assert gradients < 200 < 9000 < vectors < 10_000


@pytest.mark.parametrize("size", [0, 2000])
def test_a_failure_is_told_in_the_place_of_a_message_of_any_room(size: int) -> None:
    text = "a long story " * 50

    def work(ranks: Ranks) -> None:
        for number in range(3):
            ranks.rows.exchange(Kind.VECTORS, number, [np.zeros(size, np.uint8)] * 3)
        if ranks.rank == 1:
            ranks.tell(ranks.rows, InputError(text))
            raise InputError(text)
        ranks.rows.exchange(Kind.VECTORS, 3, [np.zeros(size, np.uint8)] * 3)

    found = outcomes(3, work)
    assert all(isinstance(one, InputError) for one in found)
    assert str(found[0]) == str(found[2]) == f"rank 1 of 3 (thread 1): {text}"


def test_after_an_end_nothing_is_remembered() -> None:
    predictor = SizePredictor(2)
    predictor.learn(Kind.REQUESTS, [(0, 100), (10, 0)])
    predictor.learn(Kind.REQUESTS, [(0, 100), (10, 0)])
    assert predictor.next_sizes() == [[0, 128], [64, 0]]
    predictor.learn(None, [(0, 0), (0, 0)])
    assert predictor.next_sizes() == [[0, 0], [0, 0]]
