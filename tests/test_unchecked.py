"""`finite_check="a_step_later"`: the numbers of a step are looked at one step later. Bits are those of a look before
the update; nothing that a bad step has spoiled is written, shown or trained on."""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guarded_policies import Defer
from simulated_streams import Simulation
from test_trainer_memory import RunsOut
from thread_ranks import on_ranks, outcomes
from torch import Tensor
from toy import ToyData, toy_config
from toy_runs import Hooked, assert_equal, data_fixture, everything, in_model, nothing_is_left_behind  # noqa: F401 (fixtures)

from adaptive.build import Components, build
from adaptive.errors import ConfigError, NonFiniteError
from adaptive.evaluation import evaluate
from adaptive.finite import bounds_of_gradients
from adaptive.ranks import Ranks
from adaptive.runs import evaluate_run, resume_run, train_run
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.telemetry.jsonl import read_metrics
from adaptive.telemetry.record import IntervalRecord
from adaptive.telemetry.recorder import Recorder
from adaptive.tiers.brought import Brought
from adaptive.tiers.mover import Mover
from adaptive.trainer import Trainer

NAN = math.nan
SKIP = {"interval": 2, "min_visits": 1, "min_accesses": 2, "hot_rows": "100%", "lag": 4}


class Kept:
    """A sink that keeps records."""

    def __init__(self) -> None:
        self.records: list[IntervalRecord] = []

    def write(self, record: Any) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing is open."""


def made(**changed: Any) -> Components:
    toy = ToyData(num_train=352)  # 11 batches
    config = toy_config(**({"tier": {"device_rows": "auto"}} | changed))
    parts = build(config, toy, list(toy.train(32)))
    parts.embeddings.calibrate(list(toy.train(32))[:2])
    return parts


def trained(finite_check: str, depth: int = 2, **changed: Any) -> tuple[dict[str, Any], list[Any]]:
    """All numbers at the end, and those of the records that are no times."""
    parts, sink = made(**changed), Kept()
    recorder = Recorder(parts.embeddings, [sink], log_every=3)
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, recorder=recorder, finite_check=finite_check)  # type: ignore[arg-type]
    with parts.embeddings:
        assert trainer.train(ToyData(num_train=352).train(32), depth=depth) == 11
        records = [(r.step, r.loss, r.log_loss, r.auc, r.tables, recorder.loss) for r in sink.records]
        return everything(parts), records


# --- the same bits ---------------------------------------------------------------------------------------------------

OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
POLICIES = ("lru", "lfu", "hybrid", "device", "contract:InParts")
RULES = (None, "defer", "updates+share=0.5", "off")


def drawn(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    policy = POLICIES[random.integers(len(POLICIES))]
    rule = RULES[random.integers(len(RULES))]
    return {
        "depth": int(random.integers(4)),
        "policy": policy,
        "optimizer": {"name": OPTIMIZERS[number % 4], "lr": 0.05},
        "dense_optimizer": {"name": str(random.choice(["sgd", "adagrad", "adam"])), "lr": 0.05},
        "tier": {"device": str(random.choice(["cpu", "cpu-torch"])), "device_rows": "auto", "poison": True},
        "skip": {**SKIP, "rule": rule} if rule in ("defer", None) else None,
        "model_options": {
            "embedding_dim": 4, "bottom_mlp": (8, 4), "top_mlp": (8, 1),
            "dropout": float(random.choice([0.0, 0.3])), "feature_norm": str(random.choice(["none", "batch"])),
        },
    }  # fmt: skip


@pytest.mark.parametrize("number", range(12))
def test_drawn_trainings_have_the_bits_of_a_look_before_the_update(number: int) -> None:
    later, expected = trained("a_step_later", **drawn(number)), trained("before_update", **drawn(number))
    assert_equal(later[0], expected[0])
    assert later[1] == expected[1], "losses stand at their own steps"
    assert [record[0] for record in later[1]] == [3, 6, 9, 11]


def test_updates_that_are_skipped_are_so_in_both_ways() -> None:
    settings = {"policy": f"{Defer.__module__}:Defer", "skip": SKIP}
    later, expected = trained("a_step_later", **settings), trained("before_update", **settings)
    assert_equal(later[0], expected[0])
    assert sum(counts.skipped_updates for record in later[1] for counts in record[4].values()) > 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_look_before_the_update_and_have_the_same_bits(size: int) -> None:
    def work(finite_check: str, spoil: dict[int, float]) -> Callable[[Ranks], dict[str, Any]]:
        def rank(ranks: Ranks) -> dict[str, Any]:
            parts = build(toy_config(), ToyData(), (), ranks)
            trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check=finite_check)  # type: ignore[arg-type]
            with parts.embeddings:
                trainer.train(ToyData(spoil=spoil).train(32), depth=1)
                return {name: parts.embeddings.table_weights(name) for name in parts.embeddings.table_names}

        return rank

    options = {"blocks": 6, "gradients": "sum"}
    for later, expected in zip(
        on_ranks(size, work("a_step_later", {}), **options), on_ranks(size, work("before_update", {}), **options),
        strict=True,
    ):  # fmt: skip
        assert_equal(later, expected)
    errors = [str(error) for error in outcomes(size, work("a_step_later", {200: NAN}), **options)]
    assert any("step 7: the loss is nan" in text and "nothing was updated" in text for text in errors)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_passes_are_run_again_while_the_step_before_is_unchecked(where: str) -> None:
    tier = {"device": "cpu-torch", "device_rows": "100%", "poison": True}
    found, expected = made(tier=tier, depth=2), made(tier=tier, depth=2)
    model = RunsOut(found.model, [3, 4, 8], where)
    Trainer(found.embeddings, model, found.optimizer, finite_check="a_step_later").train(ToyData().train(32), depth=2)
    Trainer(expected.embeddings, expected.model, expected.optimizer).train(ToyData().train(32), depth=2)
    assert found.embeddings.view.device_rows < expected.embeddings.view.device_rows
    assert_equal(everything(found), everything(expected))


# --- when numbers are looked at --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["lru", "contract:InParts"])
def test_a_step_is_looked_at_behind_the_passes_of_the_next(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    happened: list[str] = []
    parts = made(policy=policy, dense_optimizer={"name": "sgd", "lr": 0.1})
    start, step, backward, read = Brought.start, parts.optimizer.step, Tensor.backward, Tensor.tolist

    def started(self: Brought, numbers: Tensor) -> Callable[[], list[float]]:
        look, number = start(self, numbers), trainer.recorder.steps + 1

        def told() -> list[float]:
            happened.append(f"look {number}")
            return look()

        return told

    def note(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: (
            happened.append(f"{name} {trainer.recorder.steps + 1}"),
            work(*given, **options),
        )[1]

    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check="a_step_later")
    with monkeypatch.context() as patch:
        patch.setattr(Brought, "start", started)
        patch.setattr(parts.optimizer, "step", note("update", step))
        patch.setattr(Tensor, "backward", note("backward", backward))
        for name in ("tolist", "cpu", "item", "nonzero", "__bool__", "__float__"):
            patch.setattr(Tensor, name, note("host reads", read if name == "tolist" else getattr(Tensor, name)))
        for planned in parts.embeddings.look_ahead(list(ToyData().train(32))[:3], depth=2):
            trainer.step(planned)
        trainer.check()
    once = [one for one, other in pairwise([*happened, ""]) if one != other]  # parts go backward one by one
    assert once == [
        "backward 1", "update 1",
        "backward 2", "look 1", "host reads 2", "update 2",
        "backward 3", "look 2", "host reads 3", "update 3",
        "look 3", "host reads 4",
    ]  # fmt: skip


def come_as_asked_for(seed: int) -> bool:
    """Whether numbers that a simulated device computes are those that are read."""
    simulation, found = Simulation(seed), []
    brought = Brought(Mover(simulation.streams))
    for size in (3, 5, 40, 2):
        numbers = simulation.compute.empty(size)
        simulation.compute.run(lambda to=numbers, n=size: to.copy_(torch.arange(n)))  # type: ignore[misc]
        found.append(brought.start(numbers)() == list(range(size)))
    return all(found)


def test_numbers_are_read_when_they_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(come_as_asked_for, range(20)))
    monkeypatch.setattr(Mover, "await_brought", lambda self, event: None)
    assert not all(map(come_as_asked_for, range(20))), "without the wait"


def test_bounds_of_gradients_are_finite_exactly_if_the_gradients_are() -> None:
    model = torch.nn.Linear(2, 1)
    for values, finite in (
        ([3e38, 3e38], True),
        ([NAN, 1.0], False),
        ([1.0, math.inf], False),
        ([-math.inf, 0], False),
    ):
        model.weight.grad = torch.tensor([values])
        found = bounds_of_gradients(model)
        assert [name for name, _ in found] == ["weight", "weight"]
        assert all(math.isfinite(float(bound)) for _, bound in found) == finite


# --- a step that is not finite ---------------------------------------------------------------------------------------

SPOILT = (
    r"step 4: the loss is nan; not finite: dense input 0; whether a row or weight was not finite before cannot be told "
    r"any more: finite_check=before_update does; 1 of 32 predictions are not finite, at b\.tsv:4; the batch is 32 "
    r"samples from a\.tsv:97 to b\.tsv:28; this one step has updated tables and dense weights"
)


def spoilt(**changed: Any) -> tuple[Components, Trainer]:
    """Parts whose step 4 was not finite."""
    parts = made(**changed)
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check="a_step_later")
    with pytest.raises(NonFiniteError, match=SPOILT) as caught:
        trainer.train(ToyData(spoil={32 * 3 + 7: NAN}).train(32), depth=2)
    assert caught.value.exit_code == 8 and trainer.recorder.steps == 4
    return parts, trainer


@pytest.mark.parametrize("policy", ["lru", "hybrid"])
def test_it_is_told_a_step_later_and_one_step_has_updated(policy: str) -> None:
    parts, _ = spoilt(policy=policy)
    parts.embeddings._spoiled = None  # as if nobody had noticed
    bad = [name for name, values in everything(parts).items() if not np.isfinite(values).all()]
    assert bad, "the update was made"


@pytest.mark.parametrize(("part", "where"), [(0, r"a\.tsv:97 to b\.tsv:\d+"), (1, r"b\.tsv:\d+ to b\.tsv:28")])
def test_of_a_batch_in_parts_the_part_is_named(part: int, where: str) -> None:
    parts = made(policy="contract:InParts")
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check="a_step_later")
    sample = 96 + (0 if part == 0 else 31)
    with pytest.raises(NonFiniteError, match=rf"step 4: the loss is nan; .* samples from {where}; this one step"):
        trainer.train(ToyData(spoil={sample: NAN}).train(32), depth=2)


def test_gradients_of_weights_and_features_are_named_as_before_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.calls == 3:
            scale = torch.ones_like(pooled)
            scale[5, 1, 2] = NAN
            pooled.register_hook(lambda gradient: gradient * scale)  # type: ignore[no-untyped-call]
            model.top[2].bias.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[union-attr]

    in_model(monkeypatch, spoil)
    texts = []
    for finite_check in ("before_update", "a_step_later"):
        parts = made()
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check=finite_check)  # type: ignore[arg-type]
        with pytest.raises(NonFiniteError) as caught:
            trainer.train(ToyData().train(32), depth=2)
        texts.append(
            str(caught.value).partition("; this one step" if finite_check[0] == "a" else "; nothing was updated")
        )
    assert texts[0][0] == texts[1][0] and all(text[1] for text in texts)
    assert "step 3: the gradient of weight top.2.bias, embedding vectors of feature user is not finite" in texts[0][0]


USES: Mapping[str, Callable[[Components], Any]] = {
    "table": lambda parts: parts.embeddings.table_weights("site"),
    "arrays": lambda parts: parts.embeddings.state_arrays(),
    "blocks": lambda parts: parts.embeddings.state_blocks(),
    "state_dict": lambda parts: parts.embeddings.state_dict(),
    "flush": lambda parts: parts.embeddings.flush(),
    "evaluate": lambda parts: evaluate(parts.embeddings, parts.model, ToyData().evaluation(64)),
    "look_ahead": lambda parts: next(parts.embeddings.look_ahead(ToyData().train(32))),
    "overwrite": lambda parts: parts.embeddings.overwrite_rows({}),
    "load_table": lambda parts: parts.embeddings.load_table("site", np.zeros((40, 4), np.float32)),
    "trainer": lambda parts: Trainer(parts.embeddings, parts.model, parts.optimizer).train(ToyData().train(32)),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_spoiled_is_not_used(use: str) -> None:
    parts, _ = spoilt()
    with pytest.raises(NonFiniteError, match="the tables are spoiled by a step that was not finite"):
        USES[use](parts)


@pytest.mark.parametrize("use", [use for use in USES if use not in ("look_ahead", "trainer")])
def test_whoever_uses_values_looks_at_the_latest_step_first(use: str) -> None:
    parts = made()
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check="a_step_later")
    batches = ToyData(spoil={32 * 3 + 7: NAN}).train(32)
    with closing(parts.embeddings.look_ahead(batches, depth=2)) as coming:
        for _ in range(4):
            trainer.step(next(coming))
        with pytest.raises(NonFiniteError, match=r"^step 4: the loss is nan"):
            USES[use](parts)
        with pytest.raises(NonFiniteError, match=r"^pooling: the tables are spoiled"):
            parts.embeddings.stack(next(coming))


def test_other_values_may_be_loaded_and_trained_by_another_trainer() -> None:
    good, expected = made(), made()
    saved = good.embeddings.state_arrays()
    parts, trainer = spoilt()
    parts.embeddings.load_state_arrays(saved)
    with pytest.raises(NonFiniteError, match=r"the model is spoiled .* make a new Trainer. step 4"):
        trainer.train(ToyData().train(32))
    Trainer(parts.embeddings, good.model, good.optimizer, finite_check="a_step_later").train(ToyData().train(32))
    Trainer(expected.embeddings, expected.model, expected.optimizer).train(ToyData().train(32))
    for name in expected.embeddings.table_names:
        np.testing.assert_array_equal(parts.embeddings.table_weights(name), expected.embeddings.table_weights(name))


def test_an_error_that_a_bad_step_has_caused_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_at_nan(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.calls == 5:
            assert pooled.isnan().any()
            raise ValueError("not a number")

    in_model(monkeypatch, raise_at_nan)
    spoilt()


@pytest.mark.parametrize(("spoil", "error"), [({}, RuntimeError), ({96: NAN}, NonFiniteError)])
def test_an_update_that_fails_is_told_unless_its_step_was_bad(spoil: dict[int, float], error: type[Exception]) -> None:
    parts = made()
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check="a_step_later")
    step = parts.optimizer.step

    def fails(*given: Any) -> Any:
        if trainer.recorder.steps == 3:
            raise RuntimeError("no update")
        return step(*given)

    parts.optimizer.step = fails  # type: ignore[method-assign]
    with pytest.raises(error, match="no update" if error is RuntimeError else "step 4: the loss is nan"):
        trainer.train(ToyData(spoil=spoil).train(32), depth=2)


def test_an_unknown_way_is_refused() -> None:
    parts = made()
    with pytest.raises(ConfigError, match="finite_check: one of before_update, a_step_later is needed, found 'never'"):
        Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check="never")  # type: ignore[arg-type]


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_ends_and_its_checkpoint_is_from_before(tmp_path: Path, data: Any) -> None:
    data(spoil={32 * 7 + 3: NAN})  # step 8: the latest before a save, an evaluation and a record
    config = toy_config(out=str(tmp_path), save_every=4, eval_every=8, finite_check="a_step_later")
    with pytest.raises(NonFiniteError, match=r"step 8: the loss is nan; .* go on from the latest checkpoint"):
        train_run(config)
    intervals = [r.step for r in read_metrics(tmp_path / "metrics.jsonl") if isinstance(r, IntervalRecord)]
    assert intervals == [4] and not (tmp_path / "weights").exists()
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    assert load_checkpoint(checkpoint).meta["steps"] == 4
    data()
    (tmp_path / "lock").unlink(missing_ok=True)
    resume_run(tmp_path)
    data()
    train_run(toy_config(out=str(tmp_path / "whole"), save_every=4, eval_every=8))
    assert evaluate_run(tmp_path)["auc"] == evaluate_run(tmp_path / "whole")["auc"]


@pytest.mark.parametrize("step", [1, 19, 20])
def test_a_bad_last_step_is_not_saved(tmp_path: Path, data: Any, step: int) -> None:
    data(spoil={32 * (step - 1): NAN})
    with pytest.raises(NonFiniteError, match=f"step {step}: the loss is nan"):
        train_run(toy_config(out=str(tmp_path), finite_check="a_step_later", log_every=50))
    assert not (tmp_path / "weights").exists()


def test_held_back_samples_are_not_predicted_by_a_spoiled_model(data: Any) -> None:
    parts = made(policy="fae", policy_options={"hot_inputs": 0.5, "held_back": 4, "measure_every": 1, "block": 4})
    trainer = Trainer(parts.embeddings, parts.model, parts.optimizer, finite_check="a_step_later")
    with pytest.raises(NonFiniteError, match=r"^step \d+: the loss is nan; .* this one step has updated"):
        trainer.train(ToyData(spoil=dict.fromkeys(range(640), NAN)).train(32), depth=2)
