"""The guard of a custom loop decides and ends like that of a run."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.guarded import BATCH, GUARD, LAX, SAMPLES, SKIP, STRICT, run, spec, toy_data  # noqa: F401 (fixture)
from support.guarded_policies import Defer, DropHalf, Freeze, Plain
from support.toy import ToyData, toy_config
from support.toy_runs import data_fixture, nothing_is_left_behind  # noqa: F401 (fixtures)
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive import Guard, Planned, Recording, TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError
from adaptive.models.tasks import start_at_base_rate
from adaptive.policy import Policy
from adaptive.training.components import Components, build, first_batches, torch_settings
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import GuardRecord

DATA = ToyData(SAMPLES)
TOTAL = SAMPLES // BATCH


class Net(nn.Module):
    """A model that holds its tables."""

    def __init__(self, tables: TieredEmbeddingBag, head: nn.Module) -> None:
        super().__init__()
        self.tables, self.head = tables, head

    def forward(self, planned: Planned) -> Tensor:
        logits: Tensor = self.head(planned.dense, self.tables.stack(planned))
        return logits


def step(net: Net, dense: torch.optim.Optimizer, planned: Planned) -> tuple[Tensor, Tensor]:
    logits = net(planned)
    loss = binary_cross_entropy_with_logits(logits, planned.labels)
    dense.zero_grad()
    loss.backward()
    dense.step()
    net.tables.step()
    return loss, logits


def score(net: Net, dense: torch.optim.Optimizer, planned: Planned) -> Tensor:
    assert not net.training
    return net(planned)  # type: ignore[no-any-return]


Made = Callable[..., Components]


@pytest.fixture
def made() -> Iterator[Made]:
    """Build the components of a run of a policy; close them at the end."""
    with ExitStack() as open_tables:

        def make(policy: type[Policy] = Freeze, **changed: Any) -> Components:
            config = toy_config(**({"policy": spec(policy), "skip": SKIP, "batch_size": BATCH} | changed))
            parts = build(config, DATA, first_batches(config, DATA))
            start_at_base_rate(parts.model, DATA.train(BATCH))  # as a run does
            open_tables.callback(parts.embeddings.close)
            return parts

        yield make


def guarded_loop(parts: Components, limits: dict[str, Any], *, record: Any = None, passes: int = 1) -> Guard:
    net = Net(parts.embeddings, parts.model)
    guard = Guard(parts.embeddings, step, net, parts.optimizer, score=score, batch_size=BATCH, total=passes * TOTAL,
                  record=record, **(GUARD | limits))  # fmt: skip
    with torch_settings(toy_config()), guard:
        for _ in range(passes):
            for planned in guard.look_ahead(DATA.train(BATCH)):
                loss, logits = step(net, parts.optimizer, planned)
                if record is not None:
                    record.step(planned, loss, logits)
                guard.after(planned, loss)
    return guard


def decisions(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """With their evidence, but for the time of day and a fork's memory, which holds records of the batches that the
    look-ahead has come to; an idle guard's reason names the policy, as the user wrote it."""
    chance = {"wall_time", "fork_bytes"}
    left_out = {"idle": chance | {"reason"}}
    return [
        {name: value for name, value in decision.items() if name not in left_out.get(decision["verdict"], chance)}
        for decision in summary["guard_decisions"]
    ]


@pytest.mark.parametrize(
    ("policy", "limits", "more"),
    [
        (Freeze, {"budget": STRICT}, {}),
        (Freeze, {"budget": 0.05}, {"optimizer": {"name": "adam", "lr": 0.01}}),
        (Defer, {"budget": LAX, "every": 40}, {"dense_optimizer": {"name": "adam", "lr": 0.01}}),
        (DropHalf, {"budget": 0.05}, {}),
        (Plain, {"budget": 0.05}, {}),
    ],
)
def test_the_guard_decides_as_in_a_run(
    made: Made, tmp_path: Path, policy: type[Policy], limits: dict[str, Any], more: dict[str, Any]
) -> None:
    """Bit for bit: decisions with evidence, skipped and restored updates, weights."""
    expected = run(tmp_path, policy, limits, **more)
    parts = made(policy, **more)
    summary: dict[str, Any] = {**guarded_loop(parts, limits).summary()}
    assert [decision["verdict"] for decision in summary["guard_decisions"]] == expected.verdicts
    of_run = {name: value for name, value in expected.summary.items() if name.startswith("guard_")}
    assert decisions(summary) == decisions(of_run)
    assert summary | {"guard_decisions": []} == of_run | {"guard_decisions": []}
    saved = parts.embeddings.rows.state_arrays()
    for name, value in expected.saved.rows.items():
        if name.endswith(("weights", "state")):
            np.testing.assert_array_equal(saved[name], value)
    for name, weight in parts.model.state_dict().items():
        assert torch.equal(weight, expected.saved.dense[name]), name


@pytest.mark.nightly
def test_two_passes_equal_two_epochs(made: Made, tmp_path: Path) -> None:
    expected = run(tmp_path, Freeze, {"budget": 0.05}, epochs=2)
    assert decisions(guarded_loop(made(), {"budget": 0.05}, passes=2).summary()) == decisions(expected.summary)


def test_a_recording_has_the_guard_decisions(made: Made, tmp_path: Path) -> None:
    parts = made()
    with Recording(parts.embeddings, tmp_path / "run", tensorboard=False) as record:
        summary = guarded_loop(parts, {"budget": STRICT}, record=record).summary()
        records = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [guard.verdict for guard in records if isinstance(guard, GuardRecord)] == ["stop"]
    assert [decision["verdict"] for decision in summary["guard_decisions"]] == ["stop"]


def test_schedulers_and_rows_optimizer_can_be_parts(made: Made) -> None:
    """A failed check leaves the numbers of a loop that skips nothing."""

    def trained(policy: type[Policy], **limits: Any) -> dict[str, Any]:
        parts = made(policy)
        tables, model, dense = parts.embeddings, parts.model, parts.optimizer
        slower = [torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.5) for optimizer in (tables.optimizer, dense)]
        everything = (tables, model, dense, *slower)

        def own_step(tables: Any, model: Any, dense: Any, rows_slower: Any, slower: Any, planned: Planned) -> Tensor:
            loss = binary_cross_entropy_with_logits(model(planned.dense, tables.stack(planned)), planned.labels)
            dense.zero_grad()
            loss.backward()
            dense.step()
            tables.step()
            rows_slower.step()
            slower.step()
            return loss

        def own_score(tables: Any, model: Any, *_: Any) -> Any:
            return model(_[-1].dense, tables.stack(_[-1]))

        guard = Guard(tables, own_step, *everything, score=own_score, batch_size=BATCH, total=TOTAL, **(GUARD | limits))
        with guard:
            for planned in guard.look_ahead(DATA.train(BATCH)):
                guard.after(planned, own_step(*everything, planned))
        rows = {name: tables.rows.table_weights(name) for name in tables.table_names}
        return rows | {name: value.numpy() for name, value in model.state_dict().items()}

    result, plain = trained(Freeze, budget=STRICT), trained(Plain)
    assert result.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(result[name], value, err_msg=name)


# --- wrong input -----------------------------------------------------------------------------------------------------


def guard_of(parts: Components, **options: Any) -> Guard:
    net = Net(parts.embeddings, parts.model)
    settings: dict[str, Any] = {"score": score, "batch_size": BATCH, "total": TOTAL, **GUARD} | options
    return Guard(parts.embeddings, settings.pop("step", step), net, parts.optimizer, **settings)


def test_invalid_arguments_are_reported(made: Made) -> None:
    parts = made()
    for options, message in (
        ({"buget": 1}, r"guard: buget: unknown key \(did you mean budget\?\)"),
        ({"budget": -1}, "guard: budget: Input should be greater than 0, got -1"),
        ({"total": None}, r"Set steps \(total of adaptive.Guard\); an upper bound is enough"),
    ):
        with pytest.raises(ConfigError, match=message):
            guard_of(parts, **options)
    with pytest.raises(
        ConfigError, match=r"parts with state_dict\(\) and load_state_dict\(\), got a function \(part 1\)"
    ):
        Guard(parts.embeddings, step, step, score=score, batch_size=BATCH)


def looped(guard: Guard, train: Callable[[Planned], Any]) -> None:
    """Run a loop in which `train` returns the loss, or None to skip the guard's call."""
    with guard:
        for planned in guard.look_ahead(DATA.train(BATCH)):
            if (loss := train(planned)) is not None:
                guard.after(planned, loss)


def test_unsupported_loops_are_reported(made: Made) -> None:
    """A step that does not use its arguments would train the tables instead of copies."""
    parts = made()
    net, dense = Net(parts.embeddings, parts.model), parts.optimizer
    wide = {"score": lambda net, dense, planned: net(planned)[:, None]}
    for options, train, message in (
        ({}, lambda planned: None, r"expected one call of after\(planned, loss\) .*, got 0 \(batch 0\)"),
        (wide, lambda planned: step(net, dense, planned)[0], r"logits \(32,\) from score\(...\), got \(32, 1\)"),
        ({"step": lambda _, dense, planned: step(net, dense, planned)}, lambda planned: step(net, dense, planned)[0],
         "from its arguments only, which are copies during a check"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            looped(guard_of(parts, **options), train)


def test_labels_other_than_0_and_1_are_refused(made: Made) -> None:
    (batch,) = itertools.islice(DATA.train(BATCH), 1)
    guard = guard_of(made())
    with pytest.raises(InputError, match=r"expected labels 0 and 1, got 3.0 \(batch 0\)"):
        list(guard.look_ahead([replace(batch, labels=np.full_like(batch.labels, 3))]))
