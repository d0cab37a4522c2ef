"""Runs that follow a folder: order, judging before training, kills, changed and late files, ends, refused settings."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.followed import config, put
from support.interrupted import Killed, assert_equal, numbers
from support.toy_runs import nothing_is_left_behind

from adaptive.cli.app import main
from adaptive.config import TrainConfig
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.errors import ConfigError, InputError
from adaptive.models.loss import start_at_base_rate
from adaptive.serving import export_run
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.storage.run_directory import newest_checkpoint
from adaptive.training.components import build, torch_settings
from adaptive.training.evaluation import evaluate
from adaptive.training.runs import auto_resume_run, evaluate_run, following, plan_run, resume_run, train_run
from adaptive.training.runs import run as run_module
from adaptive.training.runs.state import saved_progress
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.trainer import Trainer

__all__ = ["nothing_is_left_behind"]


class Polls(list[Callable[[], object]]):
    """What happens in the folder while a run waits, look by look; when nothing is left, it has waited long enough."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        if self:
            self.pop(0)()
        else:
            self.now += 1e6

    def pass_minutes(self, number: float) -> None:
        self.append(lambda: setattr(self, "now", self.now + 60 * number))


@pytest.fixture(name="polls", autouse=True)
def polls_fixture(monkeypatch: pytest.MonkeyPatch) -> Polls:
    polls = Polls()
    monkeypatch.setattr(following, "sleep", polls.sleep)
    monkeypatch.setattr(following, "monotonic", lambda: polls.now)
    return polls


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def judged(out: Path) -> list[EvalRecord]:
    return [record for record in read_metrics(out / "metrics.jsonl") if isinstance(record, EvalRecord)]


def hit(patch: pytest.MonkeyPatch, owner: object, name: str, at: int) -> None:
    """The run is killed in call number `at` of a function."""
    calls, original = [0], getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise Killed
        return original(*arguments, **options)

    patch.setattr(owner, name, counted)


@pytest.mark.filterwarnings("ignore:the look-ahead was closed")
@pytest.mark.parametrize("policy", ["lru", pytest.param("random_drop", marks=pytest.mark.nightly)])
def test_killed_runs_equal_one_that_saw_all_files_at_once(tmp_path: Path, policy: str) -> None:
    """Killed while training, judging and saving, with other files in the folder each time."""
    for number in range(5):
        put(tmp_path / "all", number)
        if number < 2:
            put(tmp_path / "some", number)
    whole = train_run(config(tmp_path, "whole", data="all", batch_size=4, policy=policy))
    cut = config(tmp_path, "cut", data="some", batch_size=4, policy=policy)
    for number, (owner, name, at) in enumerate(
        [(Trainer, "step", 17), (run_module, "evaluate", 1), (run_module.Run, "_content", 2)], start=2
    ):
        with pytest.MonkeyPatch.context() as patch:
            hit(patch, owner, name, at)
            with pytest.raises(Killed):
                auto_resume_run(cut)
        put(tmp_path / "some", number)
    resumed = auto_resume_run(cut)
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))
    assert resumed["expired_keys"] == whole["expired_keys"] and resumed["files"] == 5
    assert resumed["evaluations"] == whole["evaluations"]
    assert resumed["rejected_lines"] == whole["rejected_lines"] == {"label": 5}
    assert [record.file for record in judged(tmp_path / "cut")] == [f"d{number}.csv" for number in range(5)]


def test_judged_as_a_loop_that_evaluates_and_then_trains(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "all", number)
    followed = config(tmp_path, "run", data="all", policy="lfu")
    summary = train_run(followed)
    options = DataOptions(**followed.data_options)
    files = [open_dataset(f"csv:{file}", options) for file in sorted((tmp_path / "all").iterdir())]
    expected = []
    with torch_settings(followed):
        components = build(followed, files[0])
        with components.embeddings:
            start_at_base_rate(components.model, files[0].train(followed.batch_size))
            trainer = Trainer(components.embeddings, components.model, components.optimizer)
            for file in files:
                quality = evaluate(components.embeddings, components.model, file.train(20))
                expected.append((trainer.recorder.steps, quality.auc, quality.log_loss, quality.calibration))
                trainer.train(file.train(followed.batch_size))
    assert [(r.step, r.auc, r.log_loss, r.calibration) for r in judged(tmp_path / "run")] == expected
    assert summary["auc"] == pytest.approx(np.mean([auc for _, auc, *_ in expected]), abs=1e-12)
    assert summary["auc_of"] == "files" and "mean of the latest 3 files" in summary["table"]


def test_files_that_come_are_trained_in_the_order_of_their_names(
    tmp_path: Path, polls: Polls, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    put(folder, 3)
    (folder / ".d9.csv").write_text("being written")
    (folder / "_d9.csv").write_text("being written")
    (folder / "d9.csv.tmp").write_text("being written")
    polls += [lambda: [put(folder, number) for number in (8, 5)], lambda: put(folder / "e=1", 9)]
    polls.append(lambda: put(folder, 4))
    train_run(config(tmp_path, "run", data="in"))
    assert [record.file for record in judged(tmp_path / "run")] == ["d3.csv", "d5.csv", "d8.csv", "e=1/d9.csv"]
    assert re.search(r"d4.csv: expected a name behind e=1/d9.csv, which is trained, got an earlier one", caplog.text)


def test_empty_files_and_removed_ones(tmp_path: Path, polls: Polls) -> None:
    """The first one is empty, and another; a trained file may go, also before a resume."""
    folder = tmp_path / "in"
    put(folder, 0, samples=0)
    put(folder, 1)
    put(folder, 2, samples=0)
    polls += [(folder / "d1.csv").unlink, lambda: put(folder, 3)]
    train_run(config(tmp_path, "run", data="in"))
    assert [(record.file, record.step) for record in judged(tmp_path / "run")] == [("d1.csv", 0), ("d3.csv", 7)]
    for file in folder.iterdir():
        file.unlink()
    put(folder, 4)
    assert resume_run(tmp_path / "run")["files"] == 5


def test_a_file_that_changes_while_the_run_waits_is_named(tmp_path: Path, polls: Polls) -> None:
    put(tmp_path / "in", 0)
    polls.append(lambda: put(tmp_path / "in", 0, samples=70))
    with pytest.raises(InputError, match=r"d0.csv: expected \d+ bytes, as when the data set was opened"):
        train_run(config(tmp_path, "run", data="in"))


def test_a_file_that_changes_while_it_is_trained_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "in", 0)
    monkeypatch.setattr(Trainer, "measure", lambda self, planned: os.utime(tmp_path / "in" / "d0.csv", (1, 1)))
    with pytest.raises(InputError, match=r"d0.csv: expected the file as it was .* modification time"):
        train_run(config(tmp_path, "run", data="in"))


@pytest.mark.filterwarnings("ignore:the look-ahead was closed")
def test_a_file_that_changed_since_the_checkpoint_is_named(tmp_path: Path) -> None:
    """If its rows are trained it may be gone, but not changed; if some are not, it is needed."""
    folder, followed = tmp_path / "in", config(tmp_path, "run", data="in")
    put(folder, 0)
    with pytest.MonkeyPatch.context() as patch:
        hit(patch, Trainer, "step", 6)
        with pytest.raises(Killed):
            train_run(followed)
    kept = (folder / "d0.csv").read_bytes()
    put(folder, 0, samples=70)
    changed = r"d0.csv: expected the file that was read before the checkpoint"
    with pytest.raises(InputError, match=changed):
        resume_run(tmp_path / "run")
    put(folder, 1)
    (folder / "d0.csv").unlink()
    with pytest.raises(InputError, match=r"d0.csv: expected a file, got an error"):
        resume_run(tmp_path / "run")
    (folder / "d0.csv").write_bytes(kept)
    assert resume_run(tmp_path / "run")["files"] == 2
    put(folder, 1, samples=70)
    with pytest.raises(InputError, match=changed.replace("d0", "d1")):
        resume_run(tmp_path / "run")


def test_a_signal_ends_it_with_a_checkpoint(tmp_path: Path, polls: Polls) -> None:
    """While it waits, and in the middle of a file."""
    put(tmp_path / "in", 0)
    polls.append(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit, match="143"):
        train_run(config(tmp_path, "run", data="in", save_every=None))
    put(tmp_path / "in", 1)
    kills = iter([lambda: os.kill(os.getpid(), signal.SIGTERM)])  # a second signal would end the process at once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "measure", lambda self, planned: next(kills, lambda: None)())
        with pytest.raises(SystemExit, match="143"):
            resume_run(tmp_path / "run")
    assert resume_run(tmp_path / "run")["files"] == 2
    train_run(config(tmp_path, "whole", data="in"))
    assert_equal(numbers(tmp_path / "run"), numbers(tmp_path / "whole"))


def test_saves_by_time_and_an_export_meanwhile(tmp_path: Path, polls: Polls) -> None:
    """Every ten minutes, between two files; nothing is saved while nothing is new."""
    saved = list[tuple[str, bool]]()

    def look() -> None:
        checkpoint = newest_checkpoint(tmp_path / "run")
        place = saved_progress(load_checkpoint(checkpoint), checkpoint).place
        assert place.file is not None
        saved.append((place.file.name, place.over))

    def export() -> None:
        look()
        assert export_run(tmp_path / "run", tmp_path / "served").checked_rows == 50

    put(tmp_path / "in", 0)
    polls.pass_minutes(9)
    polls.pass_minutes(2)
    polls += [export, lambda: put(tmp_path / "in", 1)]
    polls.pass_minutes(9.5)
    polls.append(look)
    polls.pass_minutes(1)
    polls.append(look)
    polls.pass_minutes(30)
    train_run(config(tmp_path, "run", data="in", save_every=None, until="idle=2h"))
    assert saved == [("d0.csv", True), ("d0.csv", True), ("d1.csv", True)]


def test_what_is_remembered_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MOST_JUDGED", 2)
    for number in range(3):
        put(tmp_path / "in", number)
    summary = train_run(config(tmp_path, "run", data="in"))
    assert [one["file"] for one in summary["evaluations"]] == ["d1.csv", "d2.csv"] and summary["files"] == 3
    progress = load_checkpoint(tmp_path / "run" / "weights").meta["progress"]
    assert len(progress["evaluations"]) == 2 and progress["place"]["file"]["name"] == "d2.csv"
    assert len(judged(tmp_path / "run")) == 3


def test_a_finished_run_goes_on_with_later_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "in", 0)
    config(tmp_path, "run", data="in")
    command = ["run", "--data", f"csv:{tmp_path / 'in'}", "--schema", f"{tmp_path / 'schema.toml'}", "--follow"]
    command += [
        "--set",
        "data.max_bad_fraction=0.1",
        "--until",
        "idle=1s",
        "--batch-size",
        "8",
        "--out",
        str(tmp_path / "run"),
        "--auto-resume",
        "--json",
    ]
    for number in range(2):
        assert exit_code(*command) == 0
        assert json.loads(capsys.readouterr().out)["files"] == number + 1
        put(tmp_path / "in", number + 1)
    assert exit_code("run", "--resume", str(tmp_path / "run"), "--until", "idle=2s", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"] == 3
    with pytest.raises(ConfigError, match="expected --data SPEC, got none"):
        evaluate_run(tmp_path / "run")
    assert evaluate_run(tmp_path / "run", data=f"csv:{tmp_path / 'in' / 'd2.csv'}")["eval_samples"] == 50


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epochs": 2}, "expected no epochs with follow=true, got 2"),
        ({"patience": 5}, "expected no patience with follow=true"),
        ({"save": "best"}, "expected save=true with follow=true, got best"),
        ({"until": "10m"}, "expected idle=TIME such as idle=90s"),
        ({"follow": False}, "expected follow=true with until=idle=1s, got follow=false"),
        ({"follow": False, "until": None, "save_every": "10m"}, "expected follow=true with save_every=10m"),
        ({"data_options": {"shuffle_buffer": 9}}, "run --follow expected no data.shuffle_buffer"),
        ({"policy": "fae"}, "run --follow expected a policy that keeps batches, got fae"),
        ({"data": "synthetic"}, "expected data csv:FOLDER or parquet:FOLDER, got synthetic"),
        ({"data": "csv:in/d0.csv"}, "expected a folder to follow, got none"),
        ({"data": "csv:empty"}, "expected at least one csv file to begin with, got none"),
    ],
)
def test_what_cannot_follow_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "in", 0)
    (tmp_path / "empty").mkdir()
    given = config(tmp_path, "run", data="in").model_dump()
    for name, value in changed.items():
        given[name] = {**given[name], **value} if isinstance(value, dict) else value
    with pytest.raises((ConfigError, InputError, ValueError), match=message):
        plan_run(TrainConfig.model_validate(given))


def test_other_commands_and_ranks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "in", 0)
    for command in (["compare", "--policies", "lru"], ["simulate"]):
        assert exit_code(*command, "--data", f"csv:{tmp_path / 'in'}", "--set", "follow=true") == 2
        assert "Only `run` follows a folder" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="expected a single process, got ranks"):
        following.refuse_following(config(tmp_path, "run", data="in"), object())  # type: ignore[arg-type]


def test_parquet_files_and_those_of_nested_folders(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    for number, folder in enumerate(("day=1", "day=1", "day=2")):
        put(tmp_path / "texts", number)
        table = csv.read_csv(tmp_path / "texts" / f"d{number}.csv").filter(pa.array([True] * 50 + [False]))
        (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, tmp_path / "in" / folder / f"{number}.parquet", row_group_size=20)
    summary = train_run(config(tmp_path, "run", data="in", kind="parquet"))
    assert [record.file for record in judged(tmp_path / "run")] == [
        "day=1/0.parquet", "day=1/1.parquet", "day=2/2.parquet"
    ]  # fmt: skip
    assert summary["steps"] == 3 * 7
