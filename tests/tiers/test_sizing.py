"""How many slots a size means, and that the text says why."""

import pytest
from helpers import LFU, bags, featured, rows_held

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.errors import ConfigError
from adaptive.policy import Policy
from adaptive.rows.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.tiers.layout import make_groups
from adaptive.tiers.sizing import Sizes, choose_slots, held_rows, hot_rows, row_bytes
from policies.device import Device
from policies.hybrid import Hybrid
from policies.lru import LRU

NARROW = TableConfig(name="narrow", num_embeddings=1000, embedding_dim=4)
WIDE = TableConfig(name="wide", num_embeddings=500, embedding_dim=16)


def chosen(
    *tables: TableConfig,
    policy: Policy | None = None,
    optimizer: RowOptimizer = SGD(),  # noqa: B008 (immutable)
    **tier: object,
) -> Sizes:
    return choose_slots(make_groups(tables, 0), TierConfig.model_validate(tier), optimizer, policy or LRU())


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
        ("auto", 100),
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


def test_per_cent_apply_to_every_width() -> None:
    assert chosen(NARROW, WIDE, device_rows="10%").slots == (100, 50)


def test_bytes_are_shared_out_by_bytes() -> None:
    """16,000 and 32,000 bytes: a budget of 4,800 gives a tenth of each."""
    assert chosen(NARROW, WIDE, device_rows="4800B").slots == (100, 50)


def test_shares_do_not_exceed_the_budget() -> None:
    for budget in range(0, 48_001, 997):
        narrow, wide = chosen(NARROW, WIDE, device_rows=f"{budget}B").slots
        assert 16 * narrow + 64 * wide <= budget


def test_a_number_of_rows_is_shared_out_by_rows() -> None:
    assert chosen(NARROW, WIDE, device_rows="300").slots == (200, 100)
    assert chosen(NARROW, WIDE, device_rows="1500").slots == (1000, 500)
    assert chosen(NARROW, WIDE, device_rows="1").slots == (1, 1), "no group goes without, if any slot is wanted"


def test_auto_is_a_tenth_or_what_the_look_ahead_must_hold() -> None:
    tenth = chosen(NARROW, held_rows=50)
    assert tenth.slots == (100,)
    assert tenth.text == "device tier: 100 of 1,000 rows, 0.0 MiB (auto: 10% of the rows)"
    held = chosen(NARROW, held_rows=300)
    assert held.slots == (300,)
    assert "auto: what the look-ahead must hold (about 300 rows)" in held.text
    assert chosen(NARROW, held_rows=5000).slots == (1000,)


def test_a_policy_may_know_its_size() -> None:
    everything = chosen(NARROW, policy=Device())
    assert everything.slots == (1000,)
    assert "policy Device needs 100%" in everything.text
    assert chosen(NARROW, policy=Hybrid()).slots == (0,)
    assert chosen(NARROW, policy=Device(), device_rows="100%").slots == (1000,)


def test_a_size_against_the_policys_own_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"tier.device_rows=10%: policy Hybrid needs 0; leave it at auto"):
        chosen(NARROW, policy=Hybrid(), device_rows="10%")


def test_a_size_as_set_is_called_so() -> None:
    assert chosen(NARROW, policy=LFU(), device_rows="25%").text.endswith("250 of 1,000 rows, 0.0 MiB (as set)")


def test_held_rows_are_those_of_the_largest_batch_for_each_batch_in_flight() -> None:
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
    sizes = {"auto": 50, "5%": 50, "7": 7, "160B": 10, "0": 1}
    for text, rows in sizes.items():
        assert hot_rows(group, SkipConfig(hot_rows=text), SGD()) == rows
