"""Policies that follow accesses: what every policy would be told equals what the tiers hold, whoever decides."""

import numpy as np
import pytest
from contract import POLICIES, policy_id
from numpy.typing import NDArray
from support.builders import batch_of

from adaptive import Batch, SkipConfig, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.errors import PolicyError
from adaptive.policies.lru import LRU
from adaptive.policy import Follows, Policy, RowStats, TierView

TABLES = [
    TableConfig(name="narrow", num_embeddings=60, embedding_dim=2),
    TableConfig(name="wide", num_embeddings=200, embedding_dim=4),
    TableConfig(name="other", num_embeddings=30, embedding_dim=2),
]


def batches(count: int, seed: int = 3) -> list[Batch]:
    random = np.random.default_rng(seed)
    sizes = [table.num_embeddings for table in TABLES]
    return [batch_of(np.minimum(random.zipf(1.3, (12, 3)) - 1, 10**6) % sizes) for _ in range(count)]


class Diary(Follows):
    """Mixed into a policy, keeps what it is told and compares it with the tiers before each batch."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.there: set[int] = set()
        self.numbers: list[int] = []
        self.scored: list[int] = []
        self.moved = 0

    def looked_up(self, number: int, rows: NDArray[np.int64], view: TierView) -> None:
        super().looked_up(number, rows, view)
        every = np.arange(view.num_rows)
        assert set(every[view.resident(every)].tolist()) == self.there
        assert (np.diff(rows) > 0).all() and not rows.flags.writeable
        assert number not in self.scored, "told before it is asked"
        self.numbers.append(number)
        self.rows = set(rows.tolist())

    def evicted(self, number: int, rows: NDArray[np.int64]) -> None:
        super().evicted(number, rows)
        gone = set(rows.tolist())
        assert gone and gone <= self.there and (np.diff(rows) > 0).all()
        self.there -= gone
        self.moved += len(gone)

    def admitted(self, number: int, rows: NDArray[np.int64]) -> None:
        super().admitted(number, rows)
        coming = set(rows.tolist())
        assert coming and coming <= self.rows and not coming & self.there and (np.diff(rows) > 0).all()
        self.there |= coming
        self.moved += len(coming)

    def score(self, rows: RowStats) -> object:
        self.scored.append(rows.step)
        return super().score(rows)


def with_diary(cls: type[Policy]) -> type[Policy]:
    return type(cls.__name__, (Diary, cls), {"__init__": Diary.__init__})


def train(policy: Policy, given: list[Batch], depth: int, device_rows: str = "40%", **options: object) -> None:
    tier = TierConfig(device_rows=policy.device_rows or device_rows, device="cpu", when_full="reduce_lookahead")
    with TieredEmbeddingBag(TABLES, tier, policy=policy, **options) as embeddings:  # type: ignore[arg-type]
        embeddings.calibrate(given[:3])
        for planned in embeddings.look_ahead(given, depth=depth):
            sum(vectors.sum() for vectors in embeddings(planned).values()).backward()  # type: ignore[union-attr]
            embeddings.step()


@pytest.mark.parametrize("case", POLICIES, ids=policy_id)
def test_every_policy_is_told_what_the_tiers_hold(case: tuple[type[Policy], dict[str, object]]) -> None:
    cls, options = case
    policy = with_diary(cls)(**options)
    train(policy, batches(14), 2, skip=SkipConfig(interval=4, hot_rows="50%", feedback_delay=4))
    assert policy.numbers == list(range(len(policy.numbers))) and policy.numbers  # type: ignore[attr-defined]
    if cls.device_rows != "0":
        assert policy.moved  # type: ignore[attr-defined]


def test_rows_evicted_between_batches_are_passed_on_first() -> None:
    """When other rows are loaded: the diary compares."""
    policy = with_diary(LRU)()
    tier = TierConfig(device_rows="120", device="cpu")
    with TieredEmbeddingBag(TABLES, tier, policy=policy) as embeddings:
        for planned in embeddings.look_ahead(batches(20), depth=1):
            sum(vectors.sum() for vectors in embeddings(planned).values()).backward()  # type: ignore[union-attr]
            embeddings.step()
        embeddings.rows.load_state_arrays(embeddings.rows.state_arrays())
        for planned in embeddings.look_ahead(batches(5, seed=4), depth=1):
            embeddings(planned)


@pytest.mark.parametrize("method", ["looked_up", "evicted", "admitted"])
def test_a_method_that_fails_stops_training_before_any_row_moves(method: str) -> None:
    def fails(self: object, number: int, *rest: object) -> None:
        if number >= 12:
            raise ValueError("no idea")

    policy = type("Failing", (LRU, Follows), {method: fails})()
    tier = TierConfig(device_rows="40%", device="cpu")
    with TieredEmbeddingBag(TABLES, tier, policy=policy) as embeddings:
        resident = []

        def go_on() -> None:
            for planned in embeddings.look_ahead(batches(40), depth=0):
                resident.append(embeddings.runtime.view.resident(np.arange(290)))
                sum(vectors.sum() for vectors in embeddings(planned).values()).backward()  # type: ignore[union-attr]
                embeddings.step()

        with pytest.raises(PolicyError, match=rf"policy Failing\.{method} at batch 1[2-9] raised ValueError: no idea"):
            go_on()
        assert np.array_equal(embeddings.runtime.view.resident(np.arange(290)), resident[-1]), "books are as they were"


def test_an_answer_is_refused() -> None:
    policy = type("Answering", (LRU, Follows), {"admitted": lambda self, number, rows: rows})()
    with pytest.raises(PolicyError, match=r"Answering\.admitted at batch 0: expected None, got ndarray"):
        train(policy, batches(2), 0)


def test_what_is_handed_over_is_read_only() -> None:
    def writes(self: object, number: int, rows: NDArray[np.int64]) -> None:
        rows[:] = 0

    with pytest.raises(PolicyError, match="read-only"):
        train(type("Writing", (LRU, Follows), {"admitted": writes})(), batches(2), 0)
