"""FAE's test loss: what is held back, when it is measured and heard of, and that no timing can change a decision."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.builders import View
from support.helpers import bags, one_table, sum_of
from support.toy_runs import everything, parts_of

from adaptive.batch import Batch
from adaptive.errors import ConfigError
from adaptive.policies.fae import FAE, ShuffleScheduler, hold_back
from adaptive.policies.lru import LRU
from adaptive.policy import InputPolicy, TierView
from adaptive.training.evaluation import evaluate
from adaptive.training.trainer import Trainer

# --- what is held back -------------------------------------------------------------------------------------------


def test_one_input_in_some_is_held_back() -> None:
    batches = [bags([0], [1], [2]), bags([3], [4]), bags([5], [6], [7])]
    rest, held = hold_back(batches, 3)
    assert held is not None and held.ids.tolist() == [2, 5]
    assert [batch.ids.tolist() for batch in rest] == [[0, 1], [3, 4], [6, 7]]
    rest, held = hold_back([bags([0], [1])], 0)
    assert held is None and len(rest) == 1
    assert hold_back([bags([0], [1])], 3)[1] is None


def calibrated(**options: Any) -> FAE:
    """Of 100 rows it finds those below 10 hot."""
    policy = FAE(select="top", **{"measure_every": 1, **options})
    policy.calibrate([bags(*([row] for row in range(10)))], View())
    return policy


def stream(num_batches: int, size: int = 4) -> list[Batch]:
    """Half of the rows are hot; the dense input is the number of the sample."""
    random = np.random.default_rng(0)
    batches = [bags(*([int(row)] for row in random.permutation(20)[:size])) for _ in range(num_batches)]
    numbers = np.arange(num_batches * size, dtype=np.float32).reshape(num_batches, size, 1)
    return [replace(batch, dense=number) for batch, number in zip(batches, numbers, strict=True)]


def test_each_phase_is_measured_and_held_back_inputs_train_last() -> None:
    policy = calibrated(block=16, held_back=8)
    arranged = list(policy.arrange(iter(stream(32)), View()))
    held = list(range(7, 32, 8))  # every 8th input of the first phase
    asked = [place for place, batch in enumerate(arranged) if batch.held_back is not None]
    kinds = [bool((batch.ids < 10).all()) for batch in arranged]
    swaps = [place for place in range(len(kinds) - 1) if kinds[place + 1] != kinds[place]]
    assert len(asked) == 7 and asked[:-1] == swaps[:-1], "of 8 phases the last one is behind the last measurement"
    assert swaps[-2] < asked[-1] <= swaps[-1]
    for place in asked:
        sample = arranged[place].held_back
        assert sample is not None and sample.dense[:, 0].tolist() == held
    trained = [batch.dense[:, 0].astype(int).tolist() for batch in arranged]
    assert sorted(number for batch in trained for number in batch) == list(range(128)) and policy.seen_inputs == 128
    assert not {number for batch in trained[: asked[-1] + 1] for number in batch} & set(held)


def test_losses_are_measured_only_so_often() -> None:
    policy = calibrated(block=8, rate=25, held_back=4, measure_every=20)
    asked = [place for place, batch in enumerate(policy.arrange(iter(stream(80)), View())) if batch.held_back]
    assert 3 <= len(asked) <= 4 and min(np.diff(asked)) >= 20


# --- what follows ------------------------------------------------------------------------------------------------


def test_the_rate_changes_within_an_epoch() -> None:
    scheduler = ShuffleScheduler(50)
    phases = scheduler.phases(8)
    assert next(phases) == 4
    scheduler.rate = 25
    assert list(phases) == [2, 2]


def test_a_scheduler_goes_on_from_its_state() -> None:
    losses = [0.9, 0.8, 0.7, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2]
    for border in range(len(losses)):
        whole, first = ShuffleScheduler(30), ShuffleScheduler(30)
        expected = [whole.observe(loss) for loss in losses]
        found = [first.observe(loss) for loss in losses[:border]]
        second = ShuffleScheduler.restored(first.state())
        assert found + [second.observe(loss) for loss in losses[border:]] == expected


def order(depth: int, rising: bool) -> tuple[list[int], int]:
    """First ids of the batches in the order of training, and the rate at the end, under made-up losses."""
    policy = calibrated(block=32)
    embeddings = one_table(100, device_rows="10", policy=policy)
    first = []
    for planned in embeddings.look_ahead(stream(160), depth=depth):
        sum_of(embeddings(planned)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
        if planned.batch.held_back is not None:
            embeddings.report_loss(planned, planned.number if rising else -planned.number)
        first.append(int(planned.batch.ids[0]))
    return first, policy.scheduler.rate


@pytest.mark.parametrize("rising", [True, False])
def test_decisions_are_the_same_for_any_depth_up_to_the_lag(rising: bool) -> None:
    found = [order(depth, rising) for depth in (0, 3, 8)]
    assert all(one == found[0] for one in found)
    assert found[0][1] == (1 if rising else 100)
    assert found[0][0] != order(0, not rising)[0]


class Hears(LRU, InputPolicy):
    """Notes what it hears, and how many batches it had given away then."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, float, int]] = []
        self.given = 0

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        for batch in batches:
            self.given += 1
            yield replace(batch, held_back=bags([1])) if self.given % 3 == 1 else batch

    def observe(self, number: int, loss: float) -> None:
        self.heard.append((number, loss, self.given))


@pytest.mark.parametrize("depth", [0, 2, 8, 11])
def test_losses_come_late_by_a_fixed_number_of_batches(depth: int) -> None:
    policy = Hears()
    embeddings = one_table(policy=policy)
    for planned in embeddings.look_ahead([bags([n % 10]) for n in range(20)], depth=depth):
        sum_of(embeddings(planned)).backward()  # type: ignore[no-untyped-call]
        embeddings.step()
        if planned.batch.held_back is not None:
            embeddings.report_loss(planned, planned.number / 4)
    delay = max(depth, 8)
    expected = [(n, n / 4, min(n + delay + 2, 20)) for n in range(0, 20, 3)]
    assert policy.heard == expected, "the batch after the one that is being planned has not been asked for yet"


def test_a_loss_that_is_reported_too_late_is_refused() -> None:
    embeddings = one_table(policy=Hears())
    before = None
    coming = embeddings.look_ahead([bags([1]), bags([2])], depth=1)
    for planned in coming:
        if before is not None:
            with pytest.raises(ConfigError, match=r"got batch 0, which has ended\. Report its loss after"):
                embeddings.report_loss(before, 0.5)
        before = planned


# --- the trainer -------------------------------------------------------------------------------------------------

OPTIONS = {"select": "top", "block": 4, "held_back": 4, "measure_every": 1}


def trained(depth: int) -> tuple[dict[str, NDArray[Any]], list[tuple[int, float]]]:
    parts, toy = parts_of(policy="fae", policy_options=OPTIONS)
    policy, heard = parts.embeddings.policy, list[tuple[int, float]]()
    assert isinstance(policy, FAE)
    observe = policy.observe
    policy.observe = lambda number, loss: (heard.append((number, loss)), observe(number, loss))[1]  # type: ignore[method-assign, func-returns-value]
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=depth)
        return everything(parts), heard


def test_the_loss_is_of_held_back_inputs_after_the_batch() -> None:
    _, heard = trained(2)
    number, loss = heard[1]
    parts, toy = parts_of(policy="fae", policy_options=OPTIONS)
    with parts.embeddings:
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        for planned in parts.embeddings.look_ahead(islice(toy.train(32), 12), depth=0):
            trainer.step(planned)
            if planned.number == number:
                assert planned.batch.held_back is not None
                assert evaluate(parts.embeddings, parts.model, [planned.batch.held_back]).log_loss == loss
                break
