"""`load_run`: a trained run in Python, from any folder, wherever rows and data lie; and which data it is read with."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.manifests import write_record
from support.served import lines, trained, write_csv

from adaptive import TierConfig, load_run
from adaptive.errors import CheckpointError, ConfigError, InputError
from adaptive.storage.checkpoint import load_checkpoint
from adaptive.training.evaluation import evaluate
from adaptive.training.quality import grouped_auc
from adaptive.training.runs import evaluate_run
from adaptive.training.runs.loading import LoadedRun, data_of

IN_FILES = {"device_rows": "100%", "host": "mmap:rows"}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to go to once a run is trained, which is done in `tmp_path / "home"`."""
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "elsewhere"


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())["summary"]
    return found


def saved_rows(run: Path) -> NDArray[np.float32]:
    """The values of rows that ever changed, as the checkpoint has them."""
    found = load_checkpoint(run / "weights").rows
    return np.asarray(found["rows0.weights"])


def test_the_nearest_run_or_the_latest_are_named(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(elsewhere)
    Path("runs/monday").mkdir(parents=True)
    write_record(Path("runs/monday"), {"schema": 2})
    for wrong in ("runs/munday", "runz/monday", "monday"):
        with pytest.raises(CheckpointError, match="did you mean runs/monday"):
            load_run(wrong)
    with pytest.raises(CheckpointError, match=r"got no such file; the latest runs: runs/monday$"):
        load_run("something/else")


def test_a_run_by_an_installed_schema(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name means the installed schema in any folder, also in one that has a file of that name."""
    rows = [f"{n % 2},{n % 5},{n % 3},{n % 7}|{n % 4}" for n in range(200)]
    write_csv(Path("train.csv"), rows, header="label,target,last,history")
    path = trained(Path.cwd(), data_options={"schema_path": "next-item", "holdout": 0.25})
    monkeypatch.chdir(elsewhere)
    Path("next-item").write_text("another schema")
    assert evaluate_run(path)["auc"] == summary(path)["auc"]


@pytest.mark.parametrize("tier", [{"device_rows": "100%"}, IN_FILES, {**IN_FILES, "device_rows": "90%"}])
def test_a_run_is_loaded_in_another_folder(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, tier: Any) -> None:
    path = trained(Path.cwd(), tier=tier, depth=0)
    monkeypatch.chdir(elsewhere)
    with load_run(path) as run:
        found = evaluate(run.embeddings, run.model, data_of(run, None).evaluation(100))
        values = np.concatenate([run.embeddings.rows.table_weights(table.name) for table in run.components.tables])
        changed = load_checkpoint(path / "weights").rows["rows0.changed"]
        assert np.array_equal(values[np.asarray(changed)], saved_rows(path))
        assert run.config.tier.host == tier.get("host", "memory").replace("rows", str(path.parent / "rows"))
    assert (found.auc, found.log_loss) == (summary(path)["auc"], summary(path)["log_loss"])
    assert not list(elsewhere.iterdir())


def test_what_is_known_of_a_loaded_run(elsewhere: Path) -> None:
    path = trained(Path.cwd())
    with load_run(str(path)) as run:
        assert [feature.name for feature in run.shape.features] == ["first", "second", "user", "site", "tags"]
        assert run.shape.tables == ("genre", "genre", "user", "site", "tags")
        assert run.shape.num_dense == 1 and run.steps == summary(path)["steps"]
        assert run.schema is not None and run.schema["label"]["column"] == "click"
        assert run.config.data == f"csv:{path.parent / 'train.csv'}"
        assert isinstance(run.model, torch.nn.Module)


def test_neither_data_nor_schema_nor_policy_need_be_there(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trained(Path.cwd())
    with load_run(path) as run:
        batches = list(data_of(run, None).evaluation(100))
        expected = np.concatenate(list(run.predict(batches)))
    (path.parent / "train.csv").unlink()
    (path.parent / "schema.toml").unlink()
    record = json.loads((path / "run.json").read_text())
    record["config"]["policy"] = "gone.py:Gone"
    write_record(path, record)
    monkeypatch.chdir(elsewhere)
    with load_run(path) as run:
        found = np.concatenate(list(run.predict(batches)))
    assert np.array_equal(found, expected) and (found > 0).all() and (found < 1).all()


def test_rows_may_lie_elsewhere_than_in_the_run(elsewhere: Path) -> None:
    path = trained(Path.cwd())
    with load_run(path) as run:
        expected = run.embeddings.rows.table_weights("user")
    with load_run(path, tier=TierConfig(device_rows="50%", host=f"mmap:{elsewhere}")) as run:
        assert np.array_equal(run.embeddings.rows.table_weights("user"), expected)
        blocks = list(run.embeddings.rows.table_blocks("user", block_bytes=7 * 16))
        assert [len(block) for block in blocks] == [7, 7, 7, 7, 7, 7, 7, 2]  # 50 rows and one for missing ids
        assert np.array_equal(np.concatenate(blocks), expected)
        with pytest.raises(ConfigError, match="expected one of genre, user, site, tags, got 'x'"):
            next(run.embeddings.rows.table_blocks("x"))


def test_a_record_without_a_whole_shape_is_refused(elsewhere: Path) -> None:
    path = trained(Path.cwd())
    record = json.loads((path / "run.json").read_text())
    record["shape"] = {"features": 3}
    write_record(path, record)
    with pytest.raises(CheckpointError, match=r"run\.json: shape\)"):
        load_run(path)


# -- which data a run is read with --------------------------------------------------------------------------------


def test_data_are_looked_for_where_the_run_was_made(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, home = trained(Path.cwd()), Path.cwd()
    monkeypatch.chdir(elsewhere)
    assert evaluate_run(path)["log_loss"] == summary(path)["log_loss"]
    (home / "train.csv").rename(elsewhere / "moved.csv")
    with pytest.raises(InputError) as error:
        evaluate_run(path)
    assert f"{home}/train.csv: expected a file" in str(error.value)


def test_the_same_files_elsewhere_are_the_same_data(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, home = trained(Path.cwd()), Path.cwd()
    (home / "train.csv").rename(elsewhere / "train.csv")
    record = json.loads((path / "run.json").read_text())
    record["config"]["data"] = f"csv:{elsewhere / 'train.csv'}"
    write_record(path, record)
    assert evaluate_run(path)["auc"] == summary(path)["auc"]
    write_csv(elsewhere / "train.csv", lines(400, seed=1))
    with pytest.raises(
        InputError, match=r"file 1: expected train\.csv of \d+ bytes with sha256 \w+, got /.*/train\.csv of"
    ):
        evaluate_run(path)


def test_other_data_are_evaluated_whole_and_mapped_as_in_the_run(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trained(Path.cwd())
    held_out = lines(400)[300:]
    monkeypatch.chdir(elsewhere)
    write_csv(elsewhere / "new.csv", held_out)
    expected = {**evaluate_run(path), "data": "csv:new.csv"}
    assert evaluate_run(path, data="csv:new.csv") == expected
    assert evaluate_run(path, data="new.csv") == {**expected, "data": "new.csv"}
    write_csv(elsewhere / "more.csv", lines(57, seed=3))
    assert evaluate_run(path, data="new.csv,more.csv")["eval_samples"] == 157


def test_data_that_do_not_fit_are_told(elsewhere: Path) -> None:
    path = trained(Path.cwd())
    write_csv(Path("new.csv"), lines(20))
    with pytest.raises(InputError, match=r"features: .*user.*51.*, got .*user.*52"):
        evaluate_run(path, data="new.csv", settings={"data.out_of_range": "oov"})
    write_criteo(Path("criteo.txt"))
    with pytest.raises(InputError, match=r"features: .*first.*, got .*C1.*101"):
        evaluate_run(path, data="criteo:criteo.txt", settings={"data.schema_path": None, "data.hash_rows": 100})


def write_criteo(path: Path) -> None:
    path.write_text("\t".join(["1", *["3"] * 13, *["ab"] * 26]) + "\n")


def test_a_vocabulary_is_never_fitted_anew(elsewhere: Path) -> None:
    path = trained(Path.cwd())
    write_csv(Path("new.csv"), lines(20, seed=5))
    (path / "vocabulary").rename(elsewhere / "kept")
    for data in ("new.csv", None):
        with pytest.raises(InputError, match=r"vocabularies of genre in .*/run/vocabulary, got"):
            evaluate_run(path, data=data)
    assert evaluate_run(path, settings={"data.vocabulary_path": str(elsewhere / "kept")})["auc"] == summary(path)["auc"]
    assert not (path / "vocabulary").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.embedding_dim", 8, "expected one of tier.*, data.*, eval_batch_size and model, got"),
        ("tier.hots", "memory", "--set tier.hots: unknown key (did you mean host?)"),
        ("eval_batch_size", 0, "--set eval_batch_size: expected a value greater than or equal to 1, got 0"),
        ("data.holdouts", 0.1, "data.holdouts: unknown key"),
    ],
)
def test_settings_that_reading_cannot_have(elsewhere: Path, key: str, value: Any, message: str) -> None:
    path = trained(Path.cwd())
    with pytest.raises(ConfigError, match=re.escape(message)):
        evaluate_run(path, settings={key: value})


def test_samples_without_a_label_are_not_evaluated(elsewhere: Path) -> None:
    path = trained(Path.cwd())
    with load_run(path) as run, pytest.raises(InputError, match="without a label"):
        evaluate(run.embeddings, run.model, unlabelled(run))


def unlabelled(run: LoadedRun) -> Any:
    from dataclasses import replace

    for batch in data_of(run, None).evaluation(10):
        yield replace(batch, labels=np.full_like(batch.labels, np.nan))


def test_gauc_by_a_feature(elsewhere: Path) -> None:
    path = trained(Path.cwd())
    found = evaluate_run(path, group_by="user")
    with load_run(path) as run:
        (batch,) = data_of(run, None).evaluation(1000)
        (scores,) = run.predict([batch])
    users = batch.ids[batch.feature_span(2)]
    expected = grouped_auc(scores, batch.labels, users)
    assert (found["gauc"], found["gauc_groups"]) == (pytest.approx(expected[0], abs=1e-3), expected[1])
    assert "gauc" not in evaluate_run(path) and found["auc"] == summary(path)["auc"]
    with pytest.raises(ConfigError, match=r"features first, second, user, site, tags, got you \(--group-by\)"):
        evaluate_run(path, group_by="you")
    with pytest.raises(InputError, match="expected one id per sample for GAUC"):
        evaluate_run(path, group_by="tags")
