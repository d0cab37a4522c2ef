"""Slots are shared among widths by demand, and rebalancing them changes no number."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import LFU, Windowed, one_table, random_batches, rows_held, step_all, sum_of, train, train_slowly

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.engine import lookahead
from adaptive.embeddings.engine.between_batches import rebalance_slots
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import DeviceMemoryError
from adaptive.optim import SGD, Adagrad, Adam
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

USER = TableConfig(name="user", num_embeddings=100_000, embedding_dim=32)
CATEGORY = TableConfig(name="category", num_embeddings=500, embedding_dim=8)


def clicks(count: int, size: int = 512) -> list[Batch]:
    """Users by popularity, categories as they come."""
    random = np.random.default_rng(0)
    batches = []
    for _ in range(count):
        ids = np.stack([random.zipf(1.2, size) % 100_000, random.integers(0, 500, size)], axis=1)
        batches.append(one_hot_batch(np.zeros((size, 0), np.float32), ids, np.zeros(size, np.float32)))
    return batches


def trained(
    device_rows: str, batches: Sequence[Batch], depth: int = 4, device: str = "cpu"
) -> tuple[TieredEmbeddingBag, dict[str, object]]:
    tier = TierConfig.model_validate({"device_rows": device_rows, "poison": True, "device": device})
    embeddings = TieredEmbeddingBag([USER, CATEGORY], tier, policy=LFU, optimizer=Adagrad(lr=0.1))
    step_all(embeddings, batches, depth=depth)
    return embeddings, dict(embeddings.rows.state_arrays())


@pytest.mark.parametrize("device_rows", ["auto", "10%", "5%", "50%", "90%", "5000", "2MiB"])
def test_a_small_table_of_another_width_becomes_resident(device_rows: str) -> None:
    batches = clicks(8)
    _, everything = trained("100%", batches)
    for depth in (0, 4):
        embeddings, found = trained(device_rows, batches, depth)
        assert all(np.array_equal(found[name], everything[name]) for name in everything)
        slots = [tiered.device.num_slots for tiered in embeddings.runtime.pipeline.tiered_groups]
        if depth:
            assert slots[1] == 500, "all of it: batches ask for more than half"
        statistics = embeddings.statistics.take()
        assert statistics.resident_rows.tolist() == [
            int(tiered.planner.resident_per_table()[0]) for tiered in embeddings.runtime.pipeline.tiered_groups
        ]


def test_the_code_of_a_gpu_shares_them_too() -> None:
    batches = clicks(4)
    embeddings, found = trained("10%", batches, device="cpu-torch")
    _, everything = trained("100%", batches)
    assert all(np.array_equal(found[name], everything[name]) for name in everything)
    assert [tiered.device.num_slots for tiered in embeddings.runtime.pipeline.tiered_groups] == [9_550, 500]


def test_all_slots_together_stay_as_many_as_were_set() -> None:
    embeddings, _ = trained("10%", clicks(4))
    slots = [tiered.device.num_slots for tiered in embeddings.runtime.pipeline.tiered_groups]
    assert slots == [9_550, 500]
    assert embeddings.runtime.view.device_rows == 10_050
    assert "10,050 of 100,500 rows" in embeddings.statistics.device_rows_text()
    assert "rebalanced across widths according to demand" in embeddings.statistics.device_rows_text()


def test_a_share_that_fits_stays_what_it_is() -> None:
    embeddings, _ = trained("100%", clicks(2))
    assert embeddings.statistics.device_rows_text().endswith("(as set)")


def test_auto_grows_to_what_batches_ask_of_one_table() -> None:
    embeddings = one_table(100, "auto")
    step_all(embeddings, [clicks_of_one(40)] * 2, depth=1)
    assert embeddings.runtime.view.device_rows == 100, "two batches of 40 rows: more than half of the table"


def clicks_of_one(rows: int) -> Batch:
    ids = np.arange(rows)[:, None]
    return one_hot_batch(np.zeros((rows, 1), np.float32), ids, np.zeros(rows, np.float32))


def test_what_is_told_when_all_slots_together_are_too_few() -> None:
    embeddings = TieredEmbeddingBag([USER, CATEGORY], TierConfig(device_rows="300"))
    ids = np.stack([np.arange(200), np.arange(200) // 2], axis=1)
    batch = one_hot_batch(np.zeros((200, 0), np.float32), ids, np.zeros(200, np.float32))
    step_all(embeddings, [batch, batch, batch], depth=2)  # the same rows thrice fit
    other = one_hot_batch(batch.dense, ids + 200, batch.labels)
    with pytest.raises(DeviceMemoryError) as error:
        step_all(embeddings, [batch, other], depth=2)
    assert str(error.value) == (
        "batch 4: expected 600 device rows for the 3 batches in flight (400 of width 32 (most for table user, 200 a "
        "batch), 200 of width 8 (most for table category, 100 a batch)), got 300 (device_rows=300, policy LRU). Set "
        "device_rows to 900 (at least 600), or lower the batch size, or lower depth (now 2), or set "
        "tier.when_full=reduce_lookahead."
    )
    enough = TieredEmbeddingBag([USER, CATEGORY], TierConfig(device_rows="600"))
    step_all(enough, [batch, other], depth=2)


def test_rows_stay_when_other_slots_are_released() -> None:
    """Half of the small table, then all of it: users are on the device before and after."""
    embeddings = TieredEmbeddingBag([USER, CATEGORY], TierConfig(device_rows="1%", poison=True), policy=LFU)
    few = [one_hot_batch(np.zeros((3, 0), np.float32), np.array([[7, 1], [8, 2], [9, 3]]), np.zeros(3, np.float32))]
    step_all(embeddings, few)
    assert [tiered.device.num_slots for tiered in embeddings.runtime.pipeline.tiered_groups] == [1000, 5]
    ids = np.stack([np.arange(7, 107), np.arange(100)], axis=1)
    step_all(embeddings, [one_hot_batch(np.zeros((100, 0), np.float32), ids, np.zeros(100, np.float32))])
    assert [tiered.device.num_slots for tiered in embeddings.runtime.pipeline.tiered_groups] == [902, 103], (
        "103: what is left is shared, too"
    )
    assert embeddings.runtime.view.resident(np.array([7, 8, 9])).all()


def test_rows_evicted_for_a_batch_that_fails_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def pairs(size: int, categories: int) -> Batch:
        ids = np.stack([np.arange(size), np.arange(size) % categories], axis=1)
        return one_hot_batch(np.zeros((size, 0), np.float32), ids, np.zeros(size, np.float32))

    def rebalance_and_fail(pipeline: Pipeline, slots: Sequence[int]) -> None:
        rebalance_slots(pipeline, slots)
        raise RuntimeError("no more memory")

    embeddings = TieredEmbeddingBag([USER, CATEGORY], TierConfig(device_rows="1%"), policy=LFU)
    step_all(embeddings, [pairs(990, 3)])
    with monkeypatch.context() as patched:
        patched.setattr(lookahead, "rebalance_slots", rebalance_and_fail)
        with pytest.raises(RuntimeError, match="no more memory"):
            step_all(embeddings, [pairs(100, 100)])
    step_all(embeddings, [pairs(3, 3)])
    resident = [int(tiered.planner.resident_per_table()[0]) for tiered in embeddings.runtime.pipeline.tiered_groups]
    assert resident[0] < 990
    assert embeddings.statistics.take().resident_rows.tolist() == resident


@st.composite
def shares(draw: st.DrawFn) -> tuple[tuple[TableConfig, ...], list[Batch], int, int, type[Policy]]:
    """Tables of three widths, batches, a depth, and no more slots than just hold what is in flight."""
    sizes = draw(st.lists(st.integers(2, 40), min_size=3, max_size=3))
    tables = tuple(
        TableConfig(name=f"t{width}", num_embeddings=size, embedding_dim=width)
        for size, width in zip(sizes, (4, 8, 16), strict=True)
    )
    batches = random_batches(tables, 8, seed=draw(st.integers(0, 1000)), samples=draw(st.integers(1, 6)))
    depth = draw(st.integers(0, 3))
    least = sum(rows_held(tables, batches, depth).values())
    policy = draw(st.sampled_from([LRU, LFU, Windowed]))
    return tables, batches, depth, max(least, 6) + draw(st.sampled_from([0, 0, 1, 10])), policy


@pytest.mark.nightly
@settings(max_examples=40, deadline=None, derandomize=True)
@given(shares())
def test_as_many_slots_as_are_held_are_enough(
    drawn: tuple[tuple[TableConfig, ...], list[Batch], int, int, type[Policy]],
) -> None:
    tables, batches, depth, slots, policy = drawn
    tier = TierConfig(device_rows=str(slots), poison=True)
    embeddings = TieredEmbeddingBag(tables, tier, policy=policy, optimizer=Adam(lr=0.1))
    train(embeddings, tables, batches, depth).assert_equals(train_slowly(tables, batches, Adam(lr=0.1)))
    assert embeddings.runtime.view.device_rows <= slots + 2, "each width has a slot at least"


def test_lookahead_is_reduced_only_after_sharing() -> None:
    embeddings = TieredEmbeddingBag([USER, CATEGORY], TierConfig(device_rows="600", when_full="reduce_lookahead"))
    ids = np.stack([np.arange(200), np.arange(200) // 2], axis=1)
    batch = one_hot_batch(np.zeros((200, 0), np.float32), ids, np.zeros(200, np.float32))
    others = [one_hot_batch(batch.dense, ids + 200 * k, batch.labels) for k in range(2)]
    for planned in embeddings.look_ahead([batch, *others], depth=2):
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert embeddings.runtime.view.device_rows == 600


def test_skipping_decides_the_same_where_slots_are_shared_anew() -> None:
    """Feedback comes at its age: training caught up, and the books did not."""
    batches = clicks(12, size=128)

    def run(device_rows: str) -> dict[str, object]:
        tier = TierConfig(device_rows=device_rows)
        tables = [USER, CATEGORY.model_copy(update={"num_embeddings": 200})]
        lower = [one_hot_batch(b.dense, np.stack([b.ids[:128], b.ids[128:] % 200], 1), b.labels) for b in batches]
        embeddings = TieredEmbeddingBag(tables, tier, policy="lfu", optimizer=SGD(), skip="defer")
        step_all(embeddings, lower, depth=2)
        return dict(embeddings.rows.state_arrays())

    few, all_rows = run("1%"), run("100%")
    assert all(np.array_equal(few[name], all_rows[name], equal_nan=True) for name in all_rows)
