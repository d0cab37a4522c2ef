"""The fork: it trains what a run without skipping would, and its values can be taken over at any time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.guarded import SKIP
from support.guarded_policies import Defer, Freeze, OnHost, Plain
from support.simulated_training import CASES, Arrays, Case, Run, simulated, small_buffers
from support.toy import ToyData, toy_config
from support.toy_runs import assert_equal, everything, in_model, nothing_is_left_behind  # noqa: F401 (fixture)

from adaptive.counters import Counter
from adaptive.policy import Policy
from adaptive.training.components import Components, build
from adaptive.training.guard.fork import Fork, RunLoop, predict
from adaptive.training.trainer import Trainer

TOY = ToyData(1600)
BATCHES = list(TOY.train(32))  # 50
AT, END = 25, 35  # where the run is forked, where it ends

SETTINGS: list[dict[str, Any]] = [
    {},
    {"optimizer": {"name": "adam", "lr": 0.01}, "dense_optimizer": {"name": "adam", "lr": 0.01}},
    {"optimizer": {"name": "sgd", "lr": 0.1}, "tier": {"device_rows": "60%", "device": "cpu-torch"}},
]


def components_of(fork: Fork) -> Components:
    assert isinstance(fork.trained, RunLoop)
    return fork.trained.components


def run(
    policy: type[Policy],
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    at: dict[int, Callable[[Components], None]],
) -> Components:
    """Train up to `END`, and do what `at` says after so many steps, in the middle of a look-ahead."""
    monkeypatch.setattr("adaptive.training.components.make_policy", lambda *_: policy())
    parts = build(toy_config(skip=SKIP, **settings), TOY, BATCHES[:4])
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)

    def between() -> bool:
        at.get(trainer.recorder.steps, lambda _: None)(parts)
        return False

    trainer.train(BATCHES[:END], depth=3, stopped=between)
    return parts


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_fork_trains_as_the_run_would(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    forks: list[Fork] = []

    def fork(parts: Components) -> None:
        forks.append(Fork(RunLoop(parts), AT))
        for batch in BATCHES[AT:END]:
            forks[0].train(batch)

    parts = run(Plain, settings, monkeypatch, {AT: fork})
    assert_equal(everything(components_of(forks[0])), everything(parts))
    np.testing.assert_array_equal(predict(forks[0].trained, BATCHES[40:42]), predict(RunLoop(parts), BATCHES[40:42]))
    assert predict(RunLoop(parts), []).shape == (0,)


def draw(*_: Any) -> None:
    torch.rand(1)


@pytest.mark.parametrize("policy", [Freeze, Defer])
def test_a_run_does_not_notice_its_forks(policy: type[Policy], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a model that draws random numbers."""
    in_model(monkeypatch, draw)
    torch.manual_seed(0)

    def fork(parts: Components) -> None:
        made = Fork(RunLoop(parts), AT)
        assert made.num_bytes > 0
        for batch in BATCHES[40:45]:
            made.train(batch)
        predict(RunLoop(parts), BATCHES[45:])
        made.close()

    forked, random = run(policy, {}, monkeypatch, {AT: fork, AT + 3: fork}), torch.get_rng_state()
    torch.manual_seed(0)
    assert_equal(everything(forked), everything(run(policy, {}, monkeypatch, {})))
    assert torch.equal(torch.get_rng_state(), random)


def test_what_waits_in_the_run_is_applied_in_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    forks: list[Fork] = []
    run(Defer, {}, monkeypatch, {END: lambda parts: forks.append(Fork(RunLoop(parts), AT))})
    parts = run(Defer, {}, monkeypatch, {})
    assert parts.embeddings.statistics.counts()[Counter.DEFERRED_UPDATES] > 0
    assert_equal(everything(components_of(forks[0])), everything(parts))


@pytest.mark.parametrize(
    ("policy", "settings"),
    [(Plain, one) for one in SETTINGS]
    + [(OnHost, SETTINGS[0]), (Plain, {"tier": {"device_rows": "50%", "poison": True, "host": "mmap"}})],
)
def test_a_run_goes_on_from_the_values_of_a_fork(
    policy: type[Policy], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The fork has trained the run's batches, and others with rows that the run has not seen; then both the same."""
    if settings.get("tier", {}).get("host") == "mmap":
        settings = {"tier": settings["tier"] | {"host": f"mmap:{tmp_path}"}}
    forks: list[Fork] = []

    def fork(parts: Components) -> None:
        forks.append(Fork(RunLoop(parts), AT))
        for batch in BATCHES[40:] + BATCHES[AT - 10 : AT]:
            forks[0].train(batch)

    def overwrite(parts: Components) -> None:
        forks[0].overwrite(RunLoop(parts))
        assert_equal(everything(parts), everything(components_of(forks[0])))
        for batch in BATCHES[AT:END]:
            forks[0].train(batch)

    parts = run(policy, settings, monkeypatch, {AT - 10: fork, AT: overwrite})
    with parts.embeddings:
        assert_equal(everything(parts), everything(components_of(forks[0])))


AFTER = 9  # batches


class Overwritten(Run):
    """Takes over the values that the whole training ends with, where rows that wait have been settled."""

    def __init__(
        self, case: Case, random: np.random.Generator, values: Arrays, device: str, *, looks: bool = True
    ) -> None:
        super().__init__(case.build(device), case.depth, random, {}, case.shrinks)
        self.values, self.looks = values, looks

    def disturb(self) -> None:
        if self.embeddings.runtime.pipeline.trained == AFTER:
            self.embeddings.rows.overwrite(self.values)
            if self.looks:
                self.assert_overwritten()
        super().disturb()

    def assert_overwritten(self) -> None:
        found = self.embeddings.rows.state_arrays()
        for name, value in self.values.items():
            if name.endswith((".weights", ".state")):
                rows, theirs = (arrays[name.split(".")[0] + ".changed"] for arrays in (found, self.values))
                assert np.isin(theirs, rows).all()
                assert np.array_equal(found[name][np.isin(rows, theirs)], value), name


UNKEYED = [case for case in CASES if not case.keyed]  # a guarded run refuses tables with keys


@pytest.mark.parametrize("case", UNKEYED, ids=lambda case: f"{case.policy.__name__}-{case.depth}-{case.way}")
def test_the_order_of_streams_does_not_matter(case: Case) -> None:
    values = Run(case.build("cpu"), case.depth, np.random.default_rng(0), {}, False).train()
    expected = Overwritten(case, np.random.default_rng(0), values, "cpu").train()
    for seed in range(3):
        with simulated(seed) as simulation, small_buffers(case.ample):
            looks = seed == 0  # that waits for everything
            found = Overwritten(case, simulation.random, values, "cpu-torch", looks=looks).train()
        for name, value in expected.items():
            assert np.array_equal(found[name], value, equal_nan=value.dtype.kind == "f"), (seed, name)
    assert not all(np.array_equal(expected[name], value) for name, value in values.items() if "watched" not in name)
