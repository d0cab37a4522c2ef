"""Windows of time: an epoch trains one and is judged on the next, from files and built-in streams."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.toy_runs import all_weights, assert_equal

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset, by_table, training_batches, window_bounds
from adaptive.data.key_numbers import number_keys
from adaptive.data.open import open_dataset
from adaptive.data.prepared import prepared_writer
from adaptive.data.prepared.prepared_writer import prepare
from adaptive.data.rows import split
from adaptive.errors import ConfigError, InputError
from adaptive.models.tasks import start_at_base_rate
from adaptive.studies.simulate.simulation import simulate
from adaptive.studies.step_model import Machine
from adaptive.training.components import build, total_steps
from adaptive.training.runs.loading import evaluate_run, load_run
from adaptive.training.runs.resuming import resume_run
from adaptive.training.runs.training import train_run
from adaptive.training.trainer import Trainer

SCHEMA = """
label = {{ column = "click" }}
time = {{ column = "time", kind = "{kind}" }}
dense = [{{ columns = ["number"] }}]
[[categorical]]
columns = ["item"]
kind = "int"
num_embeddings = 50
missing = "reject"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(times: list[Any], kind: str = "number") -> DataOptions:
    """Rows numbered by their dense input, with these times."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(2)},{number},{rng.integers(50)},{time}" for number, time in enumerate(times)]
    Path("rows.csv").write_text("\n".join(["click,number,item,time", *rows]) + "\n")
    Path("rows.toml").write_text(SCHEMA.format(kind=kind))
    return DataOptions(schema_path=Path("rows.toml"))


def opened(options: DataOptions, windows: Any, **more: Any) -> Dataset:
    return open_dataset("csv:rows.csv", DataOptions(**{**options.model_dump(), "windows": windows, **more}))


def numbers(batches: Iterator[Batch]) -> list[int]:
    return [int(number) for batch in batches for number in batch.dense[:, 0]]


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=40), st.sampled_from([1, 7, 2.5, 0.1, 1 / 3]), st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_each_window_are_those_of_its_time(times: list[float], length: float, in_order: bool) -> None:
    """In any order of rows, also at the bounds of windows; read from marks in the files."""
    times = sorted(times) if in_order else times
    options = write(times)
    windows: dict[int, list[int]] = {}
    for number, time in enumerate(times):
        first = next(n for n in range(-1000, 1000) if n * length <= time < (n + 1) * length)
        windows.setdefault(first, []).append(number)
    expected = [windows[number] for number in sorted(windows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "MARK_ROWS", 4)
        if len(expected) < 2:
            with pytest.raises(InputError, match=r"data.windows: expected rows in two windows or more, got all in one"):
                opened(options, length)
            return
        dataset = opened(options, length)
    assert dataset.windows == tuple(map(len, expected)) and dataset.num_train_samples() == len(expected[0])
    for epoch in range(len(expected) - 1):
        assert numbers(dataset.train(3, epoch=epoch)) == expected[epoch]
        assert numbers(dataset.evaluation_after(epoch, 3)) == expected[epoch + 1]
        shuffled = numbers(opened(options, length, shuffle_buffer=100).train(3, epoch=epoch))
        assert sorted(shuffled) == expected[epoch]
    assert numbers(dataset.evaluation(3)) == expected[-1]
    assert numbers(training_batches(dataset, 3)) == [number for window in expected[:-1] for number in window]


def test_days_of_iso_times_are_those_of_utc() -> None:
    times = ["2019-11-29 23:59:59", "2019-11-30 00:00:00", "2019-11-30 23:59:59.9", "2019-12-02 05:00:00"]
    dataset = opened(write(times, "iso"), "1d")
    assert dataset.windows == (1, 2, 1)  # a day without rows is no window
    assert opened(write(times, "iso"), "2d").fingerprint() != dataset.fingerprint()
    assert "windows" not in open_dataset("csv:rows.csv", write(times, "iso")).fingerprint()


@pytest.mark.parametrize("data", ["synthetic", "sequences"])
def test_days_of_a_stream_are_windows(data: str) -> None:
    small = {"num_train": 1000, "days": 3, **({"rows": 100_000} if data == "synthetic" else {"users": 50, "items": 90})}
    options = DataOptions.model_validate({data: small, "windows": "1d"})
    dataset = open_dataset(data, options)
    whole = open_dataset(data, DataOptions.model_validate({data: small}))
    assert dataset.windows == (334, 333, 333)
    joined = np.concatenate([batch.labels for epoch in range(3) for batch in dataset.train(100, epoch=epoch)])
    np.testing.assert_array_equal(joined, np.concatenate([batch.labels for batch in whole.train(100)]))
    for epoch in range(2):
        judged = [batch.ids.tolist() for batch in by_table(dataset).evaluation_after(epoch, 100)]
        assert judged == [batch.ids.tolist() for batch in dataset.train(100, epoch=epoch + 1)]
    assert next(dataset.evaluation(10)).ids.tolist() == next(dataset.train(10, epoch=2)).ids.tolist()
    assert whole.fingerprint() != dataset.fingerprint()
    with pytest.raises(ConfigError, match=r"windows: expected a length that cuts the stream into 2 to 1,000 windows, "
                                          r"got 1. Set days"):  # fmt: skip
        open_dataset(data, options.model_copy(update={"windows": "3d"}))


def test_bounds_of_windows() -> None:
    assert window_bounds(10, 30, 10) == [0, 4, 7, 10]
    assert window_bounds(10, 25, 10) == [0, 4, 8, 10]  # the last window is shorter


def test_tastes_change_from_day_to_day() -> None:
    """A user likes two of three categories on the next day, none after three; without days the stream is as before."""
    small = {"users": 40, "items": 9000, "categories": 3000, "num_train": 4000}
    one, many = (DataOptions.model_validate({"sequences": {**small, "days": days}}) for days in (1, 4))
    assert "days" not in open_dataset("sequences", one).fingerprint()
    dataset = open_dataset("sequences", many)
    (batch,) = dataset.train(4000)
    users, categories = batch.ids.reshape(3, 21, 4000)[0, 0], batch.ids.reshape(3, 21, 4000)[2]
    liked: list[set[int]] = []
    for day in range(4):
        part = slice(day * 1000, day * 1000 + 1000)
        of_user = categories[:, part][:, users[part] == 0].reshape(-1)
        values, counts = np.unique(of_user, return_counts=True)
        liked.append(set(values[np.argsort(counts)[-3:]].tolist()))
    for day, other in ((0, 1), (1, 2), (2, 3)):
        assert len(liked[day] & liked[other]) == 2
    assert not liked[0] & liked[3]


def config_of(**changed: Any) -> TrainConfig:
    options = {"schema_path": "rows.toml", "windows": 10}
    given = {"data": "csv:rows.csv", "data_options": options, "batch_size": 16, "tensorboard": False, "log_every": 2}
    model = {"model_options": {"embedding_dim": 4, "bottom_mlp": "4", "top_mlp": "6-1"}, "eval_batch_size": 7}
    return TrainConfig.model_validate({**given, **model, **changed})


def test_a_run_trains_window_by_window_and_can_be_resumed() -> None:
    write(np.repeat(np.arange(40), 3).tolist())
    config = config_of(out="whole", save_every=1)
    dataset = open_dataset(config.data, DataOptions(**config.data_options))
    assert total_steps(config, dataset) == 6 and dataset.windows == (30,) * 4
    whole = train_run(config)
    assert (whole["steps"], whole["samples"], whole["eval_samples"]) == (6, 90, 30)
    windows = whole["windows"]
    assert [(record["window"], record["step"], record["samples"]) for record in windows] == [(1, 2, 30), (2, 4, 30),
                                                                                             (3, 6, 30)]  # fmt: skip
    assert (
        whole["auc"] == windows[-1]["auc"] and "AUC of each window after training on those before: 0." in whole["table"]
    )
    # by hand: the batches of each window, one after the other
    parts = build(config, dataset)
    with parts.embeddings, load_run(Path("whole")) as run:
        start_at_base_rate(parts.model, dataset.train(16))
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        for epoch in range(3):
            trainer.train(dataset.train(16, epoch=epoch))
        trained: dict[str, NDArray[Any]] = all_weights(run.components)
        assert_equal(trained, all_weights(parts))
    assert evaluate_run(Path("whole"))["auc"] == whole["auc"]
    train_run(config_of(out="cut", save_every=1, steps=3))
    resumed = resume_run(Path("cut"), steps=6)
    assert [record["auc"] for record in resumed["windows"]] == [record["auc"] for record in windows]
    with pytest.raises(ConfigError, match="expected more than 6 steps, which are trained, got a finished run"):
        resume_run(Path("whole"))
    few = train_run(config_of(out="few", steps=3, eval_every=1))
    assert [(record["window"], record["step"]) for record in few["windows"]] == [(1, 2), (2, 3)]


def everything(dataset: Dataset, size: int) -> list[list[list[Any]]]:
    """Batches of each window as it is trained and as it is evaluated, and of the last one."""
    read = [dataset.train(size, epoch=epoch) for epoch in range(len(dataset.windows) - 1)]
    read += [dataset.evaluation_after(epoch, size) for epoch in range(len(dataset.windows) - 1)]
    return [
        [[batch.dense.tolist(), batch.ids.tolist(), batch.labels.tolist()] for batch in batches]
        for batches in (*read, dataset.evaluation(size))
    ]


@pytest.mark.parametrize("block", [2, 64])
def test_prepared_windows_are_those_of_the_files(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in no order of time, blocks smaller and larger than a window, with and without a shuffle."""
    monkeypatch.setattr(prepared_writer, "block_samples", lambda values: block)
    options = write(np.random.default_rng(0).permutation(np.repeat(np.arange(40), 3)).tolist())
    options = options.model_copy(update={"windows": 10.0})
    manifest = prepare("csv:rows.csv", options, Path("stored"))
    assert manifest.windows == (30,) * 4 and manifest.evaluation is None
    for shuffle in ({}, {"shuffle_buffer": 20, "seed": 3}):
        files = open_dataset("csv:rows.csv", options.model_copy(update=shuffle))
        stored = open_dataset("prepared:stored", DataOptions.model_validate(shuffle))
        assert stored.windows == files.windows and stored.num_train_samples() == files.num_train_samples() == 30
        assert everything(stored, 7) == everything(files, 7)
    given = {"data": "prepared:stored", "data_options": {}, "batch_size": 16, "tensorboard": False}
    of_files, of_stored = train_run(config_of(out="files")), train_run(config_of(out="stored-run", **given))
    assert of_stored["windows"] == of_files["windows"] and of_stored["samples"] == 90


POLICY = """
from adaptive import Policy


class Noting(Policy):
    def score(self, rows):
        return rows.last_access

    def arrange(self, batches, view):
        with open("epochs.txt", "a") as notes:
            print(self.epoch_batches, file=notes)
        yield from batches
"""


def test_a_policy_that_arranges_knows_the_batches_of_each_window() -> None:
    """Windows of 30, 80, 10 and 30 rows; also a run that is resumed in the second, and a simulation."""
    Path("noting.py").write_text(POLICY)
    write(np.repeat(np.arange(40), np.repeat([3, 8, 1, 3], 10)).tolist())
    config = config_of(out="whole", policy="noting.py:Noting")

    def noted() -> list[str]:
        (notes := Path("epochs.txt")).replace("read.txt")
        assert not notes.exists()
        return Path("read.txt").read_text().split()

    train_run(config)
    assert noted() == ["2", "5", "1"]
    train_run(config_of(out="cut", policy="noting.py:Noting", steps=4))
    assert noted() == ["2", "4"]
    resume_run(Path("cut"), steps=8, code={"policy": "noting.py:Noting"})
    assert noted() == ["5", "1"]
    machine = Machine(link=1e9, device=1e9, host=1e9, dense_ms=1.0)
    simulate([("noting", config)], ["100%"], machine, embedding_dim=4)
    assert noted() == ["2", "5", "1"]


def test_simulation_and_keys_see_all_windows_that_are_trained() -> None:
    write(np.repeat(np.arange(40), 3).tolist())
    config = config_of(steps=None)
    machine = Machine(link=1e9, device=1e9, host=1e9, dense_ms=1.0)
    result = simulate([("lru", config)], ["100%"], machine, embedding_dim=4)
    assert (result.batches, result.total_batches, result.lookups) == (6, 6, 90)
    small = {"num_train": 600, "days": 3, "rows": 100_000, "new_ids": 0.5}
    options = DataOptions.model_validate({"synthetic": small, "windows": "1d", "keys": {"capacity": 1000}})
    dataset = open_dataset("synthetic", options)
    numbered = number_keys(dataset)
    position = next(n for n, feature in enumerate(dataset.features) if feature.name in dataset.key_rules)
    ids = [batch.ids[batch.feature_span(position)] for batch in training_batches(dataset, 100)]
    assert numbered.features[position].num_embeddings == len(np.unique(np.concatenate(ids))) + 2


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    options = write([0, 5, 20])
    with pytest.raises(ConfigError, match=r"expected epochs = 1 with data.windows, got 2: each window"):
        train_run(config_of(out="twice", epochs=2))
    for windows in (0, -1, "1y", "inf", True, [1]):
        with pytest.raises(ValueError, match=r"expected a time \(90s, 30m, 12h, 1d, 2w\) or a number above 0"):
            DataOptions(windows=windows)
    with pytest.raises(
        ValueError, match="expected one of eval_data, holdout, time_split, windows, got holdout and win"
    ):
        DataOptions(windows=3, holdout=0.1)
    monkeypatch.setattr(split, "MOST_WINDOWS", 2)
    with pytest.raises(InputError, match=r"data.windows: expected at most 2 windows, got more, of length 1. Give a gr"):
        opened(options, 1)
    with pytest.raises(ConfigError, match=r"prepare: expected data.windows or data.drop_negatives, got both"):
        prepare("csv:rows.csv", options.model_copy(update={"windows": 10.0, "drop_negatives": 0.5}), Path("out"))
    text = Path("rows.toml").read_text()
    Path("rows.toml").write_text("\n".join(line for line in text.splitlines() if not line.startswith("time")))
    with pytest.raises(ConfigError, match=r"data.windows: expected a schema with a time column, got none for 10.0"):
        opened(options, 10)
    with pytest.raises(
        ConfigError, match=r"data criteo: expected no data.windows, got a value: the format has no sche"
    ):
        open_dataset("criteo:x", DataOptions(windows="1d"))
    day = DataOptions.model_validate({"synthetic": {"days": 3, "day": 1, "num_train": 100}, "windows": "1d"})
    with pytest.raises(ConfigError, match=r"data.windows: expected no data.synthetic.day, got both"):
        open_dataset("synthetic", day)
