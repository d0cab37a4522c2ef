"""Who owns a row, and rows that some ranks have saved, for other ranks; without processes."""

from typing import Any

import numpy as np
import pytest
from support.sharded_cases import KEYED, TABLES, TIER, make_batches

from adaptive.distributed.ownership import Share, owned_tables, owners_of_keys, owners_of_rows
from adaptive.distributed.sharded_rows import regroup
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError
from adaptive.optim import Adagrad


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_row_has_one_owner_which_numbers_it_without_gaps(size: int) -> None:
    rows, key = np.arange(1001), np.full(1001, 12345678901234567890, np.uint64)
    owners, numbers = owners_of_rows(rows, key, size)
    for rank in range(size):
        own = numbers[owners == rank]
        assert np.array_equal(own, np.arange(len(own))) and 0 <= -(-1001 // size) - len(own) <= 1
        assert np.array_equal(own * size + Share(rank, size).places(own, key[: len(own)]), rows[owners == rank])
    neighbors = owners[: 1001 // size * size].reshape(-1, size)
    assert all(np.array_equal(np.sort(block), np.arange(size)) for block in neighbors)
    of_keys = np.bincount(owners_of_keys(rows * 7, key[0], size), minlength=size)
    assert of_keys.sum() == 1001 and of_keys.min() > 1001 / size / 2


def modules(size: int, tables: Any) -> list[TieredEmbeddingBag]:
    """Those of each rank."""
    owned = owned_tables(tables, size)
    return [TieredEmbeddingBag(owned, TIER, optimizer=Adagrad(), share=Share(rank, size)) for rank in range(size)]


@pytest.mark.parametrize(("saved", "loaded"), [(1, 2), (2, 1), (3, 2), (2, 3)])
def test_rows_are_regrouped(saved: int, loaded: int) -> None:
    """Rows that no rank has trained have the initial values of one process."""
    groups, whole = make_groups(TABLES, 0), TieredEmbeddingBag(TABLES, TIER, optimizer=Adagrad())
    arrays = whole.rows.state_arrays()
    for group, rows in (
        (0, [3, 299, 300, 70_300]),
        (1, [0, 50]),
    ):  # of the whole tables; each row's number is its value
        values = np.repeat(np.array(rows, np.float32)[:, None], groups[group].embedding_dim, axis=1)
        arrays |= {f"rows{group}.changed": np.array(rows), f"rows{group}.weights": values}
        arrays[f"rows{group}.state"] = values
    shards = [regroup([arrays], groups, rank, saved) for rank in range(saved)]
    assert sum(len(shard["rows0.changed"]) for shard in shards) == 4
    for rank, module in enumerate(modules(loaded, TABLES)):
        module.rows.load_state_arrays(regroup(shards, groups, rank, loaded))
        for group, number, table in ((groups[0], 0, "a"), (groups[0], 1, "b"), (groups[1], 0, "c")):
            own = module.rows.table_weights(table)
            places = np.arange(len(own))
            rows = places * loaded + Share(rank, loaded).places(places, np.full(len(own), group.table_keys[number]))
            whole.rows.load_state_arrays(arrays)
            inside = rows < group.tables[number].num_embeddings
            assert np.array_equal(own[inside], whole.rows.table_weights(table)[rows[inside]]), table
    with pytest.raises(CheckpointError, match=r"rows0\.table_starts: expected tables of .* rows on each of"):
        regroup([*shards, shards[0]], groups, 0, 5)


def test_keys_go_to_their_owners_with_their_rows(caplog: pytest.LogCaptureFixture) -> None:
    groups, whole = make_groups(KEYED, 0), TieredEmbeddingBag(KEYED, TIER, optimizer=Adagrad())
    for planned in whole.look_ahead(make_batches(20, KEYED), depth=1):
        sum(vector.sum() for vector in whole(planned).values()).backward()  # type: ignore[union-attr]
        whole.step()
    keys, weights = whole.rows.table_keys("k"), whole.rows.table_weights("k")
    shards = [regroup([whole.rows.state_arrays()], groups, rank, 3) for rank in range(3)]
    assert "tables k: saved by 1 ranks, loaded by 3: counts of keys without a row start again" in caplog.text
    found = dict[int, Any]()
    for rank, module in enumerate(modules(2, KEYED)):
        module.rows.load_state_arrays(regroup(shards, groups, rank, 2))
        found |= dict(zip(module.rows.table_keys("k").tolist(), module.rows.table_weights("k"), strict=False))
    assert sorted(found) == keys.tolist() and len(keys) > 50
    assert all(np.array_equal(found[key], row) for key, row in zip(keys.tolist(), weights, strict=False))
