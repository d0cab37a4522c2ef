"""Hotline: what it learns and when, what comes first, and that a mini-batch stays the mini-batch it was."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from contract import row_stats
from numpy.typing import NDArray
from support.builders import View, batch_of

from adaptive import SGD, Policy, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.batch import Batch
from adaptive.policies.hotline import Hotline
from adaptive.policies.lru import LRU


def arranged_batches(policy: Hotline, *batches: Sequence[Sequence[int]]) -> list[Batch]:
    return list(policy.arrange((batch_of(ids) for ids in batches), View(device_rows=8)))


def arranged(policy: Hotline, *batches: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows of the first feature of each batch."""
    return [batch.ids[: batch.num_samples].tolist() for batch in arranged_batches(policy, *batches)]


def popular(policy: Hotline) -> list[int]:
    scores = policy.score(row_stats(100, step=1000, last_access=np.arange(100)))
    return np.flatnonzero(scores > 999).tolist()


LEARNT = [[5], [5], [6], [7]]


def test_the_frequent_rows_are_popular_once_learnt() -> None:
    policy = Hotline(learn=2, capacity=0.25)
    arranged(policy, LEARNT)
    assert popular(policy) == []
    arranged(policy, [[7], [7], [5], [8]])
    assert popular(policy) == [5, 7]
    assert policy.popular_rows == 2


@pytest.mark.parametrize(
    ("learn", "epoch", "found"),
    [("5%", 200, 10), ("5%", 50, 3), ("2.5%", 10, 1), ("100%", 7, 7), ("5%", None, 100), ("7", 200, 7), (7, 200, 7)],
)
def test_a_learning_phase_may_be_a_share_of_an_epoch(learn: int | str, epoch: int | None, found: int) -> None:
    policy = Hotline(learn=learn, capacity=0.25)
    policy.epoch_batches = epoch
    sizes = []
    batches = policy.arrange(iter([batch_of(LEARNT)] * 120), View(device_rows=8))
    for _ in batches:
        sizes.append(policy.popular_rows)
    assert sizes.index(2) == found - 1 and policy.learn == found


def test_a_share_is_of_the_epoch_in_which_it_began() -> None:
    """A run that is resumed may become longer."""
    policy, restored = Hotline(), Hotline()
    policy.epoch_batches, restored.epoch_batches = 40, 4000
    arranged(policy, LEARNT)
    state = policy.state_dict()
    restored.load_state_dict(state)
    arranged(restored, LEARNT)
    assert restored.learn == 2 and popular(restored) == [5, 6, 7]
    with pytest.raises(ValueError, match="not enough values"):
        restored.load_state_dict({**state, "seen": state["seen"][:3]})
    fresh = Hotline()
    fresh.load_state_dict(Hotline().state_dict())
    fresh.epoch_batches = 40
    arranged(fresh, LEARNT, LEARNT)
    assert fresh.learn == 2


def test_all_counted_rows_are_popular_while_they_fit() -> None:
    """Also rows that were counted once."""
    policy = Hotline(learn=1, capacity=1)
    arranged(policy, LEARNT)
    assert popular(policy) == [5, 6, 7]


def test_popular_rows_stay_and_of_the_others_the_most_recent() -> None:
    policy = Hotline(learn=1, capacity=0.25)
    arranged(policy, LEARNT)
    rows = row_stats(9, step=90, last_access=[9, 80, 40, 7, 6, 2, 30, 88, -1])  # 5 and 6 are popular
    assert np.argsort(policy.score(rows), kind="stable").tolist() == [8, 4, 3, 0, 2, 1, 7, 5, 6]


def test_popular_inputs_come_first_and_keep_their_order() -> None:
    policy = Hotline(learn=1, capacity=0.5)
    first, second = arranged(policy, LEARNT, [[9], [7], [50], [5], [6]])
    assert first == [5, 5, 6, 7]
    assert second == [7, 5, 6, 9, 50]
    assert (policy.seen_inputs, policy.popular_inputs) == (9, 7)


def test_popular_inputs_are_a_separate_part() -> None:
    batches = LEARNT, [[9], [7], [50], [5], [6]], [[5], [6]], [[50], [51]]
    policy = Hotline(learn=1, capacity=0.5)
    assert [batch.part_sizes for batch in arranged_batches(policy, *batches)] == [(), (3, 2), (), ()]
    together = Hotline(learn=1, capacity=0.5, micro_batches=False)
    assert [batch.part_sizes for batch in arranged_batches(together, *batches)] == [(), (), (), ()]


def logging(**options: Any) -> Hotline:
    """With the paper's logger; `View` has 8 device rows, so it has as many entries at most."""
    return Hotline(learn=2, logger="srrip", capacity=1, **options)


def test_with_the_logger_what_it_holds_is_popular() -> None:
    policy = logging()
    first, second, third = arranged(policy, [[5], [5], [6]], [[7], [7], [6]], [[9], [7], [8], [5], [6]])
    assert (first, second, third) == ([5, 5, 6], [7, 7, 6], [7, 5, 6, 9, 8])
    assert popular(policy) == [5, 6, 7]
    assert (policy.popular_rows, policy.seen_inputs, policy.popular_inputs) == (3, 8, 6)


def test_the_logger_is_limited_by_capacity_and_by_bytes() -> None:
    rows = [[row] for row in range(100)] * 2
    for options, entries in [({}, 8), ({"logger_bytes": 8}, 4), ({"logger_bytes": 2**40}, 8)]:
        policy = logging(**options)
        arranged(policy, rows)
        assert policy.state_dict()["learning"].shape == (entries // 4, 4)
    none = Hotline(learn=1, logger="srrip", capacity=0.4)  # 3 rows are no set
    assert arranged(none, LEARNT, LEARNT) == [[5, 5, 6, 7]] * 2
    assert none.popular_rows == 0


def test_the_logger_refuses_the_state_of_counters() -> None:
    with pytest.raises(ValueError, match="expected a state of learning, learnt, seen, got"):
        logging().load_state_dict(Hotline().state_dict())


def weights(policy: Policy, scale: float) -> NDArray[np.float32]:
    """A table after 30 mini-batches, each gradient row a multiple of `scale`."""

    def batches() -> Iterator[Batch]:
        random = np.random.default_rng(3)
        for _ in range(30):
            ids = random.zipf(1.4, (16, 2)) % 100
            yield batch_of(ids, ids[:, 0] % 4)

    table = TableConfig(name="t", num_embeddings=100, embedding_dim=4, features=("a", "b"), init_bound=0.0)
    tier = TierConfig(device_rows="80%", device="cpu", when_full="reduce_lookahead")
    embeddings = TieredEmbeddingBag([table], tier, policy=policy, optimizer=SGD(lr=0.5))
    for planned in embeddings.look_ahead(batches(), depth=2):
        for part in planned.parts():
            (embeddings.stack(part).sum((1, 2)) * part.labels * scale).sum().backward()  # type: ignore[no-untyped-call]
        embeddings.step()
    return embeddings.rows.table_weights("t")


def test_micro_batches_change_no_bit_where_sums_are_exact() -> None:
    """Gradients are small whole numbers: no order of summation rounds."""
    for policy in Hotline(learn=3), Hotline(learn=3, logger="srrip"):
        np.testing.assert_array_equal(weights(policy, 1.0), weights(LRU(), 1.0))
        assert 0 < policy.popular_inputs < policy.seen_inputs
