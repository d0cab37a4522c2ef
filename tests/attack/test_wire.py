"""Messages between ranks that are damaged, cut, of another time, receiver or job: an error by name on all ranks, or the
numbers of the run in which nothing happened; never a hang, never other numbers.

Two or three threads are ranks; they train, and one message of one of them is spoilt.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from support.attacks import Campaign, attack, told
from support.helpers import LFU, featured, step_all
from support.thread_ranks import Town, on_ranks, outcomes

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.exchange.requests import (
    Requests,
    pack_key_facts,
    pack_requests,
    unpack_key_facts,
    unpack_requests,
)
from adaptive.embeddings.exchange.row_cache import SkipMasks, pack_masks, unpack_masks
from adaptive.embeddings.planning.key_tables import GroupKeys
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.transport import part_check
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import RanksError
from adaptive.optim import SGD

pytestmark = attack

TABLES: Final = [TableConfig(name=name, num_embeddings=rows, embedding_dim=4) for name, rows in (("t", 40), ("u", 300))]
STEPS: Final = 4
AFTER_DAMAGE: Final = 1.0  # seconds that ranks wait for one another from then on
Message = tuple[int, int, int, int]  # rank, channel, which of its messages there, receiver


def trained(ranks: Ranks, rule: str) -> list[bytes]:
    """Tables after some batches, and rows read for evaluation."""
    rng = np.random.default_rng(ranks.rank)
    batches = [
        featured(*([rng.integers(0, rows, rng.integers(1, 5)).tolist() for _ in range(2)] for rows in (20, 300)))
        for _ in range(STEPS)
    ]
    options: dict[str, Any] = {"policy": LFU}
    if rule == "skips":
        skip = SkipConfig(interval=2, min_accesses=1)
        options["skip"] = skip.model_copy(update={"rule": "defer+warmup=0"})
    tier = TierConfig(device_rows="100%")
    embeddings = TieredEmbeddingBag(TABLES, tier, optimizer=SGD(lr=0.1), ranks=ranks, **options)
    step_all(embeddings, batches, depth=1)
    read = embeddings(embeddings.read(batches[0])).values()
    return [
        *(one.detach().numpy().tobytes() for one in read),
        *(embeddings.rows.table_weights(table.name).tobytes() for table in TABLES),
    ]


class Spoiling:
    """Changes one message of a town, and keeps those that were sent before it."""

    def __init__(self, size: int, where: Message | None, change: Callable[[bytes, list[bytes]], bytes]) -> None:
        self._size, self._where, self._change = size, where, change
        self._lock, self._asked = threading.Lock(), Counter[tuple[int, int]]()
        self.sent: dict[Message, bytes] = {}
        self.changed = False
        self.town: Town | None = None

    def __call__(self, rank: int, channel: int, message: bytes) -> bytes:
        with self._lock:
            number, to = divmod(self._asked[rank, channel], self._size)
            self._asked[rank, channel] += 1
            place = (rank, channel, number, to)
            self.sent[place] = message
            if place != self._where or rank == to or not message:
                return message
            spoilt = self._change(message, [one for one in self.sent.values() if len(one) == len(message)])
            self.changed = spoilt != message
            if self.changed and self.town is not None:
                self.town.seconds = AFTER_DAMAGE
            return spoilt

    def outcome(self, found: Any) -> str:
        """Of the rank that the message went to, whose error names the rank that it came from."""
        if not isinstance(found, RanksError):
            return "without effect"
        assert self.changed and self._where is not None
        sender = f"rank {self._where[0]} of {self._size} (thread {self._where[0]})"
        for outcome in ("got damaged bytes", "it comes from another job or rank", "out of step", "expected b'ADRK'"):
            if outcome in str(found):
                assert sender in str(found), found
                return outcome
        assert "gone or late" in str(found) or "kind" in str(found), found  # of what another of its threads met
        return "another error"


def changes(rng: np.random.Generator, others: Sequence[bytes]) -> Callable[[bytes, list[bytes]], bytes]:
    """A drawn way to spoil a message; `others`: of another job."""

    def change(message: bytes, before: list[bytes]) -> bytes:
        content = bytearray(message)
        match int(rng.integers(5)):
            case 0:
                content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
            case 1:  # cut: what is left of it are zeros
                kept = int(rng.integers(len(content)))
                content[kept:] = bytes(len(content) - kept)
            case 2:  # moved by some bytes
                content = content[-int(rng.integers(1, 9)) :] + content
                content = content[: len(message)]
            case 3:  # one that was sent before, or to another rank
                content = bytearray(before[int(rng.integers(len(before)))])
            case _:
                fitting = [one for one in others if len(one) == len(message)]
                content = bytearray(fitting[int(rng.integers(len(fitting)))] if fitting else b"?" * len(message))
        return bytes(content)

    return change


@pytest.mark.parametrize("rule", ["skips nothing", "skips"])
def test_a_damaged_message_is_an_error_or_changes_no_number(rule: str) -> None:
    campaign = Campaign(f"messages between ranks, {rule}", 5)
    whole, sent, others = {}, {}, {}
    for size in (2, 3):
        noting = Spoiling(size, None, lambda message, before: message)
        whole[size] = on_ranks(size, lambda ranks: trained(ranks, rule), town=Town(size, spoil=noting, job=1))
        sent[size] = [place for place, message in noting.sent.items() if place[0] != place[3] and message]
        other = Spoiling(size, None, lambda message, before: message)
        on_ranks(size, lambda ranks: trained(ranks, rule), town=Town(size, spoil=other, job=2))
        others[size] = list(other.sent.values())
    for _, rng in campaign.tries():
        size = int(rng.integers(2, 4))
        where = sent[size][int(rng.integers(len(sent[size])))]
        spoiling = Spoiling(size, where, changes(rng, others[size]))
        spoiling.town = Town(size, spoil=spoiling, job=1)
        found = outcomes(size, lambda ranks: trained(ranks, rule), town=spoiling.town)
        for rank, (one, expected) in enumerate(zip(found, whole[size], strict=True)):
            if isinstance(one, BaseException) and not isinstance(one, RanksError):
                raise one
            assert isinstance(one, RanksError) or one == expected, (where, rank)
        campaign.came(spoiling.outcome(found[where[3]]))


def test_made_up_requests_and_answers() -> None:
    """They come through the checks of what crosses, as those of a faulty rank would."""
    (group,) = make_groups(TABLES, 0)
    sizes, campaign, keys = group.table_sizes, Campaign("requests and answers", 200), GroupKeys(group)
    for _, rng in campaign.tries():
        numbers = rng.integers(0, 6, (3, len(sizes)))
        tables = np.repeat(np.tile(np.arange(len(sizes)), 3), numbers.reshape(-1))
        are_keys = bool(rng.integers(2))
        rows = rng.integers(0, sizes[tables]) + group.table_starts[tables]
        rows = rng.integers(-(2**63), 2**63 - 1, len(tables)) if are_keys else rows
        lookups = rng.choice([1, 2, 254, 255, 256, 70_000], len(rows))
        packed = pack_requests(group, Requests(numbers.reshape(-1), tables, rows, lookups), are_keys=are_keys)
        message = bytearray(np.concatenate([packed, pack_key_facts(keys, 1.7e9)] if are_keys else [packed]).tobytes())
        unspoilt = bytes(message)
        for at in rng.integers(0, len(message), int(rng.integers(0, 4))):
            message[at] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))])
        part = np.frombuffer(bytes(message[: rng.integers(len(message))] if rng.random() < 0.2 else message), np.uint8)

        def requests(
            part: np.ndarray = part,
            unspoilt: bytes = unspoilt,
            given: Any = (rows, lookups),
            are_keys: bool = are_keys,
        ) -> None:
            found, rest = unpack_requests(group, part, 3, "rank 1", are_keys=are_keys)
            assert are_keys or (group.tables_of(found.rows) == found.tables).all()
            assert len(found.lookups) == len(found.rows) == len(found.tables)
            latest = unpack_key_facts(keys, rest, "rank 1")[0] if are_keys else 0
            assert latest >= -1
            assert (found.lookups >= 1).all() and found.counts.sum() == len(found.rows) and len(rest) <= len(part)
            if part.tobytes() == unspoilt:
                assert np.array_equal(found.rows, given[0]) and np.array_equal(found.lookups, given[1])

        campaign.came("requests told" if told(requests, codes=(10,), names="requests of rank 1") else "requests read")
        planes = [rng.random(len(rows)) < rng.choice([0, 0.5]) for _ in range(3)]
        message = bytearray(pack_masks([SkipMasks(*planes)], forget=bool(rng.integers(2))).tobytes())
        for at in rng.integers(0, max(len(message), 1), int(rng.integers(0, 3)) if message else 0):
            message[at] = int(rng.integers(256))
        part = np.frombuffer(
            bytes(message[: rng.integers(len(message) + 1)] if rng.random() < 0.2 else message), np.uint8
        )

        def answers(part: np.ndarray = part, number: int = len(rows)) -> None:
            (found,), _ = unpack_masks(part, [number], "rank 1")
            assert all(len(plane) == number for plane in found)

        campaign.came("answers told" if told(answers, codes=(10,), names="answers of rank 1") else "answers read")


def test_the_check_of_a_part_tells_any_flipped_bit_and_any_cut() -> None:
    for size in (0, 1, 7, 8, 4095, 4096, 4097, 5003):
        part = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
        check = part_check(part)
        assert 0 <= check < 2**64 and check == part_check(np.concatenate([part[:1], part])[1:])  # wherever it lies
        for at in range(0, size, 97):
            for bit in range(8):
                spoilt = part.copy()
                spoilt[at] ^= 1 << bit
                assert part_check(spoilt) != check
        assert size == 0 or part_check(part[:-1]) != check
