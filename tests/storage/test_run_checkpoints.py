"""The directory of a run that is interrupted and gone on with: checkpoints, records, TensorBoard, what is refused."""

import io
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.failing_disk import FailingDisk, fails_at_each
from support.interrupted import Killed, assert_equal, config_of, interrupted, numbers, resume_run, run, small_world
from support.manifests import edit_manifest
from support.toy import ToyData, toy_config
from support.toy_runs import in_model, nothing_is_left_behind  # noqa: F401 (fixture)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from adaptive.errors import CheckpointError, ConfigError, InputError, OutputError
from adaptive.storage import checkpoint
from adaptive.storage.checkpoint import MANIFEST, Checkpoint, Checkpoints, load_best, load_checkpoint
from adaptive.storage.durable import Disk
from adaptive.storage.run_directory import RunDirectory, newest_checkpoint, read_record
from adaptive.system import StopRequest
from adaptive.training.components import open_data
from adaptive.training.runs import evaluate_run, resuming, training
from adaptive.training.runs.loop import Loop
from adaptive.training.telemetry.jsonl import drop_after, read_metrics, to_line
from adaptive.training.telemetry.record import EvalRecord, IntervalRecord, ResumeRecord, RunRecord


@pytest.fixture(name="world", autouse=True)
def world_fixture() -> Iterator[pytest.MonkeyPatch]:
    with small_world() as patch:
        yield patch


def killed(world: pytest.MonkeyPatch, out: Path, at: int = 13, **changed: Any) -> Path:
    """A run that has saved after batch 5 and 10 and was killed in step `at`."""
    with interrupted(world, "kill", at):
        run(out, config_of("lru", **{"save_every": 5, "log_every": 2} | changed))
    return out


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# -- what lies in the directory -----------------------------------------------------------------------------------


def test_a_run_has_one_checkpoint_and_weights_at_its_end(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, seen = tmp_path / "run", list[list[str]]()

    def look(model: Any, dense: Any, pooled: Any) -> None:
        actual = [name for name in names(out) if name.startswith(("checkpoint", "weights"))]
        if actual not in seen:
            seen.append(actual)

    in_model(world, look)
    run(out, config_of("lru", save_every=8, depth=0))
    assert seen == [[], ["checkpoint-8"], ["checkpoint-16"], ["weights"]]
    assert load_checkpoint(out / "weights").meta["steps"] == 20


def test_a_run_that_was_killed_can_be_evaluated(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    actual = evaluate_run(killed(world, tmp_path / "run"))
    run(tmp_path / "short", config_of("lru", steps=10))
    assert actual["steps"] == 10 and actual["auc"] == evaluate_run(tmp_path / "short")["auc"]


def test_a_checkpoint_that_is_replaced_while_it_is_read(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As when a run is evaluated that is under way."""
    out, calls = killed(world, tmp_path / "run"), list[str]()

    def load(path: Path, **options: Any) -> Checkpoint:
        calls.append(path.name)
        if len(calls) == 1:
            (out / "checkpoint-10").rename(out / "checkpoint-15")
        return load_checkpoint(path, **options)

    world.setattr(checkpoint, "load_checkpoint", load)
    assert load_best(out)[0].name == "checkpoint-15" and calls == ["checkpoint-10", "checkpoint-15"]


def test_a_stop_replaces_the_last_checkpoint_by_weights(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with interrupted(world, "stop", 13):
        run(tmp_path, config_of("lru", save_every=5, depth=0))  # none is planned that is trained, too
    assert names(tmp_path) == ["metrics.jsonl", "run.json", "weights"]
    assert load_best(tmp_path)[1].meta["steps"] == 13
    with interrupted(world, "kill", 4):  # step 17
        resume_run(tmp_path)
    assert names(tmp_path) == ["checkpoint-15", "metrics.jsonl", "run.json"]


def test_a_run_stopped_before_its_first_step_resumes(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop_first(loop: Loop, stop: StopRequest, **calls: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        train(loop, stop, **calls)

    train = Loop.run
    with world.context() as stopping:
        stopping.setattr(Loop, "run", stop_first)
        with pytest.raises(SystemExit) as caught:
            run(tmp_path / "cut", config_of("defer"))
    assert caught.value.code == 130 and load_best(tmp_path / "cut")[1].meta["steps"] == 0
    resume_run(tmp_path / "cut")
    run(tmp_path / "whole", config_of("defer"))
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))


def test_what_a_killed_run_left_half_written_is_removed(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run")
    for name in ("checkpoint-15.tmp-99", "weights.tmp-7", "checkpoint-5"):
        (out / name).mkdir()
        (out / name / MANIFEST).write_text("{")
    resume_run(out)
    assert names(out) == ["metrics.jsonl", "run.json", "weights"]
    assert resumed_steps(out) == [10]


def test_a_whole_checkpoint_is_there_whatever_fails(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run")
    saved = load_checkpoint(out / "checkpoint-10")
    content = replace(saved, rows=dict(list(saved.rows.items())[:2]), optimizer={}, dense={})
    actual = set()

    def attempt(disk: FailingDisk) -> None:
        written = Checkpoints(out, disk=disk)
        before = newest_checkpoint(out).name
        number = 11 if before == "weights" else int(before.split("-")[1]) + 1
        try:
            written.add(number, content)
            written.finish(number + 1, content)
        except OutputError:
            assert disk.count >= disk.fail_at
        actual.add(load_best(out)[0].name)

    assert fails_at_each(attempt) > 20
    assert "weights" in actual and len(actual) > 5


@pytest.mark.parametrize("policy", ["lru", "defer"])
def test_a_full_disk_ends_the_run_and_the_last_checkpoint_stays(
    world: pytest.MonkeyPatch, tmp_path: Path, policy: str
) -> None:
    written: list[int] = []

    def write(disk: Disk, file: Any, data: Any) -> None:
        written.append(len(data))
        if "checkpoint-10" in file.name and "rows" in file.name:
            raise OSError(28, "No space left on device")
        file.write(data)

    config, original = config_of(policy, save_every=5), Disk.write
    world.setattr(Disk, "write", write)
    with pytest.raises(
        OutputError, match=r"checkpoint-10: expected a place that can be written.*No space left"
    ) as caught:
        run(tmp_path / "cut", config)
    assert caught.value.exit_code == 6
    assert read_record(tmp_path / "cut")["status"] == "stopped"
    assert [name for name in names(tmp_path / "cut") if "checkpoint" in name] == ["checkpoint-5"]
    world.setattr(Disk, "write", original)
    resume_run(tmp_path / "cut")
    run(tmp_path / "whole", config)
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))


# -- records ------------------------------------------------------------------------------------------------------


def resumed_steps(out: Path) -> list[int]:
    return [record.step for record in read_metrics(out / "metrics.jsonl") if isinstance(record, ResumeRecord)]


def test_records_of_later_steps_are_dropped_and_reported(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, stream = killed(world, tmp_path / "run", at=18), io.StringIO()  # saved after 15; records after 16 and 17
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"kind": "interval", "st')  # cut off by the kill
    resume_run(out, stream=stream)
    run(tmp_path / "whole", config_of("lru", save_every=5, log_every=2))
    records = read_metrics(out / "metrics.jsonl")
    assert isinstance(records[0], RunRecord)
    steps = [record.step for record in records if isinstance(record, IntervalRecord)]
    assert steps == [2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19, 20]
    (said,) = [record for record in records if isinstance(record, ResumeRecord)]
    assert (said.step, said.dropped) == (15, 1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == (
        f"resumed after step 15 from {out}/checkpoint-15; dropped 1 record(s) of later steps from metrics.jsonl"
    )
    assert lines[1] == "policy lru: prefetches missed rows; skips no updates"
    assert lines[2].startswith(" 85% | step 17 | ") and "versions" not in stream.getvalue()
    whole = [r for r in read_metrics(tmp_path / "whole/metrics.jsonl") if isinstance(r, IntervalRecord)]
    for mine, theirs in zip([r for r in records if isinstance(r, IntervalRecord)], whole, strict=True):
        for name in ("step", "samples", "loss", "auc", "log_loss"):
            assert getattr(mine, name) == getattr(theirs, name), (mine.step, name)


@pytest.mark.parametrize(("every", "policy"), [(4, "lru"), (5, "defer"), (20, "lru")])
def test_evaluations_on_the_way_are_there_once(
    world: pytest.MonkeyPatch, tmp_path: Path, every: int, policy: str
) -> None:
    """Those before the checkpoint stay, those behind it are made again; also where both are due at one batch."""
    config = config_of(policy, save_every=4, eval_every=every, epochs=2)
    run(tmp_path / "whole", config)
    with interrupted(world, "kill", 14):
        run(tmp_path / "cut", config)
    with interrupted(world, "kill", 10):  # step 22
        resume_run(tmp_path / "cut")
    resume_run(tmp_path / "cut")
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))
    cut, whole = (read_record(tmp_path / name)["summary"]["evaluations"] for name in ("cut", "whole"))
    assert cut == whole and len(whole) == {4: 10, 5: 8, 20: 2}[every]


def test_an_interrupted_evaluation_is_repeated_on_resume(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config, evaluated = config_of("lru", eval_every=6, save_every=6), list[int]()
    run(tmp_path / "whole", config)

    def stop_in_evaluation(model: Any, dense: Any, pooled: Any) -> None:
        if not model.training and not evaluated:
            evaluated.append(model.calls)
            os.kill(os.getpid(), signal.SIGTERM)

    in_model(world, stop_in_evaluation)
    with pytest.raises(SystemExit):
        run(tmp_path / "cut", config)
    assert evaluated == [6] and load_best(tmp_path / "cut")[1].meta["steps"] == 6
    resume_run(tmp_path / "cut")
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))
    assert [point["step"] for point in read_record(tmp_path / "cut")["summary"]["evaluations"]] == [6, 12, 18, 20]


def test_run_json_records_what_happened(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run", depth=0)
    assert read_record(out)["status"] == "stopped"
    started = read_record(out)["start"]
    with interrupted(world, "stop", 3):
        resume_run(out)
    resume_run(out, steps=18)
    record = read_record(out)
    assert (record["status"], record["start"], record["config"]["steps"]) == ("finished", started, 18)
    assert [resumed["step"] for resumed in record["resumed"]] == [10, 13]
    assert "error" not in record and record["summary"]["steps"] == 18
    assert resumed_steps(out) == [10, 13]


def test_missing_metrics_are_started_again(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run")
    (out / "metrics.jsonl").unlink()
    resume_run(out)
    records = read_metrics(out / "metrics.jsonl")
    assert isinstance(records[0], RunRecord) and isinstance(records[1], ResumeRecord)


def test_dropping_records(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert drop_after(path, 3, evaluation=True) == 0 and not path.exists()
    evaluations = [EvalRecord(step=step, samples=1, auc=None, log_loss=None) for step in (1, 2, 3)]
    lines = [to_line(record).decode().rstrip() for record in evaluations]
    path.write_text("\n".join(lines) + "\n")
    assert drop_after(path, 3, evaluation=False) == 0
    assert drop_after(path, 3, evaluation=True) == 1
    assert drop_after(path, 1, evaluation=False) == 1
    assert path.read_text() == lines[0] + "\n"
    path.write_text(lines[0] + "\n" + lines[1])
    assert drop_after(path, 3, evaluation=False) == 0 and path.read_text() == lines[0] + "\n"
    path.write_text("{}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl:1\)"):
        drop_after(path, 3, evaluation=False)


def test_tensorboard_shows_each_step_once(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run", at=18, tensorboard=True)
    assert len(list((out / "tensorboard").iterdir())) == 1
    shown = EventAccumulator(str(out / "tensorboard")).Reload()
    assert [event.step for event in shown.Scalars("1_training/loss")][-2:] == [15, 17]
    resume_run(out)
    shown = EventAccumulator(str(out / "tensorboard")).Reload()
    steps = [event.step for event in shown.Scalars("1_training/loss")]
    assert steps == [2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19, 20]
    (text,) = shown.Tensors("resumed")
    assert text.tensor_proto.string_val == [b"resumed after step 15"]


def test_tensorboard_shows_an_evaluation_once_that_is_made_again(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Killed when all was written but that the run is finished: it evaluates once more."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    config = config_of("lru", log_every=3, tensorboard=True)
    run(whole, config)

    def killed_at_last(*arguments: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as own:
        own.setattr(RunDirectory, "finish", killed_at_last)
        with pytest.raises(Killed):
            run(out, config)
    resume_run(out)
    actual, expected = (EventAccumulator(str(one / "tensorboard")).Reload() for one in (out, whole))
    assert actual.Tags()["scalars"] == expected.Tags()["scalars"]
    for tag in expected.Tags()["scalars"]:
        steps, values = zip(*((event.step, event.value) for event in expected.Scalars(tag)), strict=True)
        assert [event.step for event in actual.Scalars(tag)] == list(steps), tag
        if "time" not in tag and "samples_per_s" not in tag:
            assert [event.value for event in actual.Scalars(tag)] == list(values), tag


# -- how long -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [({"steps": 7}, {"steps": 16}), ({"epochs": 1}, {"epochs": 2})])
def test_a_finished_run_can_be_made_longer(tmp_path: Path, before: dict[str, int], after: dict[str, int]) -> None:
    """By a policy without feedback, which is taken in earlier where a look-ahead ends."""
    run(tmp_path / "cut", config_of("lru", **before))
    resume_run(tmp_path / "cut", **after)
    run(tmp_path / "whole", config_of("lru", **after))
    actual, expected = (numbers(tmp_path / name, placement=False) for name in ("cut", "whole"))
    if "steps" in after:  # what it was like before is not forgotten
        assert actual["evaluations"][0, 0] == 7
        actual["evaluations"] = actual["evaluations"][1:]
    assert_equal(actual, expected)


@pytest.mark.parametrize("kills", [1, 2])
def test_an_extended_run_that_is_killed_keeps_its_evaluation(
    world: pytest.MonkeyPatch, tmp_path: Path, kills: int
) -> None:
    """In its third forward pass; how often in a row changes nothing."""
    run(tmp_path / "cut", config_of("lru", steps=7))
    for _ in range(kills):
        with interrupted(world, "kill", 3):
            resume_run(tmp_path / "cut", steps=16)
    resume_run(tmp_path / "cut", steps=16)
    run(tmp_path / "whole", config_of("lru", steps=16))
    actual, expected = (numbers(tmp_path / name, placement=False) for name in ("cut", "whole"))
    assert actual["evaluations"][:, 0].tolist() == [7, 16]
    actual["evaluations"] = actual["evaluations"][1:]
    assert_equal(actual, expected)


def test_wrong_lengths_are_refused(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run")
    with pytest.raises(ConfigError, match="expected steps of at least 10, which are trained, got 9"):
        resume_run(out, steps=9)
    assert resume_run(out, steps=10)["steps"] == 10
    with pytest.raises(
        ConfigError,
        match=r"expected more than 10 steps, which are trained, got a finished run .*Raise --steps or --epochs",
    ):
        resume_run(out)
    resume_run(out, steps=50, epochs=3)
    with pytest.raises(ConfigError, match="expected epochs of at least 3, which have begun, got 2"):
        resume_run(out, steps=60, epochs=2)


def test_a_run_that_only_lacks_its_evaluation(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(model: Any, dense: Any, pooled: Any) -> None:
        if not model.training:
            raise Killed

    in_model(world, interrupt)
    with pytest.raises(Killed):
        run(tmp_path / "cut", config_of("lru"))
    in_model(world, lambda model, dense, pooled: None)
    actual = resume_run(tmp_path / "cut")
    assert actual["steps"] == 20 and actual["auc_of"] == "evaluation"
    assert len([r for r in read_metrics(tmp_path / "cut/metrics.jsonl") if isinstance(r, EvalRecord)]) == 1


# -- what is refused ----------------------------------------------------------------------------------------------


def test_damage_is_named(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run")
    file = next((out / "checkpoint-10").glob("optimizer-*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    message = rf"{file.name}: expected sha256 .* restore a copy of it, or train from scratch with --config .*run\.json"
    with pytest.raises(CheckpointError, match=message) as caught:
        resume_run(out)
    assert caught.value.exit_code == 4
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"{file.name}: expected a regular file, got No such file"):
        resume_run(out)
    del before[file]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_nothing_to_resume_is_an_error(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/run\.json: expected the record of a run"):
        resume_run(tmp_path / "nowhere")
    assert names(tmp_path) == []
    out = killed(world, tmp_path / "run", at=3)
    with pytest.raises(CheckpointError, match=r"weights/manifest\.json: expected a regular file"):
        resume_run(out)
    run(tmp_path / "unsaved", toy_config(steps=2, save=False))
    with pytest.raises(CheckpointError, match=r"weights/manifest\.json: expected a regular file"):
        resume_run(tmp_path / "unsaved", steps=3)


def edit_meta(folder: Path, change: Any) -> None:
    edit_manifest(folder, lambda manifest: change(manifest["meta"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.pop("progress"), r"expected .*meta\.progress\)"),
        (
            lambda meta: meta["progress"]["place"].update(taken=-1),
            r"^place\.taken: expected a value .*, got -1 .*meta\.progress\)",
        ),
        (
            lambda meta: meta["progress"]["recorder"]["totals"].update(steps="many"),
            r"^recorder\.totals\.steps: .*meta\.progress\)",
        ),
        (lambda meta: meta["tables"].pop(), "expected the tables .*, got .*checkpoint-10"),
    ],
)
def test_wrong_progress_is_refused(world: pytest.MonkeyPatch, tmp_path: Path, change: Any, message: str) -> None:
    out = killed(world, tmp_path / "run")
    edit_meta(out / "checkpoint-10", change)
    with pytest.raises(CheckpointError, match=message):
        resume_run(out)


def test_other_data_are_refused(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = killed(world, tmp_path / "run")
    (out / "rejects.jsonl").write_text("bad line 7\n")
    before = read_record(out)
    world.setattr(resuming, "open_data", lambda config, run_directory=None: ToyData(seed=1))
    with pytest.raises(InputError, match=r"expected the data of .*seed: expected 0, got 1"):
        resume_run(out)
    assert (out / "rejects.jsonl").read_text() == "bad line 7\n" and read_record(out) == before


# -- other state of a run -----------------------------------------------------------------------------------------


def test_file_traffic_continues(world: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tier = {"device_rows": "60%", "host": f"mmap:{tmp_path / 'rows'}"}
    config = config_of("lru", tier=tier, save_every=5)
    with interrupted(world, "kill", 13):
        run(tmp_path / "cut", config)
    before = load_checkpoint(tmp_path / "cut/checkpoint-10").meta["progress"]["file_bytes"]
    actual = resume_run(tmp_path / "cut")
    assert (
        actual["host_bytes_read"] > before["bytes_read"] and actual["host_bytes_written"] > before["bytes_written"] > 0
    )
    run(tmp_path / "whole", config)
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))


def criteo_lines(num: int) -> str:
    rng = np.random.default_rng(5)
    lines = []
    for number in range(num):
        label = "?" if number % 40 == 7 else str(int(rng.random() < 0.3))
        integers = [str(rng.integers(0, 50)) for _ in range(13)]
        categories = [f"{int(rng.zipf(1.5)) % 30:08x}" for _ in range(26)]
        lines.append("\t".join([label, *integers, *categories]))
    return "\n".join(lines) + "\n"


def test_bad_lines_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines that were read are read again; a fitted vocabulary is the one of the run."""
    (tmp_path / "day_0").write_text(criteo_lines(400))
    options = {"holdout": 0.2, "vocabulary": True, "max_bad_fraction": 0.1}
    config = config_of("lru", data=f"criteo:{tmp_path / 'day_0'}", data_options=options, save_every=4)
    config = config.model_copy(update={"batch_size": 20, "depth": 1})
    caplog.set_level(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        for module in (training, resuming):
            patch.setattr(module, "open_data", open_data)
        run(tmp_path / "whole", config)
        with interrupted(patch, "kill", 11):
            run(tmp_path / "cut", config)
        resume_run(tmp_path / "cut")
    assert_equal(numbers(tmp_path / "cut"), numbers(tmp_path / "whole"))
    cut, whole = (tmp_path / name for name in ("cut", "whole"))
    assert (cut / "rejects.jsonl").read_text() == (whole / "rejects.jsonl").read_text()
    assert len((cut / "rejects.jsonl").read_text().splitlines()) == 10
    assert read_record(cut)["summary"]["rejected_lines"] == read_record(whole)["summary"]["rejected_lines"]
