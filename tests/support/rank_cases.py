"""One training on any number of ranks, threads or not, and what it leaves: tables, state, records, losses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.ranks import ALONE, Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policy import Policy
from support.helpers import LFU, Floats, Readout
from support.thread_ranks import Town, on_ranks

OPTIMIZERS: list[RowOptimizer] = [SGD(lr=0.5), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01), FTRL(lr=0.1)]
TABLES = (
    TableConfig(name="a", num_embeddings=300, embedding_dim=4, init_bound=1.0),
    TableConfig(name="b", num_embeddings=70_000, embedding_dim=4, pooling="mean", features=("b1", "b2")),
    TableConfig(name="c", num_embeddings=50, embedding_dim=8, pooling="none"),
)


@dataclass(frozen=True)
class Case:
    batches: tuple[Batch, ...]
    optimizer: RowOptimizer = SGD(lr=0.5)  # noqa: RUF009 (immutable)
    policy: Any = LFU
    depth: int = 2
    tier: TierConfig = field(default_factory=lambda: TierConfig(device_rows="60%", poison=True))
    skip: SkipConfig | None = None
    tables: tuple[TableConfig, ...] = TABLES

    def train(self, ranks: Ranks) -> tuple[dict[str, Floats], dict[str, Any], list[float], RankTraffic]:
        policy: Policy = self.policy()
        embeddings = TieredEmbeddingBag(
            self.tables, self.tier, policy=policy, skip=self.skip, ranks=ranks, optimizer=self.optimizer
        )
        losses = train_parts(embeddings, self.tables, self.batches, depth=self.depth)
        tables = {table.name: embeddings.rows.table_weights(table.name) for table in self.tables}
        return tables, embeddings.rows.state_arrays(), losses, ranks.traffic()


def train_parts(
    embeddings: TieredEmbeddingBag, tables: Sequence[TableConfig], batches: Sequence[Batch], *, depth: int
) -> list[float]:
    """Train this rank's part of each batch; return the losses of its parts."""
    ranks, model, losses = embeddings.ranks or ALONE, Readout(tables), []
    for planned in embeddings.look_ahead([ranks.own_part(batch) for batch in batches], depth=depth):
        for part in planned.parts():
            loss = model(embeddings(part), part.batch) * (part.num_samples / planned.num_samples_of_all)
            loss.backward()
            losses.append(loss.item())
        embeddings.step()
    return losses


def assert_equal_on(
    sizes: list[int], blocks: int, case: Case, *, wire: str = "fp32", values_on: str | None = None, **other: Any
) -> dict[int, list[RankTraffic]]:
    """On every number of ranks, the bits of one rank with these blocks; returns what its ranks sent."""
    sent = {}
    (tables, arrays, losses, _) = on_ranks(1, case.train, blocks=blocks, gradients="sum", wire=wire)[0]
    for size in sizes:
        town = Town(size, values_on=values_on)
        train = Case(**{**vars(case), **other}).train
        results = on_ranks(size, train, town=town, blocks=blocks, gradients="sum", wire=wire)
        assert sorted(loss for one in results for loss in one[2]) == sorted(losses)
        sent[size] = [one[3] for one in results]
        for its_tables, its_arrays, _, _ in results:
            assert all(np.array_equal(its_tables[name], tables[name]) for name in tables)
            assert_same_rows(arrays, its_arrays)
    return sent


def assert_same_rows(one: dict[str, Any], other: dict[str, Any]) -> None:
    """State, records and what is watched. Rows that never changed may be saved or not."""
    for group in range(2):
        prefix = f"rows{group}."
        _, rows, places = np.intersect1d(one[prefix + "changed"], other[prefix + "changed"], return_indices=True)
        for name in ("weights", "state"):
            assert np.array_equal(one[prefix + name][rows], other[prefix + name][places])
        names = {"seen", "accesses", "last_access", "update_norm", "table_starts", "table_keys"}
        for name in (prefix + name for name in names if prefix + name in one or prefix + name in other):
            assert np.array_equal(one[name], other[name]), name
        if prefix + "watched.row" in one:
            orders = [np.argsort(arrays[prefix + "watched.row"]) for arrays in (one, other)]
            for name in (name for name in one if name.startswith(prefix + "watched.")):
                if name.rpartition(".")[2] in {
                    "interval",
                    "entry",
                    "summed",
                    "sums",
                    "squares",
                    "raw_values",
                    "raw_states",
                }:
                    continue
                assert np.array_equal(one[name][orders[0]], other[name][orders[1]], equal_nan=True), name
