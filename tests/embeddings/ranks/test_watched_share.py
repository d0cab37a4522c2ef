"""A rank watches up to 1.25 of its even share of rows, and rows that were watched on some ranks are on others."""

from typing import Any

import numpy as np
import pytest
from contract import Carrying
from support.helpers import Readout, random_batches
from support.thread_ranks import on_ranks

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.planning.layout import make_groups, owned_groups
from adaptive.embeddings.planning.sizing import hot_rows
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import Adagrad

TABLES = (
    TableConfig(name="a", num_embeddings=300, embedding_dim=4),
    TableConfig(name="b", num_embeddings=200, embedding_dim=4),
)
SKIP = SkipConfig(interval=2, hot_rows="40", min_accesses=1, feedback_delay=4)
BATCHES = random_batches(TABLES, 12, samples=12)


def made(ranks: Ranks | None) -> TieredEmbeddingBag:
    tier = TierConfig(device_rows="100%")
    policy, optimizer = Carrying(spec="support.skip_rules:Waits+warmup=2"), Adagrad(lr=0.1)
    return TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, skip=SKIP, ranks=ranks)


def trained(ranks: Ranks) -> tuple[dict[str, Any], bool]:
    """All arrays, and whether the set of this rank is full."""
    embeddings, model = made(ranks), Readout(TABLES)
    for planned in embeddings.look_ahead(BATCHES, depth=1):
        model(embeddings(planned), planned.batch).backward()
        embeddings.step()
    return embeddings.rows.state_arrays(), embeddings.statistics.hot_set_is_full


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_has_more_than_its_even_share(size: int) -> None:
    (whole,) = make_groups(TABLES, 0)
    shares = [hot_rows(owned_groups((whole,), rank, size)[0], SKIP, Adagrad(lr=0.1)) for rank in range(size)]
    assert hot_rows(whole, SKIP, Adagrad(lr=0.1)) == 40
    assert shares == [50 // size] * size
    every = SKIP.model_copy(update={"hot_rows": "100%"})
    for rank in range(size):
        (own,) = owned_groups((whole,), rank, size)
        assert hot_rows(own, every, Adagrad(lr=0.1)) == own.num_rows


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_full_sets_fit_on_any_number_of_ranks(size: int) -> None:
    """0: in a process without ranks. What is watched, and what waits, is all there."""
    (saved, full), *_ = on_ranks(2, trained)
    assert full and len(saved["rows0.watched.row"]) > 40

    def load(ranks: Ranks | None) -> dict[str, Any]:
        with made(ranks) as embeddings:
            embeddings.rows.load_state_arrays(saved)
            return embeddings.rows.state_arrays()

    results = load(None) if size == 0 else on_ranks(size, load)[0]
    orders = [np.argsort(arrays["rows0.watched.row"]) for arrays in (saved, results)]
    sums = ("summed", "sums", "squares", "raw_values", "raw_states", "interval", "entry")  # in another order
    names = [n for n in saved if n.startswith("rows0.watched.") and n.removeprefix("rows0.watched.") not in sums]
    assert len(names) > 2
    for name in names:
        one, other = (arrays[name][order] for arrays, order in zip((saved, results), orders, strict=True))
        assert np.array_equal(one, other), name
    assert len(results["rows0.watched.summed"]) == len(saved["rows0.watched.summed"]) > 0
