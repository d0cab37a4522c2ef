"""Runs on prepared data score other data: prepared ones, and files by the schema and vocabulary of their own."""

from pathlib import Path

import numpy as np
import pytest
from support.served import lines, trained, write_csv

from adaptive import DataOptions, open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.errors import InputError
from adaptive.serving import predict_run
from adaptive.training.runs import evaluate_run

SCHEMA = Path("schema.toml")
NEW = Path("new.csv")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on prepared data, next to one on their files, and the scores of the latter for 90 new lines."""
    monkeypatch.chdir(tmp_path)
    files = trained(tmp_path)
    write_csv(NEW, lines(90, seed=5))
    prepare("csv:train.csv", DataOptions(schema_path=SCHEMA, holdout=0.25), Path("stored"))
    predict_run(files, "wanted.npy", data="new.csv")
    trained(tmp_path, data="prepared:stored", data_options={}, out="of-prepared")
    return Path("of-prepared")


def prepare_new(**more: object) -> None:
    prepare("csv:new.csv", DataOptions(schema_path=SCHEMA, holdout=0.5, **more), Path("new"))


def scores(run: Path, data: str, **settings: object) -> np.ndarray:
    predict_run(run, "scores.npy", data=data, settings=settings)
    return np.load("scores.npy")


def test_all_prepared_samples_are_scored_in_order(run: Path) -> None:
    prepare_new(vocabulary_path=Path("stored/vocabulary"))
    wanted = np.load("wanted.npy")
    for path, data in ((run, "prepared:new"), (run, "new"), (Path("run"), "prepared:new")):
        np.testing.assert_allclose(scores(path, data), wanted, atol=1e-6)  # in other batches than the lines
    assert len(scores(run, "prepared:stored")) == 400
    assert evaluate_run(run, data="prepared:new")["eval_samples"] == 90


def test_files_are_read_by_the_vocabulary_of_the_prepared_data(run: Path) -> None:
    key = "data.schema_path"
    np.testing.assert_array_equal(scores(run, "csv:new.csv", **{key: "schema.toml"}), np.load("wanted.npy"))


def test_data_with_other_rows_are_refused(run: Path) -> None:
    """Their vocabulary was fitted again, or an id is of another kind: the same value is another row."""
    prepare_new(vocabulary_path=Path("again"))
    with pytest.raises(InputError, match=r"expected data that fit the tables|in training, got others: vocabularies"):
        scores(run, "prepared:new")
    with pytest.raises(InputError, match="expected the vocabularies of genre"):
        scores(Path("run"), "prepared:new")
    other = SCHEMA.read_text().replace('columns = ["site"]\nkind = "hex"', 'columns = ["site"]\nkind = "string"')
    Path("other.toml").write_text(other)
    with pytest.raises(InputError, match=r"as in training, got others: kinds .*Use the schema and the vocabulary"):
        scores(run, "csv:new.csv", **{"data.schema_path": "other.toml"})


def test_other_prepared_data_to_evaluate_on(run: Path) -> None:
    prepare_new(vocabulary_path=Path("stored/vocabulary"))
    data = open_dataset("prepared:stored", DataOptions(eval_data="new"))
    labels = np.concatenate([batch.labels for batch in data.evaluation(7)])
    assert labels.tolist() == [float(line[0]) for line in lines(90, seed=5)]
    assert len(list(data.train(300))) == 1
    trained(Path.cwd(), data="prepared:stored", data_options={"eval_data": "new"}, out="both")
    assert evaluate_run("both")["eval_samples"] == 90
    prepare("csv:new.csv", DataOptions(schema_path=SCHEMA, vocabulary_path=Path("again")), Path("others"))
    with pytest.raises(InputError, match="others: expected data with the features and rows of stored, got others"):
        open_dataset("prepared:stored", DataOptions(eval_data="others"))
