"""Numbered batches before the look-ahead: read during training, yielded once, over several passes."""

import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guarded_policies import DropHalf, Freeze, Plain
from support.toy_runs import nothing_is_left_behind  # noqa: F401 (fixture)

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import TrainConfig
from adaptive.data.data_options import SyntheticConfig
from adaptive.data.synthetic.synthetic_stream import Synthetic
from adaptive.errors import InputError
from adaptive.policy import SkipRule
from adaptive.training.guard.stream import Inputs, NumberedBatches
from adaptive.training.runs import train_run, training

SIZES = [4, 4, 4, 2]


def batches(sizes: list[int] = SIZES) -> Iterator[Batch]:
    """Batch i has the id i in all its samples."""
    for number, size in enumerate(sizes):
        ids = np.full((size, 1), number)
        yield one_hot_batch(np.zeros((size, 1), np.float32), ids, np.zeros(size, np.float32))


def number_of(batch: Batch | None) -> int | None:
    return None if batch is None else int(batch.ids[0])


@given(st.lists(st.tuples(st.sampled_from(["take", "get", "coming", "forget"]), st.integers(0, 12)), max_size=40))
def test_batches_come_in_order_for_any_calls_in_between(calls: list[tuple[str, int]]) -> None:
    stream, taken, oldest = NumberedBatches(batches([3] * 8), Plain()), [], 0
    for call, number in calls:
        if call == "take":
            taken.append(number_of(next(stream, None)))
        elif call == "get" and number >= oldest:
            assert number_of(stream.get(number)) == (number if number < 8 else None)
        elif call == "coming" and number >= oldest:
            found = [number_of(batch) for batch in stream.coming(number, 7)]
            assert found == list(range(number, min(number + 3, 8)))
        elif call == "forget":
            stream.forget(number)
            oldest = max(oldest, min(number, stream.taken - 1))
    taken += [number_of(batch) for batch in stream]
    assert [number for number in taken if number is not None] == list(range(8))


def test_numbers_go_on_in_the_next_pass() -> None:
    stream = NumberedBatches(batches(), Plain(), first=10)
    assert number_of(stream.get(11)) == 1 and stream.taken == 10
    assert [number_of(next(stream)), number_of(next(stream))] == [0, 1]
    assert stream.taken == 12 and stream.place(4) == 11 and stream.place(8) == 12
    assert stream.inputs(12) == Inputs(8, 8)


def test_the_place_of_trained_samples() -> None:
    stream = NumberedBatches(batches(), Plain())
    list(stream)
    assert [stream.place(samples) for samples in (4, 8, 12, 14)] == [1, 2, 3, 4]
    assert [stream.inputs(number).seen for number in (1, 2, 3, 4)] == [4, 8, 12, 14]
    stream.forget(2)
    assert [stream.place(samples) for samples in (8, 12, 14)] == [2, 3, 4]
    assert stream.inputs(2) == Inputs(8, 8)


class DropAllOfSome(SkipRule):
    """Keeps the first three samples of each batch, and none of batch 1; passes on batches of 3."""

    drops_inputs = True

    def visits(self, rows):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def arrange(self, batches, view=None):  # type: ignore[no-untyped-def]
        for number, batch in enumerate(batches):
            self.seen_inputs += batch.num_samples
            kept = 0 if number == 1 else min(batch.num_samples, 3)
            self.dropped_inputs += batch.num_samples - kept
            if kept:
                yield batch.take(np.arange(kept))


def test_the_place_where_inputs_are_dropped() -> None:
    """3 samples of batch 0, none of batch 1, 3 of batch 2, 2 of batch 3. What is not needed yet does not count."""
    policy = Plain()
    policy.rule = rule = DropAllOfSome()
    rule.seen_inputs, rule.dropped_inputs = 100, 40  # from an earlier pass
    stream = NumberedBatches(batches(), policy)
    arranged = rule.arrange(stream)
    found = []
    for trained in (3, 6, 8):
        next(arranged)
        found.append((stream.place(trained), stream.inputs(stream.place(trained))))
    assert found == [(1, Inputs(4, 3)), (3, Inputs(12, 6)), (4, Inputs(14, 8))]
    assert [stream.place(trained) for trained in (3, 6)] == [1, 3]  # the same however far the look-ahead is


def test_an_allowance_is_set_when_its_batch_is_taken() -> None:
    policy = DropHalf()
    stream = NumberedBatches(batches(), policy)
    assert stream.switch(1, 0.25) == 1
    next(stream)
    assert policy.rule.allowance == 1
    stream.get(3)  # read ahead, not taken
    assert policy.rule.allowance == 1
    next(stream)
    assert policy.rule.allowance == 0.25
    assert stream.switch(0, 0.0) == 2  # batches 0 and 1 are in flight
    next(stream)
    assert policy.rule.allowance == 0


def spoilt() -> Iterator[Batch]:
    yield from batches([4, 4])
    raise InputError("line 9 is bad")


def test_an_error_of_the_source_comes_in_its_turn() -> None:
    stream = NumberedBatches(spoilt(), Plain())
    assert len(stream.coming(0, 100)) == 2 and stream.get(2) is None
    assert [number_of(next(stream)), number_of(next(stream))] == [0, 1]
    for _ in range(2):
        with pytest.raises(InputError, match="line 9"):
            next(stream)


def test_nothing_is_remembered_that_was_forgotten() -> None:
    stream = NumberedBatches(batches([2] * 100), Plain())
    for number, _ in enumerate(stream):
        stream.forget(number)
        assert len(stream._batches) <= 2 and len(stream._inputs) <= 2


@pytest.mark.parametrize("behind", [0, 3])
def test_two_threads(behind: int) -> None:
    stream = NumberedBatches(batches([2] * 500), Plain())
    taken: list[int | None] = []
    thread = threading.Thread(target=lambda: taken.extend(number_of(batch) for batch in stream))
    thread.start()
    asked = []
    for number in range(500):
        asked.append(number_of(stream.get(number)))
        if behind:
            stream.forget(number - behind)
    thread.join()
    assert taken == asked == list(range(500)) and stream.get(500) is None


def test_the_training_thread_does_not_wait_while_a_batch_is_read() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Batch]:
        for number, batch in enumerate(batches()):
            if number == 2:
                reading.set()
                assert go_on.wait(600)
            yield batch

    policy = Freeze()
    stream = NumberedBatches(slow(), policy)
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    assert reading.wait(600)
    assert stream.place(4) == 1 and stream.inputs(2) == Inputs(8, 8)
    stream.forget(1)
    assert stream.switch(3, 0.5) == 3 and number_of(stream.get(1)) == 1
    go_on.set()
    thread.join()
    assert stream.taken == 4 and policy.rule.allowance == 0.5


def test_a_batch_that_two_threads_want_is_read_once() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[Batch]:
        reading.set()
        assert go_on.wait(600)
        yield from batches()

    stream = NumberedBatches(slow(), Plain())
    threads = [threading.Thread(target=stream.get, args=(0,)) for _ in range(2)]
    threads[0].start()
    assert reading.wait(600)
    threads[1].start()
    threads[1].join(0.1)  # it comes to the lock
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(stream._batches) == 1


BUDGET = 0.0005
MODEL = {"embedding_dim": 8, "bottom_mlp": (32, 8), "top_mlp": (1,)}
PLAIN: dict[str, Any] = {"policy": "lfu"}
DEFER: dict[str, Any] = {"policy": "lfu", "skip": {"rule": "defer"}}
FREEZE: dict[str, Any] = {"policy": "lfu", "skip": {"rule": "updates+threshold=1+probe_every=0"}}
SOME: dict[str, Any] = {"policy": "lfu", "skip": {"rule": "updates+target_skip=0.4"}}
INPUTS: dict[str, Any] = {"policy": "random_drop", "policy_options": {"share": 0.5}}
DROPPING = {"freeze": FREEZE, "some": SOME, "inputs": INPUTS}


class Setting:
    """Runs on one stream, each with the same data."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 0, **stream: Any) -> None:
        self.out, self.seed = out, seed
        self.plain: float | None = None  # AUC of skipping nothing
        self.latest: dict[str, Any] = {}
        self.data = Synthetic(SyntheticConfig(seed=seed, **stream))
        monkeypatch.setattr(training, "open_data", lambda *_: self.data)

    def train(self, guard: dict[str, Any] | None, **changed: Any) -> dict[str, Any]:
        given = {
            "model_options": MODEL,
            "batch_size": 512,
            "log_every": 100,
            "tensorboard": False,
            "save": False,
            "seed": self.seed,
            "tier": {"device_rows": "100%"},
            "optimizer": {"lr": 0.1},
            "guard": guard,
            "out": str(self.out),
        }
        return train_run(TrainConfig.model_validate(given | changed), overwrite=True)

    def cost(self, guard: dict[str, Any] | None, **changed: Any) -> float:
        """How much lower the AUC is than that of skipping nothing."""
        if self.plain is None:
            self.plain = self.train(None, **PLAIN)["auc"]
        self.latest = self.train(guard, **changed)
        return float(self.plain - self.latest["auc"])


@pytest.mark.nightly
@pytest.mark.parametrize("drift_at", [None, 0.6])
def test_a_short_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drift_at: float | None) -> None:
    """Batches of 512, 120 of them; the drift comes after the first check."""
    stream = Setting(tmp_path, monkeypatch, rows=100_000, num_train=61_440, num_eval=20_000, drift_at=drift_at)
    skip = {"interval": 8, "min_visits": 1, "min_accesses": 8, "feedback_delay": 4}
    freeze = {**FREEZE, "skip": {**skip, "rule": f"{FREEZE['skip']['rule']}+warmup=0"}}
    guard = {"budget": BUDGET, "warmup": 16, "steps": 32, "holdout": 10_000}
    assert drift_at is None or stream.cost(None, **freeze) > 10 * BUDGET
    assert stream.cost(guard, **freeze) == 0


GUARD = {"budget": BUDGET, "warmup": 300, "steps": 300, "every": 1000}
LONG: dict[str, Any] = {"num_train": 1_024_000, "num_eval": 200_000}  # 2,000 batches


@pytest.mark.nightly
@pytest.mark.parametrize("drift_at", [None, 0.5])
@pytest.mark.parametrize("setting", ["easy", "hard"])
def test_long_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, drift_at: float | None) -> None:
    """What is dropped costs no more than the budget, nor what is deferred, in the mean of three streams.

    The model has a single layer on top. With three, training itself is too rough a scale: on the hard stream with a
    drift two runs of 3,000 batches that skip nothing, and whose learning rates differ by 1 in 10^5, end 0.002 of AUC
    apart; with one, 0.00001.
    """
    deferred = []
    for seed in range(3):
        stream = Setting(tmp_path, monkeypatch, seed=seed, setting=setting, drift_at=drift_at, **LONG)
        deferred.append(stream.cost(GUARD, **DEFER))
        assert stream.latest["skipped_update_share"] > (0.35 if drift_at is None else 0.2)
        if not seed:
            assert stream.cost(None, **FREEZE) > 10 * BUDGET
            costs = {name: stream.cost(GUARD, **policy) for name, policy in DROPPING.items()}
    assert {name: cost for name, cost in costs.items() if cost > BUDGET} == {}
    assert statistics.fmean(deferred) <= BUDGET, deferred
