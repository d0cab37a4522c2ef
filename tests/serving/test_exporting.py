"""`export`: plain torch, without this package, gives the run's scores, from rows and from values as in the data."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.served import bags_of, lines, samples, trained, write_csv
from support.toy import toy_config

from adaptive import load_run
from adaptive.batch import Batch
from adaptive.cli.app import main
from adaptive.errors import ConfigError, InputError, OutputError
from adaptive.serving import export_run, exporting, predict_run, scoring
from adaptive.serving.sample_values import key_of
from adaptive.storage.durable import Disk
from adaptive.training.evaluation import predict
from adaptive.training.runs import evaluate_run, train_run
from adaptive.training.runs.loading import LoadedRun, data_of

ALONE = (
    "import sys; sys.modules.update(dict.fromkeys(sys.argv[2:])); import runpy; "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)  # without the packages that are named


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tensors_of(batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.from_numpy(rows), torch.from_numpy(starts)) for rows, starts in bags_of(batch)]


def logits_of(run: LoadedRun, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits of the evaluation part, by the run and by its export."""
    model, actual, expected = scoring.load(folder), [], []
    for batch in data_of(run, None).evaluation(64):
        with torch.no_grad():
            actual.append(model(torch.from_numpy(batch.dense), tensors_of(batch)).numpy())
        expected += list(predict(run.embeddings, run.model, [batch]))
    return np.concatenate(expected), np.concatenate(actual)


def test_values_as_in_the_data_get_the_scores_of_predict(tmp_path: Path) -> None:
    """Bags of none to three values, in batches of any size."""
    run, rows = trained(tmp_path), lines(300, seed=7)
    write_csv(Path("new.csv"), rows)
    predict_run(run, "scores.npy", data="new.csv")
    result = export_run(run, "served")
    files = sorted(path.name for path in Path("served").iterdir())
    model, expected = scoring.load("served"), np.load("scores.npy")
    for first, last in ((0, 300), (0, 1), (5, 7), (100, 164)):
        np.testing.assert_allclose(model.score(samples(rows)[first:last]), expected[first:last], atol=1e-6)
    assert model.score([]) == []
    assert (result.tables, result.rows) == (4, 11 + 51 + 38 + 24)
    assert files == sorted(["ids", "model.json", "model.pt", "sample_values.py", "scoring.py", "dense"])


def test_bfloat16_gives_the_logits_of_its_rows(tmp_path: Path) -> None:
    """The run is checked with its rows as they are in the file."""
    run = trained(tmp_path)
    check = str(write_csv(Path("new.csv"), lines(300, seed=7)))
    result = export_run(run, "served", row_dtype="bfloat16", check=check)
    assert result.checked_rows == 300 and result.largest_difference < 1e-6
    with load_run(run) as loaded, loaded.embeddings.rows.read_as(exporting.as_bfloat16):
        expected, logits = logits_of(loaded, Path("served"))
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    with load_run(run) as loaded:
        exact, _ = logits_of(loaded, Path("served"))
    assert not np.array_equal(exact, expected)
    np.testing.assert_allclose(exact, expected, atol=0.05)


@pytest.mark.nightly
def test_it_takes_no_package_of_ours(tmp_path: Path) -> None:
    run, rows = trained(tmp_path), lines(40, seed=7)
    write_csv(Path("new.csv"), rows)
    predict_run(run, "scores.npy", data="new.csv")
    export_run(run, "served")
    text = "\n".join(map(json.dumps, samples(rows)))
    command = [sys.executable, "-c", ALONE, "served/scoring.py", "adaptive"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, input=text, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.array(done.stdout.split(), float), np.load("scores.npy"), atol=1e-6)


def test_torch_alone_reads_the_tables(tmp_path: Path) -> None:
    """As the export's page says: no pickle that runs code, and tables that are mapped."""
    run = trained(tmp_path)
    export_run(run, "served")
    state = torch.load("served/model.pt", weights_only=True, mmap=True)
    facts = json.loads(Path("served/model.json").read_text())
    with load_run(run) as loaded:
        for number, table in enumerate(facts["tables"]):
            bag = torch.nn.EmbeddingBag.from_pretrained(state[f"tables.{number}.weight"], mode="sum")
            assert np.array_equal(bag.weight.numpy(), loaded.embeddings.rows.table_weights(table["name"]))
        for name, tensor in loaded.model.state_dict().items():
            assert torch.equal(state[f"dense.{name}"], tensor)


SIZES = {"num_train": 600, "num_eval": 200, "tables": 4, "rows": 100_000, "lookups": 3}
SHAPE = {"embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8, 1]}
MODELS: dict[str, dict[str, Any]] = {
    "dots": {},
    "cat": {"model_options": {"interaction": "cat"}},
    "no dense": {"data_options": {"synthetic": {**SIZES, "num_dense": 0}}},
    "tbsm": {"model": "tbsm", "data": "sequences", "model_options": {"bottom_mlp": [4], "top_mlp": [6]}},
    "din": {"model": "din", "data": "sequences"},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_its_logits_again(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {"data": "synthetic", **MODELS[name]}
    small = {"synthetic": SIZES, "sequences": {"num_train": 300, "num_eval": 100}, "history": 3}
    given["data_options"] = {**small, **given.get("data_options", {})}
    shape = {"embedding_dim": 4, "deep_mlp": [6]} if name == "din" else SHAPE
    given["model_options"] = {**shape, **given.get("model_options", {})}
    train_run(toy_config(out="run", **given, tier={"device_rows": "100%"}))
    export_run("run", "served")
    with load_run("run") as run:
        expected, actual = logits_of(run, Path("served"))
    np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=1e-6)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.nightly
def test_the_page_on_serving_exports_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of docs/how-to/serving.md, on one sample; the file then takes batches of any size."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    onnxruntime = pytest.importorskip("onnxruntime")
    export_run(trained(tmp_path), "served")
    monkeypatch.syspath_prepend("served")
    monkeypatch.delitem(sys.modules, "scoring", raising=False)
    page = (Path(scoring.__file__).parents[2] / "docs/how-to/serving.md").read_text()
    (code,) = re.findall(r"^    import scoring\n    import torch\n.*?\n(?=\S)", page, re.M | re.S)
    rows = samples(lines(60, seed=7))
    scope: dict[str, Any] = {"samples": rows[:2]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter
        exec(compile(textwrap.dedent(code), "serving.md", "exec"), scope)  # noqa: S102 (the page is ours)
    session = onnxruntime.InferenceSession("model.onnx")
    for first, last in ((0, 60), (5, 6), (7, 30)):
        dense, bags = scope["model"].inputs(rows[first:last])
        values = [dense, *(tensor for bag in bags for tensor in bag)]
        names = [entry.name for entry in session.get_inputs()]
        logits = session.run(None, {name: value.numpy() for name, value in zip(names, values, strict=True)})[0]
        np.testing.assert_allclose(logits, scope["model"](dense, bags).detach(), atol=1e-6)
    monkeypatch.delitem(sys.modules, "scoring")


# -- from values to rows -------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_reader(tmp_path: Path) -> None:
    """Every rule, with unknown and missing values, the sign bit, and words in several bytes."""
    settings = {"schema_path": "schema.toml", "holdout": 0.25, "out_of_range": "oov"}
    run = trained(tmp_path, data_options=settings)
    rows = ["0,1,a,-7,ä ö,ffffffffffffffff,t1", "0,1,never seen,4711,,0,", "0,1,,,a,ABC,t5||t6", *lines(200, seed=8)]
    rows.append("0,NA,NaN,NA,\\N,NA,t5|NA|t6")
    rows += ["0,1,a,18446744073709551613,a,0,t1", "0,1,a,-3,a,0,t1", "0,1,a,-9223372036854775808,a,0,t1"]
    write_csv(Path("new.csv"), rows)
    export_run(run, "served")
    model = scoring.load("served")
    with load_run(run) as loaded:
        (batch,) = data_of(loaded, "new.csv").evaluation(1000)
    for ids, (expected, _) in zip(model.values.ids, bags_of(batch), strict=True):
        actual = [row for sample in samples(rows) for row in ids.rows(sample[ids.name])]
        assert actual == expected.tolist(), ids.name


def test_a_value_without_a_row_is_told(tmp_path: Path) -> None:
    export_run(trained(tmp_path), "served")
    ids = {one.name: one for one in scoring.load("served").values.ids}
    assert ids["user"].row(49) == 49 and ids["user"].row(None) == 50
    with pytest.raises(
        ValueError, match="user: expected a known value, got 50; the table has no row for unknown values"
    ):
        ids["user"].row(50)


GOOD = {"price": "1.5", "user": 7, "site": "ab", "first": "a", "tags": ["t1", "t2"]}
WRONG: dict[str, tuple[Any, str]] = {
    "prise": (1.5, "prise: expected a feature or dense input of the model; did you mean price?"),
    "zzz": (1, "zzz: expected a feature or dense input of the model; the model has price, first, second, user"),
    "price": ("abc", "price: expected a number, got 'abc'"),
    "user": ("7.5", "user: expected a 64-bit integer, got '7.5'"),
    "site": (17, "site: expected a text of at most 16 hexadecimal digits, got 17"),
    "first": (["a"], r"first: expected a text or an integer, got \['a'\]"),
    "tags": ([["t1"]], r"tags: expected a text or an integer, got \['t1'\]"),
}


def test_wrong_samples_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown names and values that the reader of the data would refuse; as a program with the line, exit code 3."""
    export_run(trained(tmp_path), "served")
    model = scoring.load("served")
    (expected,) = model.score([GOOD])
    for name, (value, message) in WRONG.items():
        with pytest.raises(ValueError, match=f"^sample 1, {message}"):
            model.score([GOOD, {**GOOD, name: value}])
    for number in ("nan", float("inf"), 1e39, 10**400, "1_0", " 1", "\N{ARABIC-INDIC DIGIT THREE}", "infinity", [1.5]):
        with pytest.raises(ValueError, match="price: expected a number, got"):
            model.score([{**GOOD, "price": number}])
    integers = (10**400, -(10**400), 1.5, "1_0", 2.0**53, np.float32(2**24), np.float16(2**11), Decimal("1.5"))
    texts = (1.5, b"a", "a\0", "\ud800", Decimal("1.5"))
    for name, wrong in (("user", integers), ("first", texts), ("tags", (b"t1", [b"t1"]))):
        for value in wrong:
            with pytest.raises(ValueError, match=f"{name}: expected"):
                model.score([{**GOOD, name: value}])
    capsys.readouterr()
    lines = [json.dumps(GOOD), json.dumps({**GOOD, "click": 1}), json.dumps({**GOOD, "price": "abc"}), "{}"]
    for third, reason in (
        (lines[2], ", price: expected a number, got 'abc'"),
        ("[1]", ": expected a JSON object, got '[1]'"),
    ):
        with pytest.raises(SystemExit) as exit_:
            model.values.score_lines(model.score, [line.encode() for line in (*lines[:2], third, "{}")])
        printed = capsys.readouterr()
        assert exit_.value.code == 3
        assert (printed.out, printed.err) == (f"{expected}\n" * 2, f"error: line 3{reason}\n")


def test_a_bag_is_a_list_or_a_text(tmp_path: Path) -> None:
    """With the separator of the schema; the same score, as of values of other types that mean the same."""
    export_run(trained(tmp_path), "served")
    model = scoring.load("served")
    same: list[dict[str, Any]] = [{}, {"tags": "t1|t2"}, {"tags": "t1||t2"}, {"price": 1.5, "user": "7"}, {"user": 7.0}]
    same += [{"user": np.float16(7)}, {"user": Decimal(7), "price": Decimal("1.5")}, {"tags": ("t1", "t2")}]
    scores = [model.score([{**GOOD, **changed}])[0] for changed in same]
    assert scores == [scores[0]] * len(same)
    assert model.score([{**GOOD, "tags": "t1"}]) == model.score([{**GOOD, "tags": ["t1"]}])
    assert model.score([{**GOOD, "tags": "t1"}])[0] != scores[0]
    pairs: list[tuple[Any, str]] = [(Decimal(12), "12"), (np.bool_(True), "true")]
    assert all(key_of(value, "text") == key_of(text, "text") for value, text in pairs)


def test_criteo(tmp_path: Path) -> None:
    rng, text = np.random.default_rng(0), []
    for _ in range(200):
        numbers = ["" if rng.random() < 0.2 else str(rng.integers(-3, 5000)) for _ in range(13)]
        words = ["" if rng.random() < 0.2 else f"{rng.integers(50):x}" for _ in range(26)]
        text.append("\t".join([str(rng.integers(2)), *numbers, *words]))
    Path("train.txt").write_text("\n".join(text) + "\n")
    options = {"hash_rows": 20, "holdout": 0.5}
    train_run(toy_config(data="criteo:train.txt", data_options=options, out="run", tier={"device_rows": "100%"}))
    predict_run("run", "scores.npy")
    export_run("run", "served")
    names = ["label", *(f"I{i + 1}" for i in range(13)), *(f"C{i + 1}" for i in range(26))]
    actual = scoring.load("served").score([dict(zip(names, line.split("\t"), strict=True)) for line in text[100:]])
    np.testing.assert_allclose(actual, np.load("scores.npy"), atol=1e-6)
    model = scoring.load("served")
    assert model.score([{"I1": 7.0}]) == model.score([{"I1": "7"}]) != model.score([{"I1": 8}])
    for number in (1.5, "1.5", "1_0", 10**400):
        with pytest.raises(ValueError, match="I1: expected a whole number, got"):
            model.score([{"I1": number}])


def test_an_export_that_names_other_files_is_refused(tmp_path: Path) -> None:
    export_run(trained(tmp_path), "served")
    for place in ("vocabulary", "file"):
        for file in ("../model.pt", "/etc/passwd", "ids/../../x.npy", "dense/__init__.py", "ids/0.npy\n"):
            content = json.loads(Path("served/model.json").read_text())
            fitted = next(feature for feature in content["features"] if feature["vocabulary"])
            {"vocabulary": fitted, "file": content["model"]}[place][place] = file
            shutil.copytree("served", "other")
            Path("other/model.json").write_text(json.dumps(content))
            with pytest.raises(ValueError, match=r"expected a file of an export, got .*model\.json"):
                scoring.load("other")
            shutil.rmtree("other")


def test_dropped_negatives_are_corrected(tmp_path: Path) -> None:
    """After training on a tenth of the negatives: the mean of eval, predict and export is that of the data."""
    rng = np.random.default_rng(0)
    clicks, users = rng.random(10_000) < 0.05, rng.integers(50, size=10_000)
    rows = [f"{int(click)},1.5,a,{user},b,ff,t1" for click, user in zip(clicks, users, strict=True)]
    write_csv(tmp_path / "train.csv", rows)
    options = {"schema_path": "schema.toml", "eval_data": "train.csv", "drop_negatives": 0.9}
    sizes = {"batch_size": 128, "eval_batch_size": 10_000, "epochs": 10}  # it evaluates after each epoch
    run = trained(tmp_path, data_options=options, optimizer={"name": "sgd", "lr": 0.05}, **sizes)
    quality = evaluate_run(run)
    assert quality["calibration"] == pytest.approx(1, abs=0.05)
    assert predict_run(run, "scores.npy", data="train.csv")["mean_score"] == pytest.approx(clicks.mean(), rel=0.05)
    export_run(run, "served")
    model = scoring.load("served")
    scores, expected = model.score(samples(rows[:500])), np.load("scores.npy")[:500]
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert model.facts.keep_negatives == pytest.approx(0.1)


# -- what is written -----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_tables_are_written_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files, however small the blocks."""
    run, sizes = trained(tmp_path), list[int]()
    export_run(run, "large")

    def record(run: LoadedRun, name: str) -> Iterator[NDArray[np.float32]]:
        for block in run.embeddings.rows.table_blocks(name, 48):
            sizes.append(block.nbytes)
            yield block

    monkeypatch.setattr(exporting, "_table", record)
    export_run(run, "small")
    assert Path("large", "model.pt").read_bytes() == Path("small", "model.pt").read_bytes()
    assert max(sizes) == 48 and len(sizes) == 4 + 17 + 13 + 8


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    run = trained(tmp_path)
    monkeypatch.setattr(Disk, "sync", fail)
    with pytest.raises(OutputError, match=r"served could not be written: .*No space left"):
        export_run(run, "served")
    assert not list(tmp_path.glob("served*"))


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path)
    with pytest.raises(ConfigError, match="expected one of float32, bfloat16, got 'fp8'"):
        export_run(run, "served", row_dtype="fp8")
    assert not Path("served").exists()
    Path("served").mkdir()
    with pytest.raises(OutputError, match="got served, which exists"):
        export_run(run, "served")
    (run / "vocabulary").rename("kept")
    with pytest.raises(InputError, match=r"vocabularies of genre in .*, got"):
        export_run(run, "elsewhere")
    export_run(run, "elsewhere", settings={"data.vocabulary_path": "kept"})


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path)
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main(["export", str(run), "--out", "served", "--json"])
    actual = json.loads(capsys.readouterr().out)
    assert not exit_.value.code
    assert actual["export_bytes"] == sum(path.stat().st_size for path in Path("served").rglob("*") if path.is_file())
    assert actual["peak_memory_bytes"] > 2**24
