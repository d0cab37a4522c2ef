"""All bytes between ranks are counted, by kind."""

from dataclasses import asdict

import numpy as np
from support.helpers import LFU, bags, step_all
from support.thread_ranks import Town, on_ranks

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.embeddings.engine.statistics import Statistics
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.embeddings.ranks.transport import header_size
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD

TABLES = [TableConfig(name="t", num_embeddings=500, embedding_dim=16)]
SAMPLES, STEPS = 64, 8
HEADER = header_size(2)


def drawn_ids() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.zipf(1.3, (2, SAMPLES)) % 500 for _ in range(STEPS)]


def made(ranks: Ranks) -> TieredEmbeddingBag:
    return TieredEmbeddingBag(TABLES, policy=LFU, optimizer=SGD(lr=0.1), ranks=ranks)


def trained(ranks: Ranks) -> tuple[TieredEmbeddingBag, Statistics]:
    embeddings = made(ranks)
    step_all(embeddings, [Batch.of(t=one[ranks.rank], labels=np.zeros(SAMPLES)) for one in drawn_ids()], depth=1)
    return embeddings, embeddings.statistics.take()


def test_every_byte_between_ranks_is_counted_under_its_kind() -> None:
    """Per batch and rank: a request of 5 bytes for each distinct row of the other rank, and a number of requests; one
    vector; one gradient."""
    (_, one), (_, other) = on_ranks(2, trained)
    assert without_times(one) == without_times(other)
    rows = sum(len(np.unique(part)) for ids in drawn_ids() for part in ids)
    total = {name: sum(asdict(rank)[name] for rank in one.ranks) for name in asdict(one.ranks[0])}
    assert total["requests"] == 5 * total["rows_asked"] + 2 * STEPS * 4
    assert total["vectors"] == total["gradients"] == total["rows_asked"] * 16 * 4
    assert total["rows_served"] == rows and 0.4 < total["rows_asked"] / rows < 0.6
    # Requests and the end of the data are announced, vectors, gradients, and the facts of tables and statistics.
    assert total["headers"] % HEADER == 0 and total["headers"] >= 2 * HEADER * (3 * STEPS + 1)
    assert total["dense"] == total["predictions"] == total["answers"] == 0


def without_times(results: Statistics) -> list[dict[str, float]]:
    return [{**asdict(rank), "wait_ms": 0.0, "exchange_ms": 0.0} for rank in results.ranks]


def test_nothing_crosses_that_is_not_counted() -> None:
    town = Town(3)
    three = on_ranks(3, lambda ranks: (step_all(made(ranks), [bags([1, 2], [3])] * 4), ranks.traffic())[1], town=town)
    assert [one.sent for one in three] == town.sent


def test_an_interval_begins_where_the_last_one_ended() -> None:
    def work(ranks: Ranks) -> tuple[Statistics, RankTraffic]:
        embeddings, _ = trained(ranks)
        return embeddings.statistics.take(), ranks.traffic()

    (again, since_start), _ = on_ranks(2, work)
    nothing = {"requests", "vectors", "gradients", "rows_asked", "rows_served", "wait_ms", "exchange_ms"}
    assert all(asdict(rank)[name] == 0 for rank in again.ranks for name in nothing)
    assert since_start.vectors > 0 and since_start.wait_ms > 0


def test_one_rank_sends_nothing_and_is_asked_for_all() -> None:
    _, results = on_ranks(1, trained)[0]
    assert len(results.ranks) == 1 and results.ranks[0].sent == 0
    assert results.ranks[0].rows_served == sum(len(np.unique(ids[0])) for ids in drawn_ids())


def test_a_process_alone_has_no_ranks() -> None:
    assert TieredEmbeddingBag(TABLES, policy=LFU).statistics.take().ranks == ()
