"""Small trained runs on text files, for tests of loading, predicting and exporting."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.training.runs import train_run
from support.toy import toy_config

SCHEMA = """
[label]
column = "click"
[[dense]]
columns = ["price"]
kind = "float"
transform = "log"
[[categorical]]
columns = ["first", "second"]
kind = "string"
vocabulary = true
min_count = 2
table = "genre"
[[categorical]]
columns = ["user"]
kind = "int"
num_embeddings = 50
[[categorical]]
columns = ["site"]
kind = "hex"
hash_rows = 37
[[categorical]]
columns = ["tags"]
inner_separator = "|"
hash_rows = 23
"""
HEADER = "click,price,first,user,second,site,tags"


def samples(rows: list[str]) -> list[dict[str, Any]]:
    """The lines of a file as an export's `scoring` takes them."""
    names = HEADER.split(",")
    found = [dict(zip(names, row.split(","), strict=True)) for row in rows]
    return [{**one, "tags": one["tags"].split("|")} for one in found]


def bags_of(batch: Batch) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Rows and first look-ups of each feature."""
    n = batch.num_samples
    for feature in range(batch.num_features):
        span = batch.feature_span(feature)
        yield batch.ids[span], batch.offsets[feature * n : (feature + 1) * n] - span.start


def lines(count: int, *, seed: int = 0) -> list[str]:
    """Lines of clicks with missing fields, rare words and bags of 0 to 3 tags."""
    rng = np.random.default_rng(seed)
    words = [*"abcdefgh", "ä ö", ""]
    found = []
    for _ in range(count):
        first, second = rng.choice(words, 2)
        user = "" if rng.random() < 0.1 else str(rng.integers(50))
        tags = "|".join(f"t{tag}" for tag in rng.integers(40, size=rng.integers(4)))
        click = int(rng.random() < (0.8 if user and int(user) % 2 else 0.2))
        price = "" if rng.random() < 0.1 else f"{rng.normal(5, 4):.3f}"
        found.append(f"{click},{price},{first},{user},{second},{rng.integers(2**40):x},{tags}")
    return found


def write_csv(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def without_label(rows: list[str]) -> list[str]:
    return [row.partition(",")[2] for row in rows]


def trained(folder: Path, **changed: Any) -> Path:
    """A run in `folder/run` on `folder/train.csv`, whose settings name files relative to the current folder, which must
    be `folder`. Without changes it is trained once a session, and copied."""
    once = folder.parent / "trained-run"
    is_plain = not changed and not (folder / "train.csv").exists()
    if not (folder / "train.csv").exists():
        write_csv(folder / "train.csv", lines(400))
    (folder / "schema.toml").write_text(SCHEMA)
    options = {"schema_path": "schema.toml", "holdout": 0.25}
    given = {"data": "csv:train.csv", "data_options": options, "out": "run", "tier": {"device_rows": "100%"}}
    if is_plain and once.exists():
        return shutil.copytree(once, folder / "run")
    train_run(toy_config(**(given | changed)))
    if is_plain:
        shutil.copytree(folder / "run", once)
    return folder / "run"
