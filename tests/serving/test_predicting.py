"""`predict`: a score for each sample in the order of the data, labelled or not; files that are whole or not there."""

import csv
import gzip
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.served import HEADER, lines, trained, without_label, write_csv

from adaptive import load_run
from adaptive.cli.app import main
from adaptive.errors import ConfigError, InputError, NonFiniteError, OutputError
from adaptive.serving import predict_run, predicting
from adaptive.serving.predicting import write_scores
from adaptive.storage import durable
from adaptive.training.runs.loading import data_of


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained run; the current folder is another one."""
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    path = trained(tmp_path / "home")
    monkeypatch.chdir(tmp_path / "here")
    return path


def from_tables(run: Path, spec: str) -> NDArray[np.float64]:
    """Scores computed in numpy's way from whole tables, batch by batch of the reader."""
    import torch

    scores = []
    with load_run(run) as loaded, torch.no_grad():
        tables = {table.name: loaded.embeddings.rows.table_weights(table.name) for table in loaded.components.tables}
        loaded.model.eval()
        for batch in data_of(loaded, spec).evaluation(7):
            pooled = np.zeros((batch.num_samples, batch.num_features, 4), np.float32)
            for feature, table in enumerate(loaded.shape.tables):
                for sample in range(batch.num_samples):
                    bag = feature * batch.num_samples + sample
                    for row in batch.ids[batch.offsets[bag] : batch.offsets[bag + 1]]:
                        pooled[sample, feature] += tables[table][row]
            logits = loaded.model(torch.from_numpy(batch.dense), torch.from_numpy(pooled))
            scores.append(1 / (1 + np.exp(-logits.double().numpy())))
    return np.concatenate(scores)


def test_scores_are_the_models_and_in_order(run: Path) -> None:
    write_csv(Path("new.csv"), lines(150, seed=4))
    result = predict_run(run, "scores.npy", data="new.csv", settings={"eval_batch_size": 40})
    scores = np.load("scores.npy", allow_pickle=False)
    assert scores.shape == (150,) and scores.dtype == np.float32
    np.testing.assert_allclose(scores, from_tables(run, "new.csv"), atol=1e-6)
    assert (result["samples"], result["data"], result["out"]) == (150, "new.csv", "scores.npy")
    assert result["mean_score"] == pytest.approx(scores.mean(), abs=1e-6)
    assert len(set(scores.tolist())) > 100


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_files_hold_the_same_scores(run: Path, suffix: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow") if suffix == ".parquet" else None
    write_csv(Path("new.csv"), lines(50, seed=4))
    predict_run(run, "scores.npy", data="new.csv")
    predict_run(run, f"scores{suffix}", data="new.csv")
    if parquet is None:
        name, *scores = Path("scores.csv").read_text().splitlines()
    else:
        table = parquet.read_table("scores.parquet")
        (name,), scores = table.column_names, table["score"].to_numpy()
    assert name == "score" and np.array_equal(np.array(scores, np.float32), np.load("scores.npy"))


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"requires pyarrow\. Run pip install pyarrow"):
        predict_run("no run is looked at", "scores.parquet")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("scores", "ends in .csv, .parquet, .npy, got 'scores'"),
        ("no/scores.csv", "expected an existing folder, got no"),
    ],
)
def test_where_scores_cannot_go_is_told_first(out: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        predict_run("no run is looked at", out)


@pytest.mark.parametrize("has_header", [True, False])
def test_labels_need_not_be_there(run: Path, has_header: bool, tmp_path: Path) -> None:
    rows = lines(80, seed=4)
    write_csv(Path("labelled.csv"), rows)
    expected = predict_run(run, "labelled.npy", data="labelled.csv")
    settings: dict[str, Any] = {}
    if not has_header:
        schema = (tmp_path / "home/schema.toml").read_text()
        Path("bare.toml").write_text(f"header = false\ncolumns = {HEADER.split(',')!r}\n{schema}")
        settings = {"data.schema_path": "bare.toml"}
    bare = without_label(rows)
    Path("bare.csv").write_text("\n".join([*([without_label([HEADER])[0]] if has_header else []), *bare]) + "\n")
    summary = predict_run(run, "bare.npy", data="bare.csv", settings=settings)
    assert summary["mean_score"] == expected["mean_score"]
    assert np.array_equal(np.load("bare.npy"), np.load("labelled.npy"))


def test_without_data_the_evaluation_part_is_scored(run: Path) -> None:
    write_csv(Path("held_out.csv"), lines(400)[300:])
    assert predict_run(run, "own.npy")["samples"] == 100
    predict_run(run, "same.npy", data="held_out.csv")
    assert np.array_equal(np.load("own.npy"), np.load("same.npy"))


def test_no_line_is_passed_over_unnoticed(run: Path) -> None:
    rows = lines(50, seed=4)
    write_csv(Path("new.csv"), [*rows[:20], "1,2,3", *rows[20:]])
    Path("scores.npy").write_bytes(b"of before")
    with pytest.raises(InputError, match=r"new\.csv:22: expected 7 columns"):
        predict_run(run, "scores.npy", data="new.csv")
    assert Path("scores.npy").read_bytes() == b"of before" and sorted(map(str, Path().iterdir())) == [
        "new.csv", "scores.npy",
    ]  # fmt: skip
    assert predict_run(run, "scores.npy", data="new.csv", settings={"data.max_bad_fraction": 0.1})["samples"] == 50


def test_data_without_a_sample(run: Path) -> None:
    write_csv(Path("new.csv"), [])
    with pytest.raises(InputError, match=r"new\.csv: expected rows to evaluate on, got none \(no lines\)"):
        predict_run(run, "scores.npy", data="new.csv")
    assert not Path("scores.npy").exists()


def test_a_score_that_is_no_number_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(Path("new.csv"), [*lines(20, seed=4), "0,1e38,a,1,a,1,t1"])
    monkeypatch.setattr("adaptive.training.evaluation.logits_of", lambda *_: torch.tensor([torch.nan]))
    with pytest.raises(NonFiniteError):
        predict_run(run, "scores.npy", data="new.csv")


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "scores.csv"
    path.write_text("of before")
    monkeypatch.setattr(durable.Disk, operation, fail) if operation != "write" else monkeypatch.setitem(
        predicting._WRITERS, ".csv", fail
    )
    with pytest.raises(OutputError, match="No space left"):
        write_scores(path, [np.zeros(3, np.float32)])
    assert path.read_text() == "of before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("count", [0, 1, 12345])
def test_npy_files_are_numpys(tmp_path: Path, count: int) -> None:
    expected = np.random.default_rng(0).random(count, np.float32)
    assert write_scores(tmp_path / "a.npy", np.array_split(expected, 3)) == count
    scores = np.load(tmp_path / "a.npy", allow_pickle=False)
    assert scores.dtype == np.float32 and np.array_equal(scores, expected)


def test_on_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(Path("new.csv"), lines(30, seed=4))
    words = ["--data", "new.csv", "--set", "eval_batch_size=7"]
    assert call("predict", str(run), *words, "--out", "scores.csv") == 0
    assert "samples: 30\n" in capsys.readouterr().out
    assert call("eval", str(run), *words, "--json") == 0
    assert '"eval_samples": 30' in capsys.readouterr().out
    assert call("predict", str(run), "--out", "scores.txt") == 2
    assert call("predict", str(run), "--out", "scores.csv", "--set", "lr") == 2


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    return int(exit_.value.code or 0)


@pytest.mark.parametrize("out", ["scores.csv", "scores.parquet"])
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_columns_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, out: str) -> None:
    """Also ones that the model does not have, quoted ones, missing values, and files with bad lines."""
    pa, pq = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path)
    rows = lines(200, seed=3)
    header = ["request", *HEADER.split(",")]
    fields = [[f"r{number}, a", *row.split(",")] for number, row in enumerate(rows)]
    fields[7][-1] = ""
    settings = {}
    if kind == "parquet":
        columns = dict(zip(header, zip(*fields, strict=True), strict=True))
        pq.write_table(
            pa.table({**columns, "price": [float(p) if p else None for p in columns["price"]]}), "new.parquet"
        )
    else:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *fields[:50], ["bad"], *fields[50:]])
        Path("new.csv").write_text(text.getvalue())
        Path("new.csv.gz").write_bytes(gzip.compress(text.getvalue().encode()))
        settings = {"data.max_bad_fraction": 0.1}
    plain = predict_run(run, "plain.npy", data=f"{kind.partition('.')[0]}:new.{kind}", settings=settings)
    result = predict_run(
        run, out, data=f"{kind.partition('.')[0]}:new.{kind}", columns=("request", "tags"), settings=settings
    )
    assert result["samples"] == plain["samples"] == 200
    table = pq.read_table(out) if out.endswith("parquet") else None
    if table is None:
        with open(out, newline="") as file:
            read = list(csv.DictReader(file))
        actual: dict[str, list[Any]] = {name: [row[name] for row in read] for name in read[0]}
    else:
        actual = table.to_pydict()
    assert list(actual) == ["request", "tags", "score"]
    assert actual["request"] == [row[0] for row in fields] and actual["tags"] == [row[-1] for row in fields]
    np.testing.assert_array_equal(np.array(actual["score"], np.float32), np.load("plain.npy"))


def test_columns_that_cannot_pass_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path)
    with pytest.raises(ConfigError, match=r"train\.csv: expected columns of the file, got user_id \(--with\)"):
        predict_run(run, "scores.csv", columns=("user_id",))
    with pytest.raises(ConfigError, match=r"expected a \.csv or \.parquet file for columns next to scores"):
        predict_run(run, "scores.npy", columns=("user",))
