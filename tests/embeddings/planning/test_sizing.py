"""How many slots a size means, and that the text says why."""

import numpy as np
import pytest
from support.helpers import LFU, bags, featured, rows_held, step_all

from adaptive.batch import one_hot_batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.planning.sizing import (
    Sizes,
    choose_slots,
    held_rows,
    hot_rows,
    least_device_rows,
    reserve_bytes,
    row_bytes,
    sums_bytes,
)
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, DeviceMemoryError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.device import Device
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy

NARROW = TableConfig(name="narrow", num_embeddings=1000, embedding_dim=4)
WIDE = TableConfig(name="wide", num_embeddings=500, embedding_dim=16)


def chosen(
    *tables: TableConfig,
    policy: Policy | None = None,
    optimizer: RowOptimizer = SGD(),  # noqa: B008 (immutable)
    room: int | None = None,
    **tier: object,
) -> Sizes:
    return choose_slots(make_groups(tables, 0), TierConfig.model_validate(tier), optimizer, policy or LRU(), room)


@pytest.mark.parametrize(
    ("device_rows", "slots"),
    [
        ("0", 0),
        ("1", 1),
        ("250", 250),
        ("99999", 1000),  # never more than there are rows
        ("0%", 0),
        ("12.5%", 125),
        ("0.01%", 1),  # rounded up
        ("100%", 1000),
        ("1600B", 100),
        ("1615B", 100),  # whole rows
        ("auto", 1000),  # at least 100,000, if what must be held is not known
    ],
)
def test_one_table(device_rows: str, slots: int) -> None:
    assert chosen(NARROW, device_rows=device_rows).slots == (slots,)


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [(SGD(), 16), (Adagrad(), 32), (RowwiseAdagrad(), 20), (Adam(), 52)],
    ids=["sgd", "adagrad", "rowwise_adagrad", "adam"],
)
def test_bytes_count_the_state_that_travels_with_a_row(optimizer: RowOptimizer, size: int) -> None:
    assert row_bytes(make_groups([NARROW], 0)[0], optimizer) == size
    assert chosen(NARROW, optimizer=optimizer, device_rows=f"{100 * size}B").slots == (100,)


@pytest.mark.parametrize(
    ("device_rows", "slots"),
    [("10%", (89, 61)), ("4800B", (84, 54)), ("300", (178, 122)), ("1500", (1000, 500)), ("2", (1, 1)), ("0", (0, 0))],
)
def test_two_widths(device_rows: str, slots: tuple[int, int]) -> None:
    assert chosen(NARROW, WIDE, device_rows=device_rows).slots == slots


def test_shares_do_not_exceed_the_budget() -> None:
    for budget in range(997, 48_001, 997):
        narrow, wide = chosen(NARROW, WIDE, device_rows=f"{budget}B").slots
        assert 16 * narrow + 64 * wide <= budget


def test_auto_is_a_tenth_or_what_the_look_ahead_must_hold() -> None:
    tenth = chosen(NARROW, held_rows=50)
    assert tenth.slots == (100,)
    assert tenth.text == "device tier: 100 of 1,000 rows, 0.0 MiB (auto: 10% of the rows)"
    held = chosen(NARROW, held_rows=300)
    assert held.slots == (300,)
    assert "auto: the batches in flight need about 300 rows" in held.text
    assert chosen(NARROW, held_rows=5000).slots == (1000,)


def test_a_policy_may_know_its_size() -> None:
    everything = chosen(NARROW, policy=Device())
    assert everything.slots == (1000,)
    assert "policy Device needs 100%" in everything.text
    assert chosen(NARROW, policy=Hybrid()).slots == (0,)
    assert chosen(NARROW, policy=Device(), device_rows="100%").slots == (1000,)


def test_a_size_against_the_policys_own_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"tier.device_rows: expected 0 for policy Hybrid, got 10%. Leave it at auto"):
        chosen(NARROW, policy=Hybrid(), device_rows="10%")


def test_a_size_as_set_is_called_so() -> None:
    assert chosen(NARROW, policy=LFU(), device_rows="25%").text.endswith("250 of 1,000 rows, 0.0 MiB (as set)")


def test_held_rows_are_the_largest_batch_times_those_in_flight() -> None:
    sample = [bags([1, 1, 2]), bags([1, 2], [3, 2]), bags([4])]
    assert held_rows(sample, 0) == 3
    assert held_rows(sample, 4) == 15
    assert held_rows([], 4) == 0
    assert held_rows([featured([[1, 1], [2]], [[1], []])], 0) == 3  # counted per feature


def test_held_rows_are_enough() -> None:
    tables = [TableConfig(name="t", num_embeddings=100, embedding_dim=4)]
    sample = [bags(list(range(start, start + 9))) for start in (0, 5, 40, 70)]
    for depth in range(4):
        assert rows_held(tables, sample, depth)[4] <= held_rows(sample, depth)


def test_hot_rows() -> None:
    group = make_groups([NARROW], 0)[0]
    sizes = {"auto": 1000, "5%": 50, "7": 7, "160B": 10, "0": 1}
    for text, rows in sizes.items():
        assert hot_rows(group, SkipConfig(hot_rows=text), SGD()) == rows


@pytest.mark.parametrize(("rows", "hot"), [(7, 7), (99_999, 99_999), (1_000_000, 100_000), (4_000_000, 200_000)])
def test_hot_rows_by_default(rows: int, hot: int) -> None:
    group = make_groups([TableConfig(name="t", num_embeddings=rows, embedding_dim=4)], 0)[0]
    assert hot_rows(group, SkipConfig(), SGD()) == hot


# --- on a GPU --------------------------------------------------------------------------------------------------------

GIB = 1 << 30
BIG = TableConfig(name="big", num_embeddings=100_000_000, embedding_dim=64)  # 23.8 GiB
WIDER = TableConfig(name="wider", num_embeddings=50_000_000, embedding_dim=128)  # as many bytes


def test_auto_takes_what_is_free_but_a_reserve() -> None:
    sizes = chosen(BIG, room=10 * GIB)
    assert sizes.slots == (8 * GIB // 256,)
    assert sizes.text.endswith(
        "(auto: 10.00 GiB of GPU memory are free, of which 2.00 GiB are left to model and batches)"
    )


def test_every_width_gets_the_same_share_of_what_is_free() -> None:
    narrow, wide = chosen(BIG, WIDER, room=10 * GIB).slots
    assert narrow * 256 == pytest.approx(4 * GIB, rel=1e-6) and wide * 512 == pytest.approx(4 * GIB, rel=1e-6)


@pytest.mark.parametrize(
    "optimizer", [SGD(), Adagrad(), RowwiseAdagrad(), Adam()], ids=["sgd", "adagrad", "rowwise_adagrad", "adam"]
)
def test_memory_taken_is_what_was_set_within_three_per_cent(optimizer: RowOptimizer) -> None:
    groups = make_groups([BIG, WIDER], 0)
    for size in (GIB, 7 * GIB + 12345):
        slots = chosen(BIG, WIDER, optimizer=optimizer, device_rows=f"{size}B", room=80 * GIB).slots
        taken = sum(n * row_bytes(group, optimizer) for n, group in zip(slots, groups, strict=True))
        assert 0.97 * size < taken <= size


def test_auto_takes_all_rows_if_they_fit() -> None:
    sizes = chosen(BIG, room=80 * GIB)
    assert sizes.slots == (BIG.num_embeddings,)
    assert sizes.text.endswith("(auto: all rows fit in the 80.00 GiB of free GPU memory)")


def test_what_must_be_held_comes_before_the_reserve() -> None:
    sizes = chosen(BIG, room=10 * GIB, held_rows=9 * GIB // 256)
    assert sizes.slots == (9 * GIB // 256,)
    assert "the batches in flight need" in sizes.text


def test_more_to_be_held_than_is_free_is_an_error() -> None:
    with pytest.raises(DeviceMemoryError, match=r"11.92 GiB of free GPU memory .*50,000,000 rows.*, got 10.00 GiB"):
        chosen(BIG, room=10 * GIB, held_rows=50_000_000)


def test_a_size_as_set_does_not_look_at_what_is_free() -> None:
    for size in ("10%", "2GiB", "12345"):
        assert chosen(BIG, device_rows=size, room=GIB).slots == chosen(BIG, device_rows=size).slots


def test_the_reserve() -> None:
    assert [reserve_bytes(free * GIB) for free in (100, 3, 1)] == [20 * GIB, GIB, GIB // 2]


def test_bytes_of_sums() -> None:
    groups, skip = make_groups([NARROW, WIDE], 0), SkipConfig(hot_rows="10%")
    row = 4 * (100 * 4 + 50 * 16)
    assert sums_bytes(groups, skip, SGD()) == row
    assert sums_bytes(groups, skip, Adam()) == 2 * row + 4 * (100 + 50), "and a count"
    assert sums_bytes(groups, skip, Adagrad()) == 2 * row, "as many squares as sums"
    assert sums_bytes(groups, skip, RowwiseAdagrad()) == row + 4 * (100 + 50)


# --- several widths --------------------------------------------------------------------------------------------------


def test_a_small_width_gets_all_its_rows_and_the_rest_goes_by_features_and_rows() -> None:
    tables = [
        TableConfig(name=f"t{width}", num_embeddings=rows, embedding_dim=width)
        for width, rows in ((64, 1_000_000), (16, 100_000), (8, 1_000))
    ]
    small, middle, large = chosen(*tables, device_rows="10%").slots[::-1]
    assert small == 1000 and small + middle + large == 110_100
    assert middle > 27_000 < large, "half by features: (110,100 / 2 - 1,000) / 2 each"
    groups, needed = make_groups(tables, 0), [20_000, 30_000, 1000]
    enough = least_device_rows(groups, needed)
    assert all(n >= need for n, need in zip(chosen(*tables, device_rows=str(enough)).slots, needed, strict=True))


def test_three_widths_train_at_ten_percent_and_the_error_names_enough() -> None:
    """Popular users, and categories of which every batch has most."""
    tables = [
        TableConfig(name="user", num_embeddings=100_000, embedding_dim=16),
        TableConfig(name="shop", num_embeddings=5_000, embedding_dim=8),
        TableConfig(name="category", num_embeddings=500, embedding_dim=4),
    ]
    random = np.random.default_rng(0)
    ids = [np.stack([random.zipf(1.2, 512) % 100_000, *random.integers(0, [[5000], [500]], (2, 512))], axis=1)] * 3
    batches = [one_hot_batch(np.zeros((512, 0), np.float32), rows, np.zeros(512, np.float32)) for rows in ids]

    def train(device_rows: str) -> dict[str, object]:
        embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows=device_rows, poison=True), optimizer=Adagrad())
        step_all(embeddings, batches, depth=2)
        return dict(embeddings.rows.state_arrays())

    everything, tenth = train("100%"), train("10%")
    assert all(np.array_equal(tenth[name], everything[name]) for name in everything)
    with pytest.raises(DeviceMemoryError, match=r"of width 8 \(got \d+; most for table shop") as error:
        train("900")
    train(str(error.value).split("device_rows to at least ")[1].split(",")[0])
