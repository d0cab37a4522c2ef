"""Reading Criteo's format: MB/s and lines/s on one core, against polars and pyarrow.

    python -m benchmarks.bench_reader [--quick] [--set file=PATH]

Ours reads a plain text file into batches, ready for training: labels, log(1 + max(x, 0)) of 13 integers, 26 hashed
categories. The peers read the same file into a label, 13 integers and 26 strings, which is less; "same columns"
makes numbers of polars' columns, too. The same lines are read prepared, and as Parquet, into the same batches. All run
on one core, the file in the page cache.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.open import open_dataset
from adaptive.data.prepared_writer import prepare
from adaptive.data.rows.row_dataset import RowDataset
from adaptive.data.rows.split import survey
from benchmarks import harness
from benchmarks.harness import Report, median_ms, paired, timed
from benchmarks.variants import NotAvailable

ROW_GROUP = 1 << 17


def prepared(spec: str, options: DataOptions, folder: Path) -> dict[str, Callable[[int], Iterator[Batch]]]:
    """Read again, with all blocks checked already; and reopened, as by another run."""
    target = folder / "prepared"
    prepare(spec, options, target)

    def opened() -> Dataset:
        return open_dataset(f"prepared:{target}", DataOptions())

    data = opened()
    return {
        "adaptive, prepared": lambda size: data.train(size),
        "adaptive, prepared, reopened": lambda size: opened().train(size),
    }


def parquet(
    path: Path, options: DataOptions, folder: Path, dense: list[str], categories: list[str]
) -> dict[str, Callable[[int], Iterator[Batch]]]:
    """Write Parquet files by pyarrow, with categories as texts, and as int32 of the same bits.

    Raises:
        NotAvailable: without pyarrow.
    """
    try:
        import pyarrow
        from pyarrow import csv
        from pyarrow import parquet as files
    except ImportError as error:
        raise NotAvailable(f"pyarrow cannot be imported: {error}") from error
    schema = folder / "schema.toml"
    schema.write_text(
        f'[label]\ncolumn = "label"\n[[dense]]\ncolumns = {dense}\nkind = "int"\ntransform = "log"\n'
        f'[[categorical]]\ncolumns = {categories}\nkind = "hex"\nhash_rows = {options.hash_rows}\n'
    )
    types = {
        "label": pyarrow.int8(),
        **dict.fromkeys(dense, pyarrow.int32()),
        **dict.fromkeys(categories, pyarrow.string()),
    }
    texts = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=list(types)),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )
    integers = texts
    for name in categories:
        keys = [None if word is None else np.uint32(int(word, 16)).view(np.int32) for word in texts[name].to_pylist()]
        integers = integers.set_column(
            integers.schema.get_field_index(name), name, pyarrow.array(keys, pyarrow.int32())
        )
    readers = dict[str, Callable[[int], Iterator[Batch]]]()
    for name, table in (("texts", texts), ("int32", integers)):
        files.write_table(table, folder / f"{name}.parquet", row_group_size=ROW_GROUP)
        data = open_dataset(f"parquet:{folder / name}.parquet", DataOptions(schema_path=schema))
        readers[f"adaptive, Parquet of {name}"] = data.train
    return readers


def check_same_batches(wanted: Dataset, readers: dict[str, Callable[[int], Iterator[Batch]]], size: int) -> None:
    """Every way gives the batches of the text."""
    for name, train in readers.items():
        for one, other in zip(wanted.train(size), train(size), strict=True):
            for part in ("dense", "ids", "offsets", "labels"):
                if not np.array_equal(getattr(one, part), getattr(other, part)):
                    raise harness.NotEqual(f"{part} differ between text and {name}")


DENSE = [f"I{i + 1}" for i in range(13)]
CATEGORIES = [f"C{i + 1}" for i in range(26)]
HASH_ROWS = 1_000_000
BATCH = 2048
STORED = {
    "adaptive, prepared": "reader_prepared_vs_text",
    "adaptive, prepared, reopened": "reader_prepared_anew_vs_text",
    "adaptive, Parquet of texts": "reader_parquet_texts_vs_text",
    "adaptive, Parquet of int32": "reader_parquet_int32_vs_text",
}  # and the ratio of the text's time to theirs
SAMPLE_LINES = 20_000  # distinct ones; the file repeats them in other orders


@dataclass(frozen=True)
class Settings:
    file: str = ""  # a file of the user's; otherwise one is made
    megabytes: float = 100.0
    rounds: int = 7
    warm_up: int = 1


SETTINGS = {
    "full": Settings(),
    "quick": Settings(megabytes=30, rounds=3),
    "smoke": Settings(megabytes=0.3, rounds=2),
}


def run(settings: Settings) -> Report:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(settings.file) if settings.file else _make_file(Path(folder) / "day.tsv", settings.megabytes)
            return _bench(path, settings, Path(folder))
    finally:
        os.sched_setaffinity(0, cores)


def _make_file(path: Path, megabytes: float) -> Path:
    """Write lines like Criteo's: counts, a fifth missing, hex categories by a power law."""
    rng = np.random.default_rng(0)
    lines = [_line(rng) for _ in range(max(100, min(SAMPLE_LINES, int(megabytes * 1e6 / 400))))]
    left = int(megabytes * 1e6)
    with path.open("wb") as file:
        while left > 0:
            block = b"".join(lines[i] for i in rng.permutation(len(lines)))
            left -= file.write(block)
    return path


def _line(rng: np.random.Generator) -> bytes:
    integers = [b"" if missing else b"%d" % int(value) for missing, value in
                zip(rng.random(13) < 0.2, rng.lognormal(2.0, 2.0, 13) - 1, strict=True)]  # fmt: skip
    keys = (rng.pareto(0.7, 26) * 40).astype(np.int64) * 2_654_435_761 % 2**32
    words = [b"" if missing else b"%08x" % int(key) for missing, key in zip(rng.random(26) < 0.05, keys, strict=True)]
    return b"\t".join([b"%d" % (rng.random() < 0.25), *integers, *words]) + b"\n"


# --- readers -----------------------------------------------------------------------------------------------------


def _ours(path: Path) -> RowDataset:
    data = open_dataset(f"criteo:{path}", DataOptions(hash_rows=HASH_ROWS))
    assert isinstance(data, RowDataset)
    return data


def _drain(data: RowDataset) -> None:
    for _ in data.train(BATCH):
        pass


def _polars(path: Path) -> Callable[[], Any]:
    """Raises NotAvailable if polars is missing or has more than one thread."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    try:
        import polars
    except ImportError as error:
        raise NotAvailable(f"polars cannot be imported: {error}") from error
    if polars.thread_pool_size() != 1:
        raise NotAvailable("polars was imported with several threads; set POLARS_MAX_THREADS=1")
    types = {"label": polars.Int64, **dict.fromkeys(DENSE, polars.Int64), **dict.fromkeys(CATEGORIES, polars.String)}
    return lambda: polars.read_csv(path, separator="\t", has_header=False, schema=types, quote_char=None)


def _same_columns(frame: Any) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Return labels (n,), dense (n, 13), keys (26, n) of polars' frame; -1 for missing."""
    import polars as pl

    numbers = frame.select(
        pl.col("label").cast(pl.Float32),
        *[(pl.col(name).fill_null(0).clip(lower_bound=0) + 1).log().cast(pl.Float32) for name in DENSE],
        *[pl.col(name).str.to_integer(base=16).fill_null(-1) for name in CATEGORIES],
    )
    dense: NDArray[np.float32] = numbers.select(DENSE).to_numpy()
    return numbers["label"].to_numpy(), dense, np.stack([numbers[name].to_numpy() for name in CATEGORIES])


def _pyarrow(path: Path) -> Callable[[], Any]:
    """Raises NotAvailable if pyarrow is missing."""
    try:
        import pyarrow
        from pyarrow import csv
    except ImportError as error:
        raise NotAvailable(f"pyarrow cannot be imported: {error}") from error
    names = ["label", *DENSE, *CATEGORIES]
    types = {name: pyarrow.string() if name in CATEGORIES else pyarrow.int64() for name in names}
    return lambda: csv.read_csv(
        path,
        read_options=csv.ReadOptions(use_threads=False, column_names=names),
        parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=True),
    )


# --- equality ------------------------------------------------------------------------------------------------------


def _check(data: RowDataset, frames: dict[str, Any]) -> int:
    """All readers found the same values; returns the number of lines."""
    batches = list(data.train(BATCH))
    labels = np.concatenate([batch.labels for batch in batches])
    dense = np.concatenate([batch.dense for batch in batches])
    for name, frame in frames.items():
        if name == "pyarrow":
            import polars

            frame = polars.from_arrow(frame)
        their_labels, their_dense, keys = _same_columns(frame)
        if not (np.array_equal(labels, their_labels) and np.allclose(dense, their_dense, rtol=1e-6, atol=1e-6)):
            raise harness.NotEqual(f"labels or dense inputs differ between ours and {name}")
        for column in range(len(CATEGORIES)):
            _check_category(name, np.concatenate([_column(batch, column) for batch in batches]), keys[column])
    return len(labels)


def _column(batch: Batch, column: int) -> NDArray[np.int64]:
    return batch.ids[column * batch.num_samples : (column + 1) * batch.num_samples]


def _check_category(name: str, rows: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
    """Equal categories have equal rows, and missing ones the last row."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if not (np.array_equal(rows[first][inverse], rows) and np.array_equal(rows == HASH_ROWS, keys == -1)):
        raise harness.NotEqual(f"categories differ between ours and {name}")


# --- measuring -----------------------------------------------------------------------------------------------------


def _bench(path: Path, settings: Settings, folder: Path) -> Report:
    report = Report()
    data = _ours(path)
    work: dict[str, Callable[[], object]] = {
        "adaptive": lambda: _drain(data),
        "adaptive, tokeniser alone": lambda: survey(data._source, (0,)),
    }
    peers: dict[str, Callable[[], Any]] = {}
    for name, make in (("polars", _polars), ("pyarrow", _pyarrow)):
        try:
            peers[name] = make(path)
        except NotAvailable as error:
            report.absent[f"reader_vs_{name}_per_core"] = str(error)
    # pyarrow's columns are compared through polars
    comparable = {name: read() for name, read in peers.items() if "polars" in peers}
    num_lines = _check(data, comparable)
    comparable.clear()
    work |= peers
    work |= _stored(path, data, folder, report)
    if "polars" in peers:
        work["polars, same columns"] = lambda: _same_columns(peers["polars"]())
    times = harness.take_turns(
        {name: timed(one) for name, one in work.items()}, rounds=settings.rounds, warm_up=settings.warm_up
    )
    megabytes = path.stat().st_size / 1e6
    table = report.table(
        f"reading {megabytes:.1f} MB, {num_lines:,} lines, one core", "reader", "MB/s", "lines/s", "over ours"
    )
    for name, spent in times.items():
        seconds = median_ms(spent) / 1e3
        table.add(name, megabytes / seconds, num_lines / seconds, paired(spent, times["adaptive"]))
    for name, ratio in STORED.items():
        if name in times:
            report.ratios[ratio] = paired(times["adaptive"], times[name])
    for name in peers:
        report.ratios[f"reader_vs_{name}_per_core"] = paired(times[name], times["adaptive"])
    with suppress(KeyError):
        report.ratios["reader_vs_polars_same_columns"] = paired(times["polars, same columns"], times["adaptive"])
    report.figures["reader_mb_per_s"] = megabytes / (median_ms(times["adaptive"]) / 1e3)
    report.figures["reader_tokeniser_mb_per_s"] = megabytes / (median_ms(times["adaptive, tokeniser alone"]) / 1e3)
    return report


def _stored(path: Path, data: RowDataset, folder: Path, report: Report) -> dict[str, Callable[[], object]]:
    """The same lines stored in other ways, once it is shown that they give the same batches."""
    options = DataOptions(hash_rows=HASH_ROWS)
    readers = prepared(f"criteo:{path}", options, folder)
    try:
        readers |= parquet(path, options, folder, DENSE, CATEGORIES)
    except NotAvailable as error:
        report.absent["reader_parquet_int32_vs_text"] = str(error)
    check_same_batches(data, readers, BATCH)
    return {name: lambda train=train: sum(1 for _ in train(BATCH)) for name, train in readers.items()}


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
