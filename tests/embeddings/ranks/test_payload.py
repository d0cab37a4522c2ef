"""Rows in flight, as bytes or from device to device: whole, rounded to bfloat16, or refused."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.thread_ranks import Town, on_ranks

from adaptive.config import TableConfig
from adaptive.embeddings.exchange.payload import DevicePayload, HostPayload, count_chosen
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.transport import Kind
from adaptive.embeddings.tiers.cpu_device import CpuDevice
from adaptive.embeddings.tiers.host import MemoryHost
from adaptive.errors import ConfigError, RanksError
from adaptive.kernels.vector.bfloat16 import widen
from adaptive.optim import SGD

GROUPS = make_groups([TableConfig(name=f"w{dim}", num_embeddings=9, embedding_dim=dim) for dim in (3, 2)], 0)


def exchanged(ranks: Ranks, rows: list[np.ndarray], counts: list[np.ndarray], *, rounds: bool) -> list[np.ndarray]:
    """Rank r gives `counts[g][s]` rows of group g to rank s: r + 10 s, and so on."""
    payload = HostPayload(ranks, GROUPS, rounds=rounds)
    results = ranks.rows.exchange(Kind.VECTORS, 0, payload.pack(rows, counts, Kind.VECTORS))
    back = ranks.gather_arrays(np.stack(counts)[:, None])
    mine = [np.array([its.reshape(2, -1)[g, ranks.rank] for its in back]) for g in range(2)]
    return payload.unpack(results, Kind.VECTORS, mine)


@pytest.mark.parametrize("rounds", [False, True])
def test_rows_come_rank_after_rank_group_by_group(*, rounds: bool) -> None:
    def work(ranks: Ranks) -> list[np.ndarray]:
        r = ranks.rank
        rows = [np.full((3, 3), r + 1.0, np.float32), np.full((2, 2), -r - 1.0, np.float32)]
        rows[0][1:] += 10
        return exchanged(ranks, rows, [np.array([1, 2]), np.array([2, 0])], rounds=rounds)

    one, other = on_ranks(2, work)
    assert one[0].tolist() == [[1.0] * 3, [2.0] * 3] and one[1].tolist() == [[-1.0] * 2] * 2 + [[-2.0] * 2] * 2
    assert other[0].tolist() == [[11.0] * 3] * 2 + [[12.0] * 3] * 2 and other[1].shape == (0, 2)


@given(arrays(np.uint32, (4, 3), elements=st.integers(0, 2**32 - 1)))
def test_bfloat16_is_the_nearest_ties_to_even(bits: np.ndarray) -> None:
    """Against the definition, written in whole numbers; NaN stays NaN."""
    values = bits.view(np.float32)

    def work(ranks: Ranks) -> np.ndarray:
        return exchanged(ranks, [values, np.zeros((0, 2), np.float32)], [np.array([4]), np.array([0])], rounds=True)[0]

    (results,) = on_ranks(1, work)
    wide = bits.astype(np.uint64)
    rounded = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    nan = np.isnan(values)
    assert np.array_equal(np.isnan(results), nan)
    assert np.array_equal(results[~nan].view(np.uint32), rounded[~nan].view(np.uint32))


def test_rows_of_bfloat16_tables_take_two_bytes_and_their_gradients_four() -> None:
    """Exactly; a table in float32 after an odd number of them keeps its bits."""
    tables = [TableConfig(name="h", num_embeddings=9, embedding_dim=3, dtype="bfloat16"),
              TableConfig(name="f", num_embeddings=9, embedding_dim=2)]  # fmt: skip
    groups, rng = make_groups(tables, 0), np.random.default_rng(0)
    rows = [widen(rng.integers(0, 2**14, (1, 3), np.uint16)), rng.normal(size=(2, 2)).astype(np.float32)]
    counts = [np.array([1]), np.array([2])]

    def work(ranks: Ranks) -> None:
        payload = HostPayload(ranks, groups, rounds=False)
        for kind, size in ((Kind.VECTORS, 1 * 3 * 2 + 2 * 2 * 4), (Kind.GRADIENTS, 1 * 3 * 4 + 2 * 2 * 4)):
            (part,) = parts = payload.pack(rows, counts, kind)
            assert len(part) == size
            for values, expected in zip(
                payload.unpack(ranks.rows.exchange(kind, 0, parts), kind, counts), rows, strict=True
            ):
                np.testing.assert_array_equal(values, expected)
                assert values.flags.aligned

    on_ranks(1, work)


def test_a_part_of_another_length_is_refused() -> None:
    def work(ranks: Ranks) -> None:
        payload = HostPayload(ranks, GROUPS, rounds=False)
        parts = payload.pack(
            [np.zeros((2, 3), np.float32), np.zeros((0, 2), np.float32)], [np.array([2]), np.array([0])], Kind.VECTORS
        )
        results = ranks.rows.exchange(Kind.VECTORS, 5, parts)
        with pytest.raises(RanksError, match=r"expected 36 bytes of rows from rank 0, got 24 \(vectors of batch 5"):
            payload.unpack(results, Kind.VECTORS, [np.array([3]), np.array([0])])

    on_ranks(1, work)


def test_an_unknown_wire_is_refused() -> None:
    wire: Literal["fp32", "bf16"] = "fp8"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="wire: expected fp32 or bf16, got 'fp8'"):
        on_ranks(1, lambda ranks: None, wire=wire)


def test_rows_that_do_not_cross_leave_gaps() -> None:
    chosen = np.array([True, False, False, True, True])
    assert count_chosen(np.array([2, 0, 3]), chosen).tolist() == [1, 0, 2]
    rows = np.array([[1.0], [2.0], [3.0]], np.float32)
    payload = on_ranks(1, lambda ranks: HostPayload(ranks, GROUPS, rounds=False))[0]
    assert payload.scatter(rows, chosen)[:, 0].tolist() == [1.0, 0.0, 0.0, 2.0, 3.0]
    assert payload.scatter(rows, None) is rows and count_chosen(np.array([3]), None).tolist() == [3]


# --- errors before anything is sent between devices ------------------------------------------------------------------


def values_of(ranks: Ranks) -> DevicePayload:
    device = CpuDevice(MemoryHost(GROUPS[0], SGD()), 1)
    return DevicePayload(ranks, GROUPS, device, torch.device("cpu"), rounds=False)


def test_rows_come_rank_after_rank_and_none_count_as_zeros() -> None:
    """Written out: rank 0 gives two rows of the first group to rank 1; rank 1 has nothing and says so."""

    def work(ranks: Ranks) -> list[list[list[float]]]:
        values, parts = values_of(ranks), None
        if ranks.is_first:
            rows = [torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.zeros((0, 2))]
            parts = values.pack(rows, [np.array([0, 2]), np.array([0, 0])], Kind.VECTORS)
        results = ranks.rows.exchange(Kind.GRADIENTS, 0, parts)
        mine = [np.array([0, 1]), np.array([0, 1])] if ranks.is_first else [np.array([2, 1]), np.array([0, 0])]
        return [one.tolist() for one in values.unpack(results, Kind.GRADIENTS, mine)]

    first, second = on_ranks(2, work, town=Town(2, values_on="cpu"))
    assert first == [[[0.0] * 3], [[0.0] * 2]]
    assert second == [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.0] * 3], []]


@pytest.mark.parametrize(("counted", "words"), [(2, "got 3"), (1, "got a message of 24 bytes")])
def test_other_numbers_are_refused_before_any_cross(counted: int, words: str) -> None:
    """More than are expected; and the rows themselves, of a rank that sends them over the host."""

    def work(ranks: Ranks) -> None:
        values = values_of(ranks)
        rows = [torch.zeros((1, 3)), torch.zeros((0, 2))]
        parts = values.pack(rows, [np.array([1]), np.array([0])], Kind.VECTORS)
        results = ranks.rows.exchange(Kind.VECTORS, 5, parts if counted == 2 else [np.zeros(24, np.uint8)])
        with pytest.raises(RanksError, match=rf"expected 6 numbers from rank 0, {words} \(vectors of batch 5"):
            values.unpack(results, Kind.VECTORS, [np.array([2]), np.array([0])])

    on_ranks(1, work, town=Town(1, values_on="cpu"))


def test_a_rank_that_is_gone_when_numbers_cross_is_told() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.is_first:
            with pytest.raises(
                RanksError, match=r"rank 0 of 2 .*: channel rows: expected vectors of batch 5.* gone or late"
            ):
                ranks.rows.swap_values(Kind.VECTORS, 5, torch.zeros(2), [1, 1], [1, 1])
            assert ranks.rows.over

    on_ranks(2, work, town=Town(2, values_on="cpu"))
