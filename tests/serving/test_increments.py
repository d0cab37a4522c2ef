"""Increments of exports: base + increments equal the full export, in files and in a model that goes on scoring."""

import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.toy import SMALL_DLRM, toy_config

from adaptive.cli.app import main
from adaptive.errors import CheckpointError, ConfigError, OutputError
from adaptive.serving import apply_increment, export_increment, export_run, exporting, increments, scoring
from adaptive.serving.increments import Changes, Export, read_export
from adaptive.serving.row_formats import quantized
from adaptive.serving.sample_values import ExportFacts
from adaptive.storage.arrays import Blocks
from adaptive.storage.durable import Disk
from adaptive.training.runs import train_run

SCHEMA = """
label = { column = "y" }
[[dense]]
columns = ["x"]
[[categorical]]
columns = ["user", "friend"]
keys = true
capacity = 60
expire = 25
table = "user"
[[categorical]]
columns = ["word"]
vocabulary = true
min_count = 2
[[categorical]]
columns = ["site"]
hash_rows = 300
[[categorical]]
columns = ["hour"]
kind = "int"
num_embeddings = 24
missing = "reject"
"""
FORMATS = [("torch", "float32"), ("safetensors", "bfloat16"), ("torch", "int8"), ("safetensors", "float32")]


def write_day(path: Path, day: int) -> None:
    """Users, words and sites that come and go."""
    random = np.random.default_rng(day)
    lines = ["y,x,user,friend,word,site,hour"]
    for place in range(200):
        user, friend = random.integers(20, size=2) + 12 * day + place // 20
        word, site = f"w{random.integers(8) + 3 * day}", f"s{random.integers(30) + 10 * day}"
        lines.append(f"{int(random.random() < 0.4)},{random.random():.3f},u{user},u{friend},{word},{site},{place % 5}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(name="days", scope="module")
def days_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs `day_0`, `day_1` and `day_2`, each of which continues the one before."""
    folder = tmp_path_factory.mktemp("days")
    (folder / "schema.toml").write_text(SCHEMA)
    for day in range(3):
        write_day(folder / f"{day}.csv", day)
        data_options = {"schema_path": str(folder / "schema.toml"), "holdout": 0.1}
        config = toy_config(
            data=f"csv:{folder / f'{day}.csv'}",
            data_options=data_options,
            model_options=SMALL_DLRM | {"feature_norm": "batch"},
            batch_size=8,
            tier={"device_rows": "100%", "device": "cpu"},
            init_from=None if day == 0 else str(folder / f"day_{day - 1}"),
            out=str(folder / f"day_{day}"),
        )
        train_run(config)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in scoring.file_names(folder)}


SAMPLES = [
    {"x": 0.5, "user": f"u{user}", "friend": f"u{user + 7}", "word": f"w{user % 15}", "site": f"s{user}", "hour": 3}
    for user in range(70)
] + [{"hour": 1}]


@pytest.mark.parametrize(("to", "row_dtype"), FORMATS)
def test_base_and_increments_equal_the_full_export(days: Path, tmp_path: Path, to: str, row_dtype: str) -> None:
    """File by file, also two in a row; and a model that takes them in has the scores of the full export."""
    for day in range(3):
        export_run(days / f"day_{day}", tmp_path / f"full_{day}", to=to, row_dtype=row_dtype)
    base = content(tmp_path / "full_0")
    results = [
        export_increment(days / f"day_{day + 1}", tmp_path / f"full_{day}", tmp_path / f"to_{day + 1}")
        for day in (0, 1)
    ]
    assert results[0].result == results[1].base == read_export(tmp_path / "full_1").fingerprint()
    user, word, site, hour = results[0].tables
    assert user.removed > 0 and 0 < user.added <= user.changed and word.removed == 0 < word.added
    assert 0 < site.changed < site.rows == 301 and (site.added, site.removed) == (0, 0)
    assert hour.changed == 5  # of 24
    apply_increment(tmp_path / "full_0", tmp_path / "to_1", tmp_path / "merged_1")
    done = apply_increment(tmp_path / "merged_1", tmp_path / "to_2", tmp_path / "merged_2")
    for day in (1, 2):
        assert content(tmp_path / f"merged_{day}") == content(tmp_path / f"full_{day}")
    assert done.result == results[1].result and content(tmp_path / "full_0") == base
    scorer = scoring.Scorer(tmp_path / "full_0")
    for day in (1, 2):
        scorer.apply(tmp_path / f"to_{day}")
        assert scorer.score(SAMPLES) == scoring.load(tmp_path / f"full_{day}").score(SAMPLES)
    shutil.rmtree(tmp_path / "to_2")
    assert scorer.score(SAMPLES) == scoring.load(tmp_path / "full_2").score(SAMPLES)


def test_the_base_may_be_a_run(days: Path, tmp_path: Path) -> None:
    """Then the export that it would give is the base, and nothing of it stays."""
    export_run(days / "day_0", tmp_path / "full_0", row_dtype="int8")
    expected = export_increment(days / "day_1", tmp_path / "full_0", tmp_path / "of_export")
    result = export_increment(days / "day_1", days / "day_0", tmp_path / "of_run", row_dtype="int8")
    assert content(tmp_path / "of_run") == content(tmp_path / "of_export")
    assert (result.base, result.since) == (expected.base, str(days / "day_0"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full_0", "of_export", "of_run"]
    names = ["README.md", "increment.json", "increment.safetensors", "model.json"]
    assert scoring.file_names(tmp_path / "of_run") == names


def test_a_wrong_base_or_order_is_refused(days: Path, tmp_path: Path) -> None:
    for day in range(2):
        export_run(days / f"day_{day}", tmp_path / f"full_{day}")
        export_increment(days / f"day_{day + 1}", days / f"day_{day}", tmp_path / f"to_{day + 1}")
    with pytest.raises(CheckpointError, match=r"expected the export \w{12}, which is the base of .*to_2, got"):
        apply_increment(tmp_path / "full_0", tmp_path / "to_2", tmp_path / "merged")
    with pytest.raises(CheckpointError, match="got an export with this increment"):
        apply_increment(tmp_path / "full_1", tmp_path / "to_1", tmp_path / "merged")
    scorer = scoring.Scorer(tmp_path / "full_0")
    expected = scorer.score(SAMPLES)
    with pytest.raises(ValueError, match=r"Apply increments in the order in which they were made"):
        scorer.apply(tmp_path / "to_2")
    assert scorer.score(SAMPLES) == expected
    scorer.apply(tmp_path / "to_1")
    with pytest.raises(ValueError, match="got an export with this increment"):
        scorer.apply(tmp_path / "to_1")
    assert not (tmp_path / "merged").exists()


def test_a_failed_write_leaves_the_base(days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of the first writes, and later ones."""
    export_run(days / "day_0", tmp_path / "full")
    export_increment(days / "day_1", tmp_path / "full", tmp_path / "increment")
    before, sync = content(tmp_path), Disk.sync
    for number in (0, 1, 2, 5, 9):
        count = 0

        def fail(disk: Disk, file: Any, number: int = number) -> None:
            nonlocal count
            count += 1
            if count > number:
                raise OSError(28, "No space left on device")
            sync(disk, file)

        monkeypatch.setattr(Disk, "sync", fail)
        with pytest.raises(OutputError, match="merged could not be written"):
            apply_increment(tmp_path / "full", tmp_path / "increment", tmp_path / "merged")
        count = 0
        if number < 3:  # files of an increment
            with pytest.raises(OutputError, match="other could not be written"):
                export_increment(days / "day_1", tmp_path / "full", tmp_path / "other")
        monkeypatch.setattr(Disk, "sync", sync)
        assert content(tmp_path) == before


def test_damaged_increments_are_refused(days: Path, tmp_path: Path) -> None:
    """A flipped byte in any of its files, a missing and a further file."""
    export_run(days / "day_0", tmp_path / "full")
    export_increment(days / "day_1", tmp_path / "full", tmp_path / "good")
    scorer, names = scoring.Scorer(tmp_path / "full"), scoring.file_names(tmp_path / "good")
    expected = scorer.score(SAMPLES)
    for name in [*names, "missing", "further"]:
        shutil.rmtree(tmp_path / "bad", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        if name == "missing":
            (tmp_path / "bad/README.md").unlink()
        elif name == "further":
            (tmp_path / "bad/further.py").touch()
        else:
            data = bytearray((tmp_path / "bad" / name).read_bytes())
            data[len(data) // 2] ^= 1
            (tmp_path / "bad" / name).write_bytes(data)
        with pytest.raises(CheckpointError):
            apply_increment(tmp_path / "full", tmp_path / "bad", tmp_path / "merged")
        with pytest.raises(ValueError, match="expected"):
            scorer.apply(tmp_path / "bad")
        assert scorer.score(SAMPLES) == expected and not (tmp_path / "merged").exists()
    with pytest.raises(CheckpointError, match=r"increment .*: expected one that can be read"):
        apply_increment(tmp_path / "full", tmp_path / "full", tmp_path / "merged")
    with pytest.raises(CheckpointError, match=r"export .*: expected one that can be read"):
        apply_increment(tmp_path / "good", tmp_path / "good", tmp_path / "merged")


def test_other_formats_and_models_are_refused(days: Path, tmp_path: Path) -> None:
    export_run(days / "day_0", tmp_path / "full")
    for options, message in (
        ({"to": "onnx"}, "expected torch or safetensors with --since, got onnx"),
        ({"to": "safetensors"}, r"expected the format of the base .*, model.pt, got model.safetensors \(--to\)"),
        ({"row_dtype": "int8"}, r"expected the format of the base .*, float32, got int8 \(--row-dtype\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_increment(days / "day_1", tmp_path / "full", tmp_path / "increment", **options)
    facts = json.loads((tmp_path / "full/model.json").read_text())
    (tmp_path / "full/model.json").write_text(json.dumps(facts | {"tensors": "model.onnx"}))
    for call in (export_increment, apply_increment):
        with pytest.raises(ConfigError, match=r"got model.onnx .*Increments of ONNX are not supported"):
            call(
                *((days / "day_1", tmp_path / "full") if call is export_increment else (tmp_path / "full", days)),
                days / "o",
            )
    shutil.rmtree(tmp_path / "full")
    export_run(days / "day_2", tmp_path / "full")
    with pytest.raises(ConfigError, match=r"table 'word': a vocabulary that continues that of the base, got another"):
        export_increment(days / "day_0", tmp_path / "full", tmp_path / "increment")
    wide = toy_config(
        data=f"csv:{days / '0.csv'}",
        data_options={"schema_path": str(days / "schema.toml"), "holdout": 0.1},
        model_options=SMALL_DLRM | {"feature_norm": "batch", "top_mlp": (16, 1)},
        tier={"device_rows": "100%", "device": "cpu"},
        out=str(tmp_path / "wide"),
        steps=1,
    )
    train_run(wide)
    with pytest.raises(ConfigError, match=r"expected the model of the base, with model .*Export the run completely"):
        export_increment(tmp_path / "wide", tmp_path / "full", tmp_path / "increment")
    assert not (tmp_path / "increment").exists()


def test_other_code_needs_a_new_process(days: Path, tmp_path: Path) -> None:
    """An increment has the code that changed; a process that scores goes on with what it has."""
    export_run(days / "day_0", tmp_path / "full_0")
    export_run(days / "day_1", tmp_path / "full_1")
    (tmp_path / "full_0/dense/dlrm.py").write_text(
        "# an older version\n" + (tmp_path / "full_0/dense/dlrm.py").read_text()
    )
    export_increment(days / "day_1", tmp_path / "full_0", tmp_path / "increment")
    scorer = scoring.Scorer(tmp_path / "full_0")
    with pytest.raises(ValueError, match=r"expected the code that runs, got other code in dense/dlrm\.py"):
        scorer.apply(tmp_path / "increment")
    apply_increment(tmp_path / "full_0", tmp_path / "increment", tmp_path / "merged")
    assert content(tmp_path / "merged") == content(tmp_path / "full_1")


# -- random changes ----------------------------------------------------------------------------------------------------


def all_blocks(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Blocks]:
    """Tables in blocks of 7 rows, and the dense part as it is."""
    dense = {name: torch.from_numpy(array) for name, array in tensors.items() if name.startswith("dense.")}
    tables = {name: in_blocks(array) for name, array in tensors.items() if name not in dense}
    return tables | {name: exporting.blocks_of(tensor) for name, tensor in dense.items()}


def in_blocks(array: NDArray[Any]) -> Blocks:

    def make() -> Iterator[NDArray[Any]]:
        for first in range(0, len(array), 7):
            yield array[first : first + 7]

    return Blocks(array.dtype, array.shape, make)


def write_full(folder: Path, export: Export, code: Path) -> None:
    """Write an export as `export_run` does, with the code and page of another one."""
    shutil.copytree(code, folder, ignore=shutil.ignore_patterns("ids", "model.*", "__pycache__"))
    exporting.write_tensors(folder / export.facts.tensors, all_blocks(export.tensors))
    exporting.write_ids(folder, export.keys)
    exporting.write_text(folder / "model.json", exporting.facts_text(export.facts))


def write_changes(folder: Path, old: Export, new: Export) -> None:
    """Write the increment from one export to another; code and pages are equal."""
    folder.mkdir()

    def write_facts(folder: Path, facts: ExportFacts) -> None:
        exporting.write_text(folder / "model.json", exporting.facts_text(facts))

    Changes(old, new.facts, all_blocks(new.tensors), new.keys, {"user"}).write(folder, write_facts)


def changed(export: Export, random: np.random.Generator, dense_share: float = 0.5) -> Export:
    """Random changes: rows, none in some tables; keys that come and go; a vocabulary that grows; the dense part."""
    tensors, keys, facts = dict(export.tensors), dict(export.keys), export.facts
    tables, features = list(facts.tables), list(facts.features)
    for number, table in enumerate(tables):
        names = [f"tables.{number}.{name}" for name in ("weight", "scales") if f"tables.{number}.{name}" in tensors]
        values = [tensors[name].copy() for name in names]
        file = next((f.vocabulary for f in features if f.table == number and f.vocabulary), None)
        if file is not None:
            words, last = keys[file], [value[len(keys[file]) :] for value in values]
            count = int(random.integers(0, 4))
            new = np.setdiff1d(random.integers(-(2**63), 2**63, count), words)
            stay = (
                random.random(len(words)) < random.choice([0.0, 0.7, 1.0]) if table.name == "user" else words == words
            )
            words = np.concatenate([words[stay], new])
            order = np.argsort(words) if table.name == "user" else np.arange(len(words))
            keys[file] = words[order]
            values = [
                np.concatenate([np.concatenate([v[: len(stay)][stay], _random(v, len(new), random)])[order], rest])
                for v, rest in zip(values, last, strict=True)
            ]
            tables[number] = replace(table, rows=len(values[0]))
        size = random.choice([0, 1, len(values[0])])
        rows = random.choice(len(values[0]), size, replace=False)
        for value in values:
            value[rows] = _random(value, len(rows), random)
        tensors |= dict(zip(names, values, strict=True))
    for place, feature in enumerate(features):
        if feature.vocabulary is not None:
            size = len(keys[feature.vocabulary])
            features[place] = replace(feature, rows=size, unknown=size, missing=size)
    for name in tensors:
        if name.startswith("dense.") and random.random() < dense_share:
            tensors[name] = np.array(random.random(tensors[name].shape) * 9, tensors[name].dtype)
    return Export(export.folder, replace(facts, tables=tables, features=features), tensors, keys)


def _random(like: NDArray[Any], count: int, random: np.random.Generator) -> NDArray[Any]:
    """Random rows of the type of others, with zeros of either sign."""
    values = random.normal(size=(count, like.shape[1])).astype(np.float32)
    if like.dtype == np.float32:
        values[random.random(values.shape) < 0.1] = -0.0
        values[random.random(values.shape) < 0.1] = 0.0
        return values
    return quantized(values)[0] if like.dtype == np.int8 else (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("to", "row_dtype"), FORMATS[:3])
def test_random_changes(days: Path, tmp_path: Path, to: str, row_dtype: str, seed: int) -> None:
    """Five increments in a row, merged into files and taken in by a model."""
    random = np.random.default_rng(seed)
    export_run(days / "day_1", tmp_path / "full_0", to=to, row_dtype=row_dtype)
    export, scorer = read_export(tmp_path / "full_0"), scoring.Scorer(tmp_path / "full_0")
    (tmp_path / "merged_0").symlink_to(tmp_path / "full_0")
    for number in range(1, 6):
        full, old = tmp_path / f"full_{number}", tmp_path / f"full_{number - 1}"
        export = changed(export, random)
        write_full(full, export, tmp_path / "full_0")
        increment = tmp_path / f"to_{number}"
        write_changes(increment, read_export(old), export)
        apply_increment(tmp_path / f"merged_{number - 1}", increment, tmp_path / f"merged_{number}")
        assert content(tmp_path / f"merged_{number}") == content(full)
        scorer.apply(increment)
        expected = scoring.load(full)
        samples = [*SAMPLES[:20], {"hour": 1}]
        assert scorer.score(samples) == expected.score(samples)
        for table, other in zip(scorer.model.tables, expected.tables, strict=True):
            rows = np.arange(other.weight.shape[0])
            every = [torch.from_numpy(rows)] * 2
            np.testing.assert_array_equal(table(*every).detach().numpy(), other(*every).detach().numpy())
        for ids, others in zip(scorer.model.values.ids[:3], expected.values.ids, strict=False):
            np.testing.assert_array_equal(ids.keys_by_row(), others.keys_by_row())


def test_only_rows_that_changed_are_written(days: Path, tmp_path: Path) -> None:
    """Their keys and rows, written out; the last row of a table with keys is always there."""
    export_run(days / "day_0", tmp_path / "full")
    base = read_export(tmp_path / "full")
    tensors, file = {name: array.copy() for name, array in base.tensors.items()}, "ids/0.npy"
    keys = base.keys[file]
    tensors["tables.0.weight"] = np.delete(tensors["tables.0.weight"], 1, axis=0)
    tensors["tables.0.weight"][3] += 1
    tensors["tables.2.weight"][[5, 17]] *= 2
    tables = [replace(base.facts.tables[0], rows=len(keys)), *base.facts.tables[1:]]
    live = {"user"}
    newer = replace(base.facts, tables=tables), all_blocks(tensors)
    changes = Changes(base, *newer, base.keys | {file: np.delete(keys, 1)}, live)
    (tmp_path / "increment").mkdir()
    changes.write(tmp_path / "increment", lambda folder, facts: None)
    arrays = scoring.read_safetensors(tmp_path / "increment/increment.safetensors")
    assert arrays["tables.0.keys"].tolist() == [keys[4]] and arrays["tables.0.gone"].tolist() == [keys[1]]
    assert arrays["tables.0.weight"].tolist() == tensors["tables.0.weight"][[3, -1]].tolist()
    assert arrays["tables.1.keys"].tolist() == [] and len(arrays["tables.1.weight"]) == 2
    assert arrays["tables.2.rows"].tolist() == [5, 17] and arrays["tables.3.rows"].tolist() == []
    assert arrays["tables.2.weight"].tolist() == tensors["tables.2.weight"][[5, 17]].tolist()
    assert [count.changed for count in changes.counts] == [2, 2, 2, 0]


# -- while a model scores ------------------------------------------------------------------------------------------


def test_a_thread_sees_one_state_or_the_other(days: Path, tmp_path: Path) -> None:
    """While increments are taken in, each call has the scores of one of the exports, and later calls of a newer one."""
    export_run(days / "day_1", tmp_path / "full_0")
    export, random = read_export(tmp_path / "full_0"), np.random.default_rng(0)
    states = [scoring.load(tmp_path / "full_0").score(SAMPLES)]
    for number in range(1, 9):
        old, export = export, changed(export, random, dense_share=1.0)
        write_changes(tmp_path / f"to_{number}", old, export)
        write_full(tmp_path / f"full_{number}", export, tmp_path / "full_0")
        states.append(scoring.load(tmp_path / f"full_{number}").score(SAMPLES))
    assert all(scores not in states[:number] for number, scores in enumerate(states))
    scorer, seen, stop = scoring.Scorer(tmp_path / "full_0"), list[int](), threading.Event()
    wrong: list[list[float]] = []

    def score() -> None:
        while not stop.is_set():
            scores = scorer.score(SAMPLES)
            if scores in states:
                seen.append(states.index(scores))
            else:
                wrong.append(scores)

    thread = threading.Thread(target=score)
    thread.start()
    try:
        for number in range(1, 9):
            count = len(seen)
            while len(seen) <= count + 1 and not wrong:
                time.sleep(0.001)
            scorer.apply(tmp_path / f"to_{number}")
    finally:
        stop.set()
        thread.join()
    assert not wrong and seen == sorted(seen) and len(set(seen)) >= 8
    assert scorer.score(SAMPLES) == states[-1]


def test_on_the_command_line(days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["export", *map(str, arguments)])
        return ended.value.code, *capsys.readouterr()

    run(days / "day_0", "--to", "safetensors", "--out", tmp_path / "full_0")
    run(days / "day_1", "--to", "safetensors", "--out", tmp_path / "full_1")
    code, out, _ = run(days / "day_1", "--since", tmp_path / "full_0", "--out", tmp_path / "increment")
    assert code == 0 and "keys without a row" in out and "bytes in" in out
    arguments = [tmp_path / "full_0", "--apply", tmp_path / "increment", "--out", tmp_path / "merged"]
    code, _, error = run(*arguments, "--to", "torch")
    assert code == 2 and "expected only --out with --apply, got --to" in error
    code, out, _ = run(*arguments, "--json")
    assert code == 0 and json.loads(out)["result"] == increments.read_export(tmp_path / "full_1").fingerprint()
    assert content(tmp_path / "merged") == content(tmp_path / "full_1")
    code, _, error = run(days / "day_1", "--since", days / "day_0", "--check", "x", "--out", tmp_path / "c")
    assert code == 2 and "expected a complete export with --check" in error
