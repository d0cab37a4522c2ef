"""What a policy sees before training: a share of all inputs, the first batches, or, where it does not look, nothing."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic import ValidationError
from support.example_policies import RecShard
from support.toy import ToyData, toy_config

import adaptive.training.components
from adaptive.batch import Batch
from adaptive.config import TrainConfig, parse_sample
from adaptive.policies.fae import FAE
from adaptive.policies.hotline import Hotline
from adaptive.policies.lru import LRU
from adaptive.policies.static import Static
from adaptive.policy import Policy
from adaptive.training.components import prepare


class Counted(ToyData):
    """Counts the batches that were read, and may not know its length."""

    def __init__(self, *, known: bool = True) -> None:
        super().__init__(6400)
        self.read, self._known = 0, known

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        for batch in super().train(batch_size, epoch=epoch):
            self.read += 1
            yield batch

    def num_train_samples(self) -> Any:
        return super().num_train_samples() if self._known else None


def config(**changed: Any) -> TrainConfig:
    return toy_config(**{"calibrate": None, **changed})


def lines(sample: Sequence[Batch]) -> list[int]:
    """Numbers of the inputs in the data, but for the first 100."""
    origins = [batch.origin for batch in sample]
    return [int(line) for origin in origins if origin for line in origin.lines[origin.file_index == 1]]


@pytest.mark.parametrize("policy", [Static, RecShard, FAE])
def test_five_per_cent_of_all_inputs_by_default(policy: type[Policy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive.training.components, "LEAST_SAMPLE", 100)
    data = Counted()
    found = lines(prepare([policy()], config(), data))
    assert 0.04 * 6400 < len(found) < 0.06 * 6400
    assert min(found) < 640 and max(found) > 5700 and data.read == 200


def test_small_data_are_read_whole_and_huge_data_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sum(batch.num_samples for batch in prepare([Static()], config(), Counted())) == 6400
    monkeypatch.setattr(adaptive.training.components, "LEAST_SAMPLE", 100)
    monkeypatch.setattr(adaptive.training.components, "DEFAULT_SAMPLE", 150)
    data = Counted()
    sample = prepare([Static()], config(), data)
    assert 150 <= sum(batch.num_samples for batch in sample) < 150 + 32 and 70 < data.read < 130
    data = Counted()
    prepare([Static()], config(calibrate="5%"), data)
    assert data.read == 200, "who says so gets a share of everything"


def test_who_does_not_calibrate_reads_nothing() -> None:
    data = Counted()
    assert prepare([LRU(), Hotline()], config(), data) == [] and data.read == 0


def test_a_share_does_not_depend_on_how_long_the_run_is() -> None:
    short, long = (lines(prepare([Static()], config(steps=n, calibrate="5%"), Counted())) for n in (5, None))
    assert short == long
    assert lines(prepare([Static()], config(seed=1, calibrate="5%"), Counted())) != long


@pytest.mark.parametrize(("calibrate", "batches"), [("3", 3), (0, 0)])
def test_first_batches_if_wanted(calibrate: str | int, batches: int) -> None:
    data = Counted()
    assert [batch.num_samples for batch in prepare([Static()], config(calibrate=calibrate), data)] == [32] * batches
    assert data.read == batches


@pytest.mark.parametrize("text", ["", "5.5", "-1", "0%", "101%", "5 per cent", "5%%"])
def test_bad_samples_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a sample"):
        parse_sample(text)
    with pytest.raises(ValidationError, match="calibrate"):
        config(calibrate=text)


def test_policies_that_arrange_know_how_long_an_epoch_is() -> None:
    def told(policy: Hotline | FAE, data: Counted, **changed: Any) -> int | None:
        prepare([policy], config(**changed), data)
        return policy.epoch_batches

    assert told(Hotline(), Counted()) == told(FAE(), Counted()) == 200
    assert told(Hotline(), Counted(), steps=50) == 50
    assert told(Hotline(), Counted(), steps=5000) == 200
    assert told(Hotline(), Counted(known=False)) is None
    assert told(FAE(), Counted(known=False)) == 200, "it has been read for the calibration"
    prepare([LRU()], config(), Counted())  # a policy that does not arrange learns no length
