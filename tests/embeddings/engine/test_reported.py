"""Reports tell of the batch that was trained last, however far others are planned by then."""

import time
from itertools import islice
from typing import Any

import pytest
from support.builders import FEW_ROWS, HOT_EARLY, skewed_batches

from adaptive import Adagrad, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.errors import PolicyError
from adaptive.plugins import make_policy
from adaptive.policies.lru import LRU

BATCHES = 30
CASES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "defer": ("lru", {}, "defer+warmup=4"),
    "skips": ("lru", {}, "support.skip_rules:Skips+warmup=4"),
    "predicted": ("lru", {}, "predicted+warmup=8"),
    "predicted, behind a window": ("scratchpipe", {"window": 3}, "predicted+warmup=8"),
    "hotline": ("hotline", {"learn": 4}, None),
}


def told(name: str, depth: int) -> list[Any]:
    """Behind each trained batch: rows by state, and what the policy and its rule report."""
    policy, options, rule = CASES[name]
    table = TableConfig(name="t", num_embeddings=FEW_ROWS, embedding_dim=5)
    skip = None if rule is None else HOT_EARLY.model_copy(update={"rule": rule})
    embeddings = TieredEmbeddingBag(
        [table],
        TierConfig(device_rows="60%"),
        policy=make_policy(policy, options),
        optimizer=Adagrad(lr=0.1),
        skip=skip,
    )
    found = []
    for planned in embeddings.look_ahead(islice(skewed_batches(), BATCHES), depth=depth):
        if planned.number:
            one = embeddings.statistics.take()
            rows = (*one.hot_rows, *one.saturated_rows)
            found.append((*map(int, rows), dict(one.policy)))
        (embeddings(planned)["t"].sum(1) - planned.labels).square().mean().backward()
        embeddings.step()
        time.sleep(0.002 if depth else 0)  # so that planning is far ahead
    return found


@pytest.mark.parametrize("name", CASES)
def test_reports_are_as_of_the_batch_trained_last(name: str) -> None:
    expected = told(name, 0)
    assert len({str(one) for one in expected}) > 2, "they change from batch to batch"
    assert told(name, 4) == expected


class Misnamed(LRU):
    reported = ("no_such_thing",)


def test_a_wrong_name_ends_a_loop_before_anything_moves() -> None:
    table = TableConfig(name="t", num_embeddings=FEW_ROWS, embedding_dim=5)
    embeddings = TieredEmbeddingBag([table], TierConfig(device_rows="60%"), policy=Misnamed)
    with pytest.raises(PolicyError, match=r"policy Misnamed\.reported: expected names of numeric attributes"):
        next(embeddings.look_ahead(skewed_batches(), depth=0))
    assert embeddings.statistics.take().resident_rows.sum() == 0
