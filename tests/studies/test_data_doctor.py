"""`doctor --data`: each fault of some data is found, and sane data have no finding."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptive.data.data_options import DataOptions
from adaptive.data.findings import Categories, Finding, Sample, feature_auc, rank_auc
from adaptive.data.open import open_dataset
from adaptive.errors import InputError
from adaptive.studies.data_doctor import examine_data
from adaptive.training.quality import exact_auc

Columns = dict[str, Any]
Fault = Callable[[Columns], None]
ROWS = 2000
SCHEMA = """
label = { column = "click" }
time = { column = "time" }
dense = [{ columns = ["price", "age"] }]
categorical = [
    { columns = ["user"], kind = "int", num_embeddings = 300 },
    { columns = ["item"], kind = "int", hash_rows = 1000 },
    { columns = ["tag"], hash_rows = 100 },
    { columns = ["seen"], kind = "int", inner_separator = "|", hash_rows = 1000 },
]
"""


def sane(seed: int = 0) -> Columns:
    """2,000 rows of ids, bags, inputs and times without a fault; a tenth of the tags is missing."""
    random = np.random.default_rng(seed)
    bags = [random.integers(0, 200, random.integers(0, 4)) for _ in range(ROWS)]
    return {
        "click": random.integers(0, 2, ROWS),
        "time": 1_700_000_000 + np.cumsum(random.integers(0, 60, ROWS)),
        "price": random.normal(size=ROWS).round(3),
        "age": random.normal(size=ROWS).round(3),
        "user": random.zipf(1.5, ROWS) % 300,
        "item": random.integers(0, 300, ROWS),
        "tag": np.where(random.random(ROWS) < 0.1, "", random.choice(["a", "b", "c"], ROWS)),
        "seen": np.array(["|".join(map(str, bag.tolist())) for bag in bags]),
    }


def write(columns: Columns, schema: str = SCHEMA) -> DataOptions:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    Path("data.csv").write_text("\n".join(lines) + "\n")
    Path("schema.toml").write_text(schema)
    return DataOptions(schema_path=Path("schema.toml"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(columns: Columns, schema: str = SCHEMA, **options: Any) -> list[Finding]:
    rows, findings = examine_data("csv:data.csv", write(columns, schema).model_copy(update=options))
    assert rows <= len(columns["click"])
    return findings


@pytest.mark.parametrize("seed", range(3))
def test_sane_data_have_no_finding(seed: int) -> None:
    assert found(sane(seed)) == []
    assert found({name: values[:40] for name, values in sane(seed).items()}) == []


def change(name: str, place: Any, value: Any) -> Fault:
    def fault(columns: Columns) -> None:
        values = columns[name] = np.array(columns[name])
        values[place] = value(columns) if callable(value) else value

    return fault


def whole(name: str, value: Callable[[Columns], Any]) -> Fault:
    return lambda columns: columns.update({name: value(columns)})


def repeated(columns: Columns) -> None:
    columns.update({name: np.insert(values, 500, values[:300]) for name, values in columns.items()})
    columns["time"] = np.full(len(columns["time"]), 1_700_000_000)


def in_schema(old: str, new: str) -> str:
    assert old in SCHEMA
    return SCHEMA.replace(old, new)


KEYS = in_schema('"item"], kind = "int", hash_rows = 1000', '"item"], kind = "int", keys = true, capacity = 100')
FAULTS: dict[str, tuple[str, Fault, str, str, str]] = {  # kind of finding, fault, schema, where, words
    "float text": ("float ids", whole("tag", lambda c: [*c["tag"][:7], "4.87e+18", *c["tag"][8:]]), SCHEMA,
                   "data.csv:9", "tag, got '4.87e+18', a float"),
    "bad line": ("bad lines", whole("price", lambda c: ["x", *c["price"][1:]]), SCHEMA, "data.csv:2", "price, got 'x'"),
    "beyond": ("ids beyond", change("user", [5, 9], 300), SCHEMA, "data.csv:7", "got 300 (2 such lookups)"),
    "leak": ("leak", whole("age", lambda c: np.where(c["click"] == 0, 0.5, -c["age"] ** 2)), SCHEMA, "data.csv:2",
             "age (AUC 1.000)"),
    "missing": ("leak", whole("tag", lambda c: np.where(c["click"] == 0, "", [f"t{n % 50}" for n in range(ROWS)])),
                SCHEMA, "data.csv:2", "tag (AUC 1.000)"),
    "bag": ("leak", whole("seen", lambda c: np.where(c["click"] == 0, "", "1|2")), SCHEMA, "data.csv:2", "seen (AUC"),
    "one class": ("one class", whole("click", lambda c: np.ones(ROWS, int)), SCHEMA, "data.csv:2", "1 in all of 2,000"),
    "milliseconds": ("milliseconds", whole("time", lambda c: c["time"] * 1000), SCHEMA, "data.csv:2", "got 17000"),
    "large": ("unscaled", change("price", 50, 1e6), SCHEMA, "data.csv:52", "price (2.2e+04)"),
    "constant": ("constant", whole("item", lambda c: np.full(ROWS, 7)), SCHEMA, "data.csv:2", "constant item"),
    "empty": ("constant", whole("age", lambda c: [""] * ROWS), SCHEMA, "data.csv:2", "empty age"),
    "copies": ("duplicates", repeated, SCHEMA, "data.csv:502", "13% of the rows are copies of earlier ones, such as of "
               "data.csv:2"),
    "shuffled": ("late", change("time", slice(900, 910), 1_700_000_000), SCHEMA, "data.csv:902", "10 rows"),
    "crowded": ("hash_rows", lambda c: None, in_schema('item"], kind = "int", hash_rows = 1000',
                'item"], kind = "int", hash_rows = 200'), "all rows", "item (300 ids in 200 rows)"),
    "full": ("capacity", lambda c: None, KEYS, "all rows", "item (300 ids in 100 rows)"),
    "new": ("unseen", change("item", slice(1850, None), lambda c: 1000 + c["item"][1850:]), SCHEMA, "data.csv:1802",
            "item (75%)"),
    "numbers": ("unseen", whole("tag", lambda c: np.arange(ROWS) // 2), in_schema("rows = 100 ", "rows = 9_999 "),
                "data.csv:1802", "tag (100%)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_nothing_else(name: str) -> None:
    kind, fault, schema, where, words = FAULTS[name]
    columns = sane()
    fault(columns)
    (finding,) = found(columns, schema)
    assert (finding.kind, finding.where) == (kind, where) and words in finding.what
    assert finding.why and finding.mend and "{mend}" not in str(finding)


def test_suggested_sizes() -> None:
    columns = sane()
    columns["user"][0], columns["item"] = 4711, np.arange(ROWS) % 1234
    beyond, hashed = found(columns, in_schema("hash_rows = 1000", "hash_rows = 1500"))
    assert "num_embeddings = 4712" in beyond.mend and "hash_rows = 5_000 (item)" in hashed.mend
    assert [finding.kind for finding in found(columns, out_of_range="oov")] == ["hash_rows"]
    (full,) = found(sane(), KEYS)
    assert "capacity = 380 (item)" in full.mend
    for more in ("expire = 50", "admit = 100"):
        assert found(sane(), KEYS.replace("capacity", f"{more}, capacity")) == []


def test_ids_that_were_floats_in_parquet() -> None:
    columns = sane()
    floats = columns["item"].astype(np.float32)
    floats[[30, 40]] = 2.0**24
    write(columns)
    pq.write_table(pa.table({**columns, "item": floats}), "data.parquet")
    rows, (finding,) = examine_data("parquet:data.parquet", DataOptions(schema_path=Path("schema.toml")))
    assert rows == ROWS - 2 and finding.kind == "float ids"
    assert finding.where == "data.parquet[row group 0]:31" and "bad lines (2): " in finding.what
    assert "ids merge" in finding.why and "Int64" in finding.mend


def test_what_is_no_leak() -> None:
    """A number for each row predicts no other row; sessions with one label each are in one half; few positives."""
    columns = sane()
    columns["item"], columns["click"] = np.arange(ROWS) * 7919, np.arange(ROWS) // 5 % 2
    columns["user"] = np.arange(ROWS) // 5 % 290
    assert [finding.kind for finding in found(columns, in_schema("hash_rows = 1000", "hash_rows = 9999"))] == ["unseen"]
    columns = sane()
    columns["click"] = (np.arange(ROWS) < 9).astype(int)
    columns["age"] = columns["click"] * 0.5
    assert found(columns) == []


def test_no_rows_and_only_bad_rows() -> None:
    with pytest.raises(InputError, match="expected rows, got none"):
        found({name: values[:0] for name, values in sane().items()})
    assert [finding.kind for finding in found({**sane(), "click": ["?"] * ROWS})] == ["bad lines"]


def test_only_the_first_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.studies.data_doctor.MOST_ROWS", 100)
    assert examine_data("csv:data.csv", write(sane())) == (100, [])
    monkeypatch.setattr("adaptive.studies.data_doctor._LOOK_ROWS", 50)
    monkeypatch.setattr("adaptive.studies.data_doctor._MOST_VALUES", 480)
    assert examine_data("csv:data.csv", write(sane()))[0] == 480 // 7  # 3 ids, 2 inputs, 1.5 values of a bag


def test_a_vocabulary_is_not_fitted() -> None:
    columns = sane()
    columns["item"][:] = 5
    findings = found(columns, in_schema("hash_rows = 1000", "vocabulary = true"), holdout=0.5)
    assert [finding.kind for finding in findings] == ["constant"]


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("synthetic", {"synthetic": {"num_train": 20_000}}),
        ("synthetic", {"synthetic": {"num_train": 20_000, "new_ids": 0.05, "days": 3}, "keys": {"capacity": 100_000}}),
        ("sequences", {"sequences": {"num_train": 5000}}),
    ],
)
def test_built_in_streams_have_no_finding(spec: str, options: Any) -> None:
    assert examine_data(spec, DataOptions.model_validate(options))[1] == []


REAL = {
    "kdd12-click": ("csv:kdd12-click/*.csv.gz", ["float ids"]),  # url_hash was a float, as its README says
    "avazu": ("csv:avazu-format-sample/avazu_sample.txt", []),
    "open-bandit-women": ("csv:open-bandit-women/bts/women.csv.gz", ["constant"]),  # affinities to 6 items are 0
    "taobao-ad-dmr": ("csv:alimama-dmr-sample/*.gz", ["duplicates"]),  # 304 of its 500 lines are distinct
    "criteo": ("criteo:criteo-1tb-sample/*.gz", []),
    "taobao": ("taobao:taobao-userbehavior-sample/UserBehavior.csv.gz", []),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data(name: str, real_data: Path) -> None:
    spec, kinds = REAL[name]
    schema = Path(name) if spec.startswith("csv") else None
    _, findings = examine_data(spec.replace(":", f":{real_data}/", 1), DataOptions(schema_path=schema))
    assert [finding.kind for finding in findings] == kinds


def test_training_warns_of_the_two_worst_once(caplog: pytest.LogCaptureFixture) -> None:
    columns = sane()
    columns["price"] = columns["click"] * 5000.0
    columns["age"] *= 1e5
    columns["tag"] = np.where(columns["click"] == 1, "x", "y")
    data = open_dataset("csv:data.csv", write(columns))
    with caplog.at_level(logging.WARNING):
        list(data.train(512)), list(data.train(512))
    leak, large = (record.getMessage() for record in caplog.records)
    assert "price (AUC 1.000), tag (AUC 1.000) alone predicts the label" in leak and leak.startswith("data.csv:2: ")
    assert "got price (3.5e+03), age (1e+05): they train badly" in large


@pytest.mark.parametrize("rows", [500, 1500])
def test_one_class_is_warned_about_if_it_is_no_accident(rows: int, caplog: pytest.LogCaptureFixture) -> None:
    columns = sane()
    columns["click"][:1600] = 0
    with caplog.at_level(logging.WARNING):
        list(open_dataset("csv:data.csv", write(columns)).train(rows))
    assert len(caplog.records) == (rows == 1500)


def test_milliseconds_are_warned_about_if_keys_expire_by_time(caplog: pytest.LogCaptureFixture) -> None:
    columns = sane()
    columns["time"] *= 1000
    for schema, count in ((KEYS, 0), (KEYS.replace("capacity", 'expire = "14d", capacity'), 1)):
        with caplog.at_level(logging.WARNING):
            list(open_dataset("csv:data.csv", write(columns, schema)).train(512))
        assert len(caplog.records) == count


@pytest.mark.parametrize("seed", range(5))
def test_rank_auc_is_exact(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(0, 30, 400).astype(np.float32)
    labels = (random.random(400) < 0.2).astype(np.float32)
    assert rank_auc(values, labels) == pytest.approx(exact_auc(values, labels), abs=1e-12)
    assert rank_auc(values, np.where(np.arange(400) < 9, 1, 0)) == rank_auc(values, labels * np.nan) == 0.5


@pytest.mark.parametrize("seed", range(8))
def test_auc_of_a_feature_against_a_slow_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 600))
    sizes = random.integers(0, 4, n) if seed % 2 else np.ones(n, np.int64)
    keys, labels = random.integers(0, 20, sizes.sum()), random.integers(0, 2, n).astype(np.float32)
    column = Categories("a", "a", keys, np.cumsum(sizes))
    sample = Sample(labels, np.empty((n, 0), np.float32), (), np.empty(0, np.bool_), (column,), None, None)
    bags = [part.tolist() or [-1] for part in np.split(keys, np.cumsum(sizes)[:-1])]
    is_known = [row * 16 // n % 2 == 0 for row in range(n)]
    seen: dict[int, list[float]] = {}
    for row in filter(is_known.__getitem__, range(n)):
        for key in bags[row]:
            seen.setdefault(key, []).append(float(labels[row]))
    mean = float(labels[is_known].mean())
    others = [row for row in range(n) if not is_known[row]]
    scores = [np.mean([np.mean(seen.get(key, [mean])) for key in bags[row]]) for row in others]
    truth = exact_auc(np.array(scores), labels[others]) if others else None
    actual = feature_auc(sample, column, 20, keys)
    assert actual == pytest.approx(truth, abs=1e-9) if n > 100 else actual in (0.5, truth)
