"""An interrupted and resumed run trains, decides and counts as one that was not interrupted, bit for bit."""

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.interrupted import (
    ALIKE,
    POLICIES,
    How,
    Killed,
    assert_equal,
    config_of,
    interrupted,
    numbers,
    resume_run,
    run,
    small_world,
)
from support.toy_runs import Hooked, in_model, nothing_is_left_behind  # noqa: F401 (fixture)
from torch import Tensor

from adaptive.config import TrainConfig
from adaptive.errors import CheckpointError
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.evaluation import Evaluation
from adaptive.training.runs.loop import Loop
from adaptive.training.telemetry.recorder import Recorder

ROWS = ["sgd", "adagrad", "rowwise_adagrad", "adam"]
DENSE = ["sgd", "adagrad", "adam"]


def go_on(out: Path, *, saved: bool) -> bool:
    """Resume a run; False if it was killed before it had saved anything."""
    if not saved and not list(out.glob("checkpoint-*")):
        with pytest.raises(CheckpointError, match=r"weights/manifest\.json: expected a regular file"):
            resume_run(out)
        return False
    resume_run(out)
    return True


@st.composite
def configs(draw: st.DrawFn, policies: tuple[str, ...]) -> TrainConfig:
    """20 batches, or 15 of them, in one pass over the data or two."""
    schedule = draw(st.sampled_from([{}, {"warmup": 4, "decay": "cosine", "decay_steps": 14}]))
    return config_of(
        draw(st.sampled_from(policies)),
        device=draw(st.sampled_from(["cpu", "cpu-torch"])),
        depth=draw(st.integers(0, 4)),
        save_every=draw(st.integers(1, 12)),
        steps=draw(st.sampled_from([None, 15])),
        optimizer={"name": draw(st.sampled_from(ROWS)), "lr": 0.05},
        dense_optimizer={"name": draw(st.sampled_from(DENSE)), "lr": 0.02},
        schedule=schedule,
        epochs=draw(st.integers(1, 2)),
        log_every=draw(st.sampled_from([3, 4])),
    )


@pytest.mark.nightly
@settings(max_examples=400)
@given(config=configs(tuple(POLICIES)), at=st.integers(2, 21), again=st.integers(2, 21))
def test_a_killed_run_goes_on_from_its_newest_checkpoint(config: TrainConfig, at: int, again: int) -> None:
    """Killed twice, it equals a run that was not killed, for policies that skip, drop or rearrange inputs."""
    with tempfile.TemporaryDirectory() as folder, small_world(640 // config.epochs) as patch:
        whole, cut = Path(folder, "whole"), Path(folder, "cut")
        run(whole, config)
        with interrupted(patch, "kill", at):
            run(cut, config)
        if (cut / "weights").exists():
            return
        if list(cut.glob("checkpoint-*")):
            with interrupted(patch, "kill", again):
                resume_run(cut)
        if not (cut / "weights").exists() and not go_on(cut, saved=False):
            return
        assert_equal(numbers(cut), numbers(whole))


def check_interrupted(config: TrainConfig, stops: list[tuple[How, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, small_world(640 // config.epochs) as patch:
        whole, cut = Path(folder, "whole"), Path(folder, "cut")
        run(whole, config.model_copy(update={"save_every": None}))
        how, at = stops[0]
        with interrupted(patch, how, at):
            run(cut, config)
        for how, at in stops[1:]:
            if (cut / "weights").exists() or list(cut.glob("checkpoint-*")):
                with interrupted(patch, how, at):
                    resume_run(cut) if _is_unfinished(cut) else None
        if _is_unfinished(cut) and not go_on(cut, saved=(cut / "weights").exists()):
            return
        assert_equal(numbers(cut), numbers(whole))


def _is_unfinished(out: Path) -> bool:
    return '"status": "finished"' not in (out / "run.json").read_text()


STOPS: Any = st.lists(st.tuples(st.sampled_from(["kill", "stop"]), st.integers(1, 21)), min_size=1, max_size=3)


@settings(max_examples=9)
@given(config=configs(ALIKE), stops=STOPS)
def test_where_a_run_is_saved_or_stopped_changes_no_number(config: TrainConfig, stops: list[tuple[How, int]]) -> None:
    """Of policies that skip nothing, or defer: it trains what it would have trained in one go, saving nothing."""
    check_interrupted(config, stops)


@pytest.mark.nightly
@settings(max_examples=300)
@given(config=configs(ALIKE), stops=STOPS)
def test_interrupted_runs_at_length(config: TrainConfig, stops: list[tuple[How, int]]) -> None:
    check_interrupted(config, stops)


@pytest.mark.parametrize(
    "policy", [name for name in POLICIES if name not in ("lru", "hybrid", "static", "scratchpipe")]
)
@pytest.mark.parametrize("depth", [0, 3])
def test_a_stop_in_the_middle_is_an_end_of_the_look_ahead(tmp_path: Path, policy: str, depth: int) -> None:
    """Batches in flight are still trained. The run then equals one that saves at the same batch."""
    with small_world(1280) as patch:
        config = config_of(policy, depth=depth)
        with interrupted(patch, "stop", 7):
            run(tmp_path / "cut", config)
        place = load_checkpoint(tmp_path / "cut/weights").meta["progress"]["place"]["total"]
        assert 3 < place < 40  # in batches, some of which hotline passes forward in two parts
        resume_run(tmp_path / "cut")
        patch.setattr(Loop, "_until_save", lambda loop: place - loop.place.total if loop.place.total <= place else None)
        run(tmp_path / "whole", config)
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))


@pytest.mark.parametrize("policy", ["defer", "predicted", "random_drop", "fae", "hotline"])
def test_these_policies_do_here_what_they_are_for(tmp_path: Path, policy: str) -> None:
    """Or else the tests above would show little."""
    with small_world():
        run(tmp_path / "run", config_of(policy, save_every=7))
    saved = load_checkpoint(tmp_path / "run/weights")
    if policy == "defer":
        assert numbers(tmp_path / "run")["summary"][5] > 0.05
        assert saved.rows["rows0.hot.deferred"].sum() > 5
    elif policy in ("predicted", "random_drop"):
        assert numbers(tmp_path / "run")["summary"][8] > 0.02
    else:
        assert len(saved.policy["rows" if policy == "fae" else "popular"]) > 5


def test_a_model_that_draws_random_numbers_draws_the_same(tmp_path: Path) -> None:
    def draw(model: Hooked, dense: Tensor, pooled: Tensor) -> None:
        if model.training:
            with torch.no_grad():
                dense += 0.1 * torch.randn(dense.shape)
        if model.training and model.calls == killed_at:
            raise Killed

    killed_at = 0
    with small_world() as patch:
        in_model(patch, draw)
        run(tmp_path / "whole", config_of("defer", save_every=6))
        killed_at = 16
        with pytest.raises(Killed):
            run(tmp_path / "cut", config_of("defer", save_every=6))
        killed_at = 0
        torch.manual_seed(99)
        resume_run(tmp_path / "cut")
        in_model(patch, lambda model, dense, pooled: None)
        run(tmp_path / "plain", config_of("defer", save_every=6))
    expected = numbers(tmp_path / "whole")
    assert_equal(numbers(tmp_path / "cut"), expected)
    assert not np.array_equal(numbers(tmp_path / "plain")["dense bottom.0.weight"], expected["dense bottom.0.weight"])


@pytest.mark.parametrize("policy", ["lru", "scratchpipe"])
@pytest.mark.parametrize("at", [3, 20])
def test_a_stop_counts_no_batch_and_makes_no_evaluation_twice(tmp_path: Path, policy: str, at: int) -> None:
    """Within a stretch, where others are planned; behind the last batch of an epoch, where an evaluation is due.

    By policies without feedback, which is taken in earlier where a look-ahead ends.
    """
    config = config_of(policy, save_every=6, eval_every=5, epochs=2, depth=2)
    with small_world() as patch:
        run(tmp_path / "whole", config)
        with interrupted(patch, "stop", at):
            run(tmp_path / "cut", config)
        resume_run(tmp_path / "cut")
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))


def test_an_evaluation_of_a_killed_resumed_run_counts_once(tmp_path: Path) -> None:
    """A run that stops after the last batch of an epoch evaluates when it is resumed."""
    config = config_of("lru", save_every=6, epochs=2)
    with small_world(320) as patch:
        run(tmp_path / "whole", config)
        with interrupted(patch, "stop", 10):
            run(tmp_path / "cut", config)
        with interrupted(patch, "kill", 1):
            resume_run(tmp_path / "cut")
        resume_run(tmp_path / "cut")
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))


def test_an_evaluation_before_a_signal_is_made_once(tmp_path: Path) -> None:
    config, written = config_of("lru", save_every=6, eval_every=5), Recorder.write_evaluation
    with small_world() as patch:
        run(tmp_path / "whole", config)

        def write(recorder: Recorder, found: Evaluation, **more: Any) -> None:
            written(recorder, found, **more)
            os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(Recorder, "write_evaluation", write)
        with pytest.raises(SystemExit):
            run(tmp_path / "cut", config)
        patch.setattr(Recorder, "write_evaluation", written)
        resume_run(tmp_path / "cut")
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))
