"""Steps that do not wait: what a flag on the device keeps from changing, when the host looks, and what it then says.

The device is ordinary memory (`cpu-torch`), where torch's fused optimizers read a flag as they do on a GPU. Its events
happen two steps after they are recorded: each wait for one that has not happened is counted.
"""

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.simulated_training import patched
from support.toy import ToyData, toy_config
from support.toy_runs import Hooked, assert_equal, everything, in_model
from test_trainer_waits import Scalars
from torch import Tensor, nn

import adaptive.training.trainer
from adaptive.embeddings.engine import build as build_module
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiers.mover import Streams, inline
from adaptive.errors import NonFiniteError
from adaptive.training.components import Components, build
from adaptive.training.flagged_steps import LAG, may_be_flagged
from adaptive.training.telemetry.record import IntervalRecord
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.trainer import Trainer

DENSE = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01, fused=True),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05, fused=True),
}
# Sums of gradients, of one to three visits.
SUMMED = {"skip": {"rule": "support.skip_rules:Waits", "interval": 2, "min_accesses": 1}}


def parts_on(device: str = "cpu-torch", dense: str = "adam", **changed: Any) -> Components:
    toy = ToyData()
    options = {"tier": {"device": device, "device_rows": "80%", "poison": True}} | changed
    parts = build(toy_config(**options), toy, list(toy.train(32)))
    optimizer = DENSE[dense](list(parts.model.parameters()))
    return Components(parts.tables, parts.embeddings, parts.model, optimizer)


def trainer_of(parts: Components, **options: Any) -> Trainer:
    return Trainer(parts.embeddings, parts.model, parts.optimizer, **options)


def stopped(parts: Components, toy: ToyData, depth: int, good_steps: int, message: str) -> None:
    """Training stops with the message; all values are those after the good steps."""
    trainer, expected = trainer_of(parts), dict[str, Any]()

    def noted(planned: Planned) -> None:
        if planned.number == good_steps:
            expected.update(everything(parts))
        Trainer.step(trainer, planned)

    trainer.step = noted  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match=message):
        trainer.train(toy.train(32), depth=depth)
    assert_equal(everything(parts), expected)
    assert trainer.recorder.steps == good_steps


# --- nothing changes from the first bad batch on --------------------------------------------------------------------


@pytest.mark.parametrize("dense", DENSE)
@pytest.mark.parametrize(
    ("depth", "good_steps", "changed"),
    [(0, 0, {}), (1, 9, {}), (2, 19, {}), (3, 18, {}), (4, 0, {}), (0, 9, SUMMED), (3, 10, SUMMED), (4, 11, SUMMED)],
)
def test_a_bad_loss_stops_all_changes(dense: str, depth: int, good_steps: int, changed: dict[str, Any]) -> None:
    """Three steps in a row meet sums of gradients that begin, grow, and end."""
    parts = parts_on(dense=dense, **changed)
    assert may_be_flagged(parts.embeddings, parts.optimizer)
    place = 32 * good_steps + 7
    message = (
        rf"step {good_steps + 1}: the loss is nan; not finite: dense input 0; 1 of 32 predictions are not finite, at "
        rf"{'a' if place < 100 else '[a-z]'}\.tsv:\d+; the batch is 32 samples from .*; nothing was updated"
    )
    stopped(parts, ToyData(spoil={place: math.nan}), depth, good_steps, message)
    sums = parts.embeddings.rows.state_arrays().get("rows0.hot.sums")
    assert sums is None if not changed else len(sums) > 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_gradient_of_a_weight_is_named(value: float) -> None:
    parts, calls = parts_on(), []

    def spoil(gradient: Tensor) -> Tensor:
        calls.append(1)
        return gradient * value if len(calls) == 3 else gradient

    parts.model.get_parameter("bottom.0.weight").register_hook(spoil)  # type: ignore[no-untyped-call]
    stopped(parts, ToyData(), 2, 2, r"step 3: the gradient of weight bottom\.0\.weight is not finite; .* a\.tsv:65 to")


def test_a_bad_gradient_of_vectors_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if pooled.requires_grad and model.calls == 3:
            scale = torch.ones_like(pooled)
            scale[5, 1, 2] = math.inf
            pooled.register_hook(lambda gradient: gradient * scale)  # type: ignore[no-untyped-call]

    in_model(monkeypatch, spoil)
    message = r"step 3: the gradient of embedding vectors of feature user is not finite; .* from a\.tsv:65"
    stopped(parts_on(), ToyData(), 2, 2, message)


def test_large_gradients_pass() -> None:
    """Each is finite, their sum is not."""
    parts, calls = parts_on(dense="sgd"), []

    def enlarge(gradient: Tensor) -> Tensor:
        calls.append(1)
        return torch.full_like(gradient, 3e38) if len(calls) == 20 else gradient

    parts.model.get_parameter("bottom.0.weight").register_hook(enlarge)  # type: ignore[no-untyped-call]
    assert trainer_of(parts).train(ToyData().train(32)) == 20


class Counting(nn.Module):
    """Counts its forward passes in a buffer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        self.passes += 1
        logits: Tensor = self.model(dense, pooled)
        return logits


def test_buffers_are_those_before_the_bad_batch() -> None:
    parts = parts_on()
    model = Counting(parts.model)
    trainer = Trainer(parts.embeddings, model, parts.optimizer)
    with pytest.raises(NonFiniteError, match="step 5: the loss is nan"):
        trainer.train(ToyData(spoil={32 * 4: math.nan}).train(32))
    assert model.passes == 4


def test_training_goes_on_after_an_error() -> None:
    """The flag ends with its `train`; the two batches launched after the bad one are passed over."""
    found, expected, batches = parts_on(), parts_on(), list(ToyData().train(32))
    spoilt = [*batches[:3], *list(ToyData(spoil={32 * 3: math.nan}).train(32))[3:6]]
    trainer = trainer_of(found)
    with pytest.raises(NonFiniteError):
        trainer.train(spoilt, depth=2)
    assert trainer.train(batches[3:], depth=2) == 17 and trainer.recorder.steps == 20
    trainer_of(expected).train(batches, depth=0)
    assert_equal(everything(found), everything(expected))


def test_another_error_leaves_the_trained_steps_recorded() -> None:
    parts = parts_on()
    trainer = trainer_of(parts)

    def fail() -> None:
        if trainer._launched == 7:
            raise RuntimeError("after step 7")

    with pytest.raises(RuntimeError, match="after step 7"):
        trainer.train(ToyData().train(32), after_step=fail)
    assert trainer.recorder.steps == 7


# --- the numbers are those of steps that wait ------------------------------------------------------------------------


class Records:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, record: Any) -> None:
        self.records.append(record)

    def close(self) -> None:
        return


def recorded(
    monkeypatch: pytest.MonkeyPatch, waits: bool, log_every: int, changed: dict[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    with monkeypatch.context() as patch:
        if waits:
            patch.setattr(adaptive.training.trainer, "may_be_flagged", lambda *given: False)
        parts, records, rates = parts_on(**changed), Records(), list[int]()
        recorder = Recorder(parts.embeddings, [records], log_every=log_every, now=lambda: 0.0, cpu_now=lambda: 0.0)
        trainer_of(parts, recorder=recorder, set_rates=rates.append).train(ToyData().train(32), depth=3)
    assert rates == list(range(20))
    numbers = [
        (record.step, record.samples, record.loss, record.auc, record.log_loss, record.tables)
        for record in records.records
        if isinstance(record, IntervalRecord)
    ]
    return everything(parts), numbers


@pytest.mark.parametrize(
    ("log_every", "changed"), [(1, {}), (3, {}), (20, {}), (50, {}), (3, SUMMED), (3, {"skip": {"rule": "predicted"}})]
)
def test_values_and_records_are_those_of_steps_that_wait(
    monkeypatch: pytest.MonkeyPatch, log_every: int, changed: dict[str, Any]
) -> None:
    found, wanted = (recorded(monkeypatch, waits, log_every, changed) for waits in (False, True))
    (values, records), (expected, others) = found, wanted
    assert_equal(values, expected)
    assert records == others and len(records) == -(-20 // log_every)


# --- nobody waits ----------------------------------------------------------------------------------------------------


class Clock:
    """Counts steps, and waits of the training thread for events that have not happened."""

    now = waits = 0
    thread = 0  # in a step

    def streams_of(self, device: torch.device) -> Streams:
        streams, clock = inline(device), self

        class Event:
            def __init__(self) -> None:
                self.happens = clock.now + 2

            def wait(self) -> None:
                clock.waits += clock.thread == threading.get_ident() and clock.now < self.happens

        streams.compute.record = Event  # type: ignore[method-assign]
        return streams

    def counted(self, step: Callable[[Planned], None]) -> Callable[[Planned], None]:
        def run(planned: Planned) -> None:
            self.thread = threading.get_ident()
            try:
                with Scalars() as scalars:
                    step(planned)
                self.waits += scalars.count
            finally:
                self.thread = 0
            self.now += 1

        return run


@pytest.fixture(name="clock")
def clock_fixture() -> Iterator[Clock]:
    clock = Clock()
    with patched(build_module, streams_of=clock.streams_of):
        yield clock


@pytest.mark.parametrize(("dense", "changed"), [*((dense, {}) for dense in DENSE), ("adam", SUMMED)])
def test_no_step_waits(clock: Clock, dense: str, changed: dict[str, Any]) -> None:
    parts = parts_on(dense=dense, **changed)
    trainer = trainer_of(parts, recorder=Recorder(parts.embeddings, log_every=3))
    trainer.step = clock.counted(trainer.step)  # type: ignore[method-assign]
    assert trainer.train(ToyData().train(32), depth=4) == 20
    assert clock.waits == 0


def test_looking_one_step_earlier_would_wait(clock: Clock) -> None:
    parts = parts_on()
    trainer = trainer_of(parts)
    trainer.step = clock.counted(trainer.step)  # type: ignore[method-assign]
    with patched(adaptive.training.trainer, LAG=LAG - 1):
        trainer.train(ToyData().train(32), depth=4)
    assert clock.waits == 19


@pytest.mark.parametrize(
    ("device", "dense", "changed"),
    [
        ("cpu", "adam", {}),
        ("cpu-torch", "adam", {"policy": "hybrid", "tier": {"device": "cpu-torch", "device_rows": "auto"}}),
        ("cpu-torch", "plain", {}),
    ],
)
def test_others_wait(clock: Clock, monkeypatch: pytest.MonkeyPatch, device: str, dense: str, changed: Any) -> None:
    """Rows on the host, and optimizers that read no flag."""
    monkeypatch.setitem(DENSE, "plain", lambda weights: torch.optim.Adam(weights, lr=0.01))
    parts = parts_on(device, dense, **changed)
    assert not may_be_flagged(parts.embeddings, parts.optimizer)
    stopped(parts, ToyData(spoil={32 * 3: np.nan}), 2, 3, "step 4: the loss is nan; not finite: dense input 0")
