"""Skipped gradients and cached vectors are not sent between ranks, which changes no bit."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contract import Carrying
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.helpers import random_batches, step_all
from support.rank_cases import OPTIMIZERS, TABLES, Case, assert_equal_on
from support.thread_ranks import on_ranks

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.counters import Counter
from adaptive.embeddings.exchange.payload import HostPayload
from adaptive.embeddings.exchange.row_cache import FORGET, CacheDirectory, RowCache, SkipMasks, pack_masks, unpack_masks
from adaptive.embeddings.planning.layout import make_groups
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import RanksError
from adaptive.optim import SGD, Adagrad
from adaptive.policies.lfu import LFU

WATCHED = SkipConfig(interval=2, hot_rows="100%", min_accesses=2, feedback_delay=4)
POLICIES: dict[str, Callable[[], Any]] = {
    "defer": lambda: Carrying(spec="support.skip_rules:Waits+most=4+warmup=2"),
    "skip": lambda: Carrying(spec="support.skip_rules:Skips+warmup=2"),
    "skip all": lambda: Carrying(spec="support.skip_rules:Skips+bound=1e9+warmup=2"),
    "off": LFU,
}
BATCHES = tuple(random_batches(TABLES, 30, samples=11, seed=3))


def of_all(ranks: list[RankTraffic], name: str) -> int:
    return sum(getattr(one, name) for one in ranks)


@pytest.mark.nightly
@pytest.mark.parametrize("rule", POLICIES)
def test_what_does_not_cross_changes_no_bit(rule: str) -> None:
    results = assert_equal_on([2, 3], 3, Case(BATCHES, Adagrad(lr=0.1), POLICIES[rule], skip=WATCHED))
    for ranks in results.values():
        assert (of_all(ranks, "answers") > 0) == (rule != "off")
        assert (of_all(ranks, "vectors_spared") > 0) == (rule != "off")
        assert (of_all(ranks, "gradients_spared") > 0) == (rule in ("skip", "skip all"))


@pytest.mark.nightly
@settings(
    max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(st.data())
def test_drawn_skipping(data: st.DataObject) -> None:
    """For any skipping, watching, look-ahead and residency: the bits of one rank."""
    draw = data.draw
    batches = tuple(random_batches(TABLES, draw(st.integers(5, 40)), seed=draw(st.integers(0, 99)), samples=7))
    hot = draw(st.sampled_from(["100%", "20", "5"]))  # of each rank: only a set that is not full sees the same rows
    skip = replace_skip(hot_rows=hot, interval=draw(st.integers(1, 4)), feedback_delay=draw(st.integers(1, 6)))
    deepest = min(skip.feedback_delay, 4)  # a deeper look-ahead learns later how far rows have moved
    blocks = draw(st.integers(2, 5)) if hot == "100%" else 2
    assert_equal_on(
        [draw(st.integers(2, blocks))] if hot == "100%" else [],
        blocks,
        Case(
            batches,
            draw(st.sampled_from(OPTIMIZERS)),
            POLICIES[draw(st.sampled_from(sorted(POLICIES)))],
            depth=min(deepest, 2),
            skip=skip,
        ),
        wire=draw(st.sampled_from(["fp32", "bf16"])),
        depth=draw(st.integers(0, deepest)),
        tier=TierConfig(device_rows=draw(st.sampled_from(["60%", "100%"])), poison=True),
    )


def replace_skip(**changes: Any) -> SkipConfig:
    return WATCHED.model_copy(update=changes)


# --- a slow twin: without answers, everything crosses ---------------------------------------------------------------


@pytest.fixture
def everything_crosses(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Owners say nothing when it is called: what they left out crosses, and is not used."""
    return lambda: monkeypatch.setattr(
        CacheDirectory, "masks_of", lambda self, plan, lookups, sizes, hot: SkipMasks.nothing(int(sizes.sum()))
    )


@pytest.mark.nightly
@pytest.mark.parametrize("rule", ["defer", "skip"])
def test_a_set_that_lets_rows_go_is_no_exception(rule: str, everything_crosses: Callable[[], None]) -> None:
    """Rows come for a while and never again; sets are full. The same bits with answers and without."""
    batches = tuple(batch for seed in range(4) for batch in shifted(random_batches(TABLES, 40, samples=8), 50 * seed))
    skip = replace_skip(hot_rows="12", interval=1)
    case = Case(batches, Adagrad(lr=0.1), POLICIES[rule], skip=skip, depth=3)
    with_answers = on_ranks(2, case.train, gradients="sum")
    everything_crosses()
    without = on_ranks(2, case.train, gradients="sum")
    for one, other in zip(with_answers, without, strict=True):
        assert one[3].vectors < other[3].vectors and other[3].answers == 0
        assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0])
        assert one[2] == other[2]
        assert all(np.array_equal(one[1][name], other[1][name], equal_nan=True) for name in one[1])


def shifted(batches: list[Batch], by: int) -> list[Batch]:
    sizes = [table.num_embeddings for table in TABLES for _ in table.feature_names]
    results = []
    for batch in batches:
        limits = np.repeat(sizes, np.diff(batch.offsets[:: batch.num_samples]))
        results.append(replace(batch, ids=(batch.ids + by) % limits))
    return results


def test_rows_loaded_between_two_loops_are_sent_again() -> None:
    """Vectors that ranks keep are those of the loop that runs."""
    tables = [TableConfig(name="t", num_embeddings=40, embedding_dim=4)]
    batches = random_batches(tables, 12, samples=6, max_bag=3)

    def work(ranks: Ranks) -> tuple[list[np.ndarray], RankTraffic]:
        embeddings = TieredEmbeddingBag(
            tables, policy=POLICIES["skip all"](), optimizer=SGD(lr=0.1), skip=WATCHED, ranks=ranks
        )
        seen = []
        for value in (1.0, 2.0):
            for planned in embeddings.look_ahead(batches, depth=2):
                pooled = embeddings.stack(planned)
                pooled.sum().backward()
                embeddings.step()
            seen.append(pooled.detach().numpy().copy())
            embeddings.rows.load_table("t", np.full((40, 4), value, np.float32))
        for planned in embeddings.look_ahead(batches[:1], depth=0):
            assert np.allclose(embeddings.stack(planned).detach().numpy()[:, 0, 0], np.diff(batches[0].offsets) * 2.0)
            embeddings.discard()
        return seen, ranks.traffic()

    assert all(results[1].vectors_spared > 0 for results in on_ranks(2, work))


# --- rules left out: some training shows it -------------------------------------------------------------------------


class _Forgetful(RowCache):
    """Does not replace cached vectors."""

    def put(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        there = set(self._keys.tolist())
        new = np.array([row not in there for row in rows.tolist()], bool)
        super().put(rows[new], vectors[new])


def test_an_owner_that_does_not_see_rows_change_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CacheDirectory.masks_of

    def careless(self: CacheDirectory, *arguments: Any) -> SkipMasks:
        has = self._has.copy()
        results = before(self, *arguments)
        if len(has):
            self._has |= has
        return results

    monkeypatch.setattr(CacheDirectory, "masks_of", careless)
    with pytest.raises(AssertionError):
        assert_equal_on([2], 2, Case(BATCHES, Adagrad(lr=0.1), POLICIES["defer"], skip=WATCHED))


def test_an_asker_that_keeps_old_vectors_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.embeddings.exchange.rank_exchange.RowCache", _Forgetful)
    with pytest.raises(AssertionError):
        assert_equal_on([2], 2, Case(BATCHES, Adagrad(lr=0.1), POLICIES["defer"], skip=WATCHED))


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_bytes_of_gradients_fall_by_the_share_that_is_left_out() -> None:
    """Of the requests for rows of other ranks, a share s is of rows that are left out: 1 - s of the gradients cross."""
    tables = [TableConfig(name="t", num_embeddings=300, embedding_dim=16)]
    rng = np.random.default_rng(0)
    ids = [rng.zipf(1.2, (2, 64)) % 300 for _ in range(40)]

    def work(ranks: Ranks) -> tuple[RankTraffic, np.ndarray]:
        embeddings = TieredEmbeddingBag(
            tables, policy=POLICIES["skip all"](), optimizer=SGD(lr=0.1), skip=WATCHED, ranks=ranks
        )
        step_all(embeddings, [Batch.of(t=one[ranks.rank], labels=np.zeros(64)) for one in ids], depth=4)
        return ranks.traffic(), embeddings.statistics.counts()

    results = on_ranks(2, work)
    traffic = [one for one, _ in results]
    whole = 64 * of_all(traffic, "rows_asked")
    assert of_all(traffic, "gradients") + of_all(traffic, "gradients_spared") == whole
    assert of_all(traffic, "vectors") + of_all(traffic, "vectors_spared") == whole
    assert sum(counts[Counter.SKIPPED_UPDATES] for _, counts in results) > 0
    assert of_all(traffic, "gradients") < 0.75 * whole and of_all(traffic, "vectors") < 0.8 * whole
    bits = 8 * of_all(traffic, "answers") / of_all(traffic, "rows_asked")
    assert bits < 4.5  # three bits a request, and what is rounded up to bytes


# --- messages --------------------------------------------------------------------------------------------------------


def bools(draw: Any, number: int) -> np.ndarray:
    return np.array(draw(st.lists(st.booleans(), min_size=number, max_size=number)), np.bool_)


@given(st.data())
def test_answers_come_back_as_they_were(data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
    given_ = [SkipMasks(*(bools(data.draw, number) for _ in range(3))) for number in numbers]
    forget = data.draw(st.booleans())
    message = pack_masks(given_, forget=forget)
    says = any(plane.any() for one in given_ for plane in one)
    assert (len(message) > 0) == says
    results, forgets = unpack_masks(message, numbers, "rank 1")
    assert forgets == (forget and says)
    for one, other in zip(given_, results, strict=True):
        assert all(map(np.array_equal, one, other))


@given(st.binary(min_size=1, max_size=9), st.lists(st.integers(0, 20), min_size=1, max_size=3))
def test_bytes_that_are_no_answers_are_refused(message: bytes, numbers: list[int]) -> None:
    planes = [bin(message[0] % FORGET).count("1") * ((number + 7) // 8) for number in numbers[:1]]
    if len(numbers) == 1 and len(message) == 1 + planes[0]:
        assert len(unpack_masks(np.frombuffer(message, np.uint8), numbers, "rank 1")[0][0].cached) == numbers[0]
    elif len(numbers) == 1:
        with pytest.raises(RanksError, match="answers of rank 1: expected"):
            unpack_masks(np.frombuffer(message, np.uint8), numbers, "rank 1")
    else:
        with contextlib.suppress(RanksError):
            results, _ = unpack_masks(np.frombuffer(message, np.uint8), numbers, "rank 1")
            assert [len(one.cached) for one in results] == numbers


def test_flags_of_an_answer() -> None:
    """Written out: two groups, of which the second has nothing to say."""
    yes, no = np.array([True] + [False] * 8), np.zeros(9, np.bool_)
    message = pack_masks([SkipMasks(no, yes, no), SkipMasks.nothing(3)], forget=True)
    assert message.tolist() == [2 | FORGET, 128, 0, FORGET]


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(0, 1, width=32)), max_size=60), st.integers(1, 9))
def test_copies_are_a_dictionary(puts: list[tuple[int, float]], at_once: int) -> None:
    payload = on_ranks(1, lambda ranks: HostPayload(ranks, make_groups(TABLES, 0), rounds=False))[0]
    copies, twin = RowCache(2, payload), {}
    for first in range(0, len(puts), at_once):
        rows = {10**12 + row: value for row, value in puts[first : first + at_once]}
        twin.update(rows)
        vectors = np.array([[value, -value] for value in rows.values()], np.float32)
        copies.put(np.array(list(rows), np.int64), vectors)
    results = copies.get(np.array(list(twin), np.int64))
    assert results[:, 0].tolist() == list(twin.values())
    copies.forget()
    assert copies.get(np.zeros(0, np.int64)).shape == (0, 2)
