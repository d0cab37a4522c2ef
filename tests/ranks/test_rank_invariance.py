"""How many ranks there are changes no bit: tables, state, records and verdicts, and the losses of every block.

Threads are ranks here. The model takes no matrix product, so its bits cannot depend on the batch; with the products of
a real one, processes are compared (`test_rank_processes.py`).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers import LFU, Floats, LFUOnHost, Readout, Scattered, Windowed, random_batches
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from thread_ranks import on_ranks

from adaptive.batch import Batch, OwnPart
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embedding import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.slipstream import Slipstream
from adaptive.policy import Policy
from adaptive.ranks import Ranks

OPTIMIZERS: list[RowOptimizer] = [SGD(lr=0.5), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]
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

    def train(self, ranks: Ranks) -> tuple[dict[str, Floats], dict[str, Any], list[float]]:
        policy: Policy = self.policy()
        embeddings = TieredEmbeddingBag(
            TABLES, self.tier, policy=policy, optimizer=self.optimizer, skip=self.skip, ranks=ranks
        )
        model, losses = Readout(TABLES), []
        parts = [own_part(batch, ranks) for batch in self.batches]
        for planned in embeddings.look_ahead(parts, depth=self.depth):
            for part in planned.parts():
                loss = model(embeddings(part), part.batch) * (part.num_samples / planned.num_samples_of_all)
                loss.backward()
                losses.append(loss.item())
            embeddings.step()
        tables = {table.name: embeddings.table_weights(table.name) for table in TABLES}
        return tables, embeddings.state_arrays(), losses


def own_part(batch: Batch, ranks: Ranks) -> OwnPart:
    own = ranks.own_blocks
    return OwnPart.of_batch(batch, ranks.block_bounds(batch.num_samples)[own.start : own.stop + 1])


def assert_equal_on(sizes: list[int], blocks: int, case: Case, **other: Any) -> None:
    """On every number of ranks, the bits of one rank with these blocks."""
    (tables, arrays, losses) = on_ranks(1, case.train, blocks=blocks, gradients="sum")[0]
    for size in sizes:
        found = on_ranks(size, Case(**{**vars(case), **other}).train, blocks=blocks, gradients="sum")
        assert [sorted(one[2]) for one in found] == [sorted(one[2]) for one in found]
        assert sorted(loss for one in found for loss in one[2]) == sorted(losses)
        for its_tables, its_arrays, _ in found:
            assert all(np.array_equal(its_tables[name], tables[name]) for name in tables)
            assert_same_rows(arrays, its_arrays)


def assert_same_rows(one: dict[str, Any], other: dict[str, Any]) -> None:
    """State, records and what is watched. Rows that never changed may be saved or not."""
    for group in range(2):
        prefix = f"rows{group}."
        _, rows, places = np.intersect1d(one[prefix + "changed"], other[prefix + "changed"], return_indices=True)
        for name in ("weights", "state"):
            assert np.array_equal(one[prefix + name][rows], other[prefix + name][places])
        for name in ("seen", "accesses", "last_access", "update_norm", "table_starts", "table_keys"):
            assert np.array_equal(one[prefix + name], other[prefix + name]), name
        if prefix + "watched.row" in one:
            orders = [np.argsort(arrays[prefix + "watched.row"]) for arrays in (one, other)]
            for name in (name for name in one if name.startswith(prefix + "watched.")):
                if name.rpartition(".")[2] in {"interval", "summed", "sums", "squares", "raw_values", "raw_states"}:
                    continue
                assert np.array_equal(one[name][orders[0]], other[name][orders[1]], equal_nan=True), name


BATCHES = tuple(random_batches(TABLES, 10, samples=11))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: type(one).__name__)
def test_one_to_four_ranks_give_the_same_bits(optimizer: RowOptimizer) -> None:
    assert_equal_on([2, 3, 4], 4, Case(BATCHES, optimizer))


def test_batches_smaller_than_the_blocks_leave_ranks_without_a_sample() -> None:
    few = tuple(random_batches(TABLES, 6, samples=2, seed=1)) + tuple(random_batches(TABLES, 2, samples=1, seed=2))
    assert_equal_on([4], 4, Case(few))


def test_deferral_counts_the_visits_of_all_ranks() -> None:
    skip = SkipConfig(interval=2, min_visits=1, hot_rows="100%", min_accesses=2, lag=4)
    batches = tuple(random_batches(TABLES, 30, samples=11, seed=3))
    assert_equal_on([2, 3], 3, Case(batches, Adagrad(lr=0.1), Slipstream, skip=skip))


def test_saturated_rows_are_the_same() -> None:
    skip = SkipConfig(interval=2, min_visits=1, hot_rows="100%", min_accesses=2, lag=4)
    batches = tuple(random_batches(TABLES, 30, samples=11, seed=3))
    policy = lambda: Slipstream(skip="updates", threshold=10.0)  # noqa: E731
    assert_equal_on([2], 2, Case(batches, Adagrad(lr=0.1), policy, skip=skip))


@settings(
    max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.data())
def test_drawn_trainings(data: st.DataObject) -> None:
    """Whatever the tiers, the look-ahead and the batches of either side."""
    draw = data.draw
    seed, samples, blocks = draw(st.integers(0, 99)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    weighted = False
    batches = tuple(random_batches(TABLES, draw(st.integers(1, 8)), seed=seed, samples=samples, weighted=weighted))
    case = Case(batches, draw(st.sampled_from(OPTIMIZERS)))
    rows = draw(st.sampled_from(["30%", "60%", "100%"]))
    assert_equal_on(
        [draw(st.integers(1, blocks))],
        blocks,
        case,
        depth=draw(st.integers(0, 4)),
        policy=draw(st.sampled_from([LFU, Scattered, Windowed, LFUOnHost])),
        tier=TierConfig(device_rows=rows, poison=True),
    )


def test_rows_saved_on_some_ranks_go_on_on_others() -> None:
    """4 to 2 to 3 to 1: each trains some batches, the rows are those of one rank that trains all."""
    case = Case(BATCHES, Adam(lr=0.01))

    def stretch(first: int, last: int, arrays: dict[str, Any] | None) -> Any:
        def work(ranks: Ranks) -> dict[str, Any]:
            embeddings = TieredEmbeddingBag(TABLES, case.tier, policy=LFU, optimizer=case.optimizer, ranks=ranks)
            if arrays is not None:
                embeddings.load_state_arrays(arrays)
            model = Readout(TABLES)
            for planned in embeddings.look_ahead([own_part(batch, ranks) for batch in BATCHES[first:last]], depth=1):
                for part in planned.parts():
                    (model(embeddings(part), part.batch) * part.num_samples / planned.num_samples_of_all).backward()
                embeddings.step()
            return embeddings.state_arrays()

        return work

    whole = on_ranks(1, stretch(0, 10, None), blocks=4, gradients="sum")[0]
    arrays = None
    for size, first, last in ((4, 0, 3), (2, 3, 5), (3, 5, 8), (1, 8, 10)):
        arrays = on_ranks(size, stretch(first, last, arrays), blocks=4, gradients="sum")[0]
    assert arrays is not None
    assert_same_rows(whole, arrays)


def test_tiers_of_a_gpu_are_refused() -> None:
    """Initial values of rows would follow from numbers within a rank's share."""

    def build(ranks: Ranks) -> None:
        with pytest.raises(ConfigError, match="2 ranks work with device tiers in main memory"):
            TieredEmbeddingBag(TABLES, TierConfig(device="cpu-torch"), policy=LFU(), optimizer=SGD(lr=0.5), ranks=ranks)

    on_ranks(2, build)
