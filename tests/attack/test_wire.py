"""Requests and answers of a faulty rank: refused by name, or they name rows that there are."""

from typing import Any, Final

import numpy as np
from support.attacks import Campaign, attack, told

from adaptive.config import TableConfig
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

pytestmark = attack

TABLES: Final = [TableConfig(name=name, num_embeddings=rows, embedding_dim=4) for name, rows in (("t", 40), ("u", 300))]


def test_made_up_requests_and_answers() -> None:
    """Bytes are changed and cut."""
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
