"""From files to scores by plain torch: the README's five commands as they stand there, and lists of Parquet."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.served import bags_of
from support.toy import toy_config

from adaptive import DataOptions, open_dataset
from adaptive.cli.app import main
from adaptive.data.prepared_writer import prepare
from adaptive.serving import export_run, predict_run, scoring
from adaptive.training.runs import train_run

README = Path(__file__).parents[2] / "README.md"
pytest.importorskip("pyarrow", reason="Parquet needs pyarrow, the extra 'parquet'")


@pytest.mark.nightly
def test_the_commands_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores of the export, by torch and numpy alone, are those of `predict` within 1e-6."""
    monkeypatch.chdir(tmp_path)
    text, random = README.read_text(), np.random.default_rng(0)
    (block,) = re.findall(r"^((?:    adaptive-train run --data csv:clicks.csv .*\n)(?:    .*\n)+)", text, re.M)
    (schema,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    Path("clicks.toml").write_text(schema)
    users, items = random.zipf(1.3, 3000) % 50, random.zipf(1.3, 3000) % 30
    rows = zip(users % 3 == 0, users, items, random.random(3000, np.float32), strict=True)
    lines = ["click,user,item,price", *(f"{int(click)},{user},{item},{price}" for click, user, item, price in rows)]
    Path("clicks.csv").write_text("\n".join(lines) + "\n")
    *ours, alone = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [words[:2] for words in ours] == [["adaptive-train", name] for name in ("run", "eval", "predict", "export")]
    for words in ours:
        with pytest.raises(SystemExit) as ended:
            main(words[1:])
        assert not ended.value.code, capsys.readouterr().err
    expected = np.array(Path("scores.csv").read_text().split()[1:], float)
    (script,) = [word for word in alone if word.endswith(".py")]
    samples = (dict(zip(("user", "item", "price"), line.split(",")[1:], strict=True)) for line in lines[1:])
    given = "".join(json.dumps(sample) + "\n" for sample in samples)
    done = subprocess.run([sys.executable, script], input=given, capture_output=True, text=True, check=True)
    np.testing.assert_allclose(np.array(done.stdout.split(), float), expected, atol=1e-6)
    assert expected.std() > 0.005


LISTS = """
label = { column = "click" }
dense = [{ columns = ["price"] }]
categorical = [
    { columns = ["user"], kind = "int", hash_rows = 97 },
    { columns = ["tags"], kind = "string", vocabulary = true, min_count = 2 },
    { columns = ["items"], kind = "int", hash_rows = 61 },
    { columns = ["codes"], kind = "int", num_embeddings = 20 },
]
"""


def write_lists(path: Path, random: np.random.Generator, size: int, values: int) -> list[dict[str, object]]:
    """Rows with lists of 0 to 4 values, some of them null or with nulls; return the samples without label."""
    import pyarrow
    import pyarrow.parquet

    def lists(prefix: str, values: int) -> list[list[object] | None]:
        drawn = [random.integers(values, size=random.integers(5)).tolist() for _ in range(size)]
        items = [[(f"{prefix}{value}" if value else "NA") if prefix else value for value in row] for row in drawn]
        with_nulls = [[None if random.random() < 0.1 else item for item in row] for row in items]
        return [None if random.random() < 0.1 else row for row in with_nulls]

    kinds = {"tags": pyarrow.string(), "items": pyarrow.int64(), "codes": pyarrow.int32()}
    columns = {
        "user": pyarrow.array(random.integers(values, size=size)),
        "price": pyarrow.array([None if random.random() < 0.1 else float(random.random()) for _ in range(size)]),
        **{
            name: pyarrow.array(
                lists("t" if name == "tags" else "", 20 if name == "codes" else values), pyarrow.list_(kind)
            )
            for name, kind in kinds.items()
        },
    }
    table = pyarrow.table({"click": pyarrow.array(random.integers(2, size=size)), **columns})
    pyarrow.parquet.write_table(table, path)
    return table.drop_columns("click").to_pylist()  # type: ignore[no-any-return]


def test_lists_without_a_separator_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 rows with empty lists, nulls, unseen ids and "NA", a value, get the scores of `predict`."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    write_lists(Path("train.parquet"), random, 600, 30)
    Path("schema.toml").write_text(LISTS)
    samples = write_lists(Path("new.parquet"), random, 3000, 60)
    options = {"schema_path": "schema.toml"}
    train_run(toy_config(out="run", data="parquet:train.parquet", data_options=options, tier={"device_rows": "100%"}))
    predict_run("run", "scores.npy", data="new.parquet")
    expected = np.load("scores.npy")
    export_run("run", "served")
    model = scoring.load("served")
    assert [feature.bag for feature in model.facts.features] == [False, True, True, True]
    np.testing.assert_allclose(model.score(samples), expected, atol=1e-6)
    assert expected.std() > 1e-3


def test_bags_of_prepared_data_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids are rows."""
    monkeypatch.chdir(tmp_path)
    write_lists(Path("train.parquet"), np.random.default_rng(3), 600, 30)
    Path("schema.toml").write_text(LISTS)
    prepare("parquet:train.parquet", DataOptions(schema_path=Path("schema.toml"), holdout=0.5), Path("stored"))
    train_run(toy_config(out="run", data="prepared:stored", data_options={}, tier={"device_rows": "100%"}))
    predict_run("run", "scores.npy")
    export_run("run", "served")
    (batch,) = open_dataset("prepared:stored", DataOptions()).evaluation(600)
    bags = [np.split(rows, starts[1:]) for rows, starts in bags_of(batch)]
    samples = [
        {"dense_0": dense[0], "user": user[0], "tags": tags, "items": items, "codes": codes}
        for dense, user, tags, items, codes in zip(batch.dense, *bags, strict=True)
    ]
    np.testing.assert_allclose(scoring.load("served").score(samples), np.load("scores.npy"), atol=1e-6)
