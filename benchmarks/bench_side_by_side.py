"""Reading several files with one thread and with two, in order: Criteo's lines as text, gzip and Parquet.

    python -m benchmarks.bench_side_by_side [--quick]

All usable cores, files in the page cache. The batches are first shown to be equal.
"""

import gzip
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from adaptive.data.dataset import Dataset
from adaptive.data.open import open_dataset
from adaptive.data.options import DataOptions
from benchmarks import bench_reader, harness, stored
from benchmarks.harness import Report, median_ms, paired, timed
from benchmarks.variants import NotAvailable

FILES, BATCH = 4, 2048


@dataclass(frozen=True)
class Settings:
    megabytes: float = 200.0
    rounds: int = 7
    warm_up: int = 1


SETTINGS = {
    "full": Settings(),
    "quick": Settings(megabytes=100, rounds=3),
    "smoke": Settings(megabytes=0.5, rounds=2),
}


def run(settings: Settings) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return _bench(Path(folder), settings)


def _bench(folder: Path, settings: Settings) -> Report:
    report, work = Report(), dict[str, Callable[[], float]]()
    part = bench_reader._make_file(folder / "part.tsv", settings.megabytes / FILES)
    whole = part.read_bytes()
    part.with_suffix(".gz").write_bytes(gzip.compress(whole, 1))
    specs: dict[str, tuple[str, Path | None]] = {
        name: ("criteo:" + ",".join([f"{folder}/part.{name}"] * FILES), None) for name in ("tsv", "gz")
    }
    options = DataOptions(hash_rows=bench_reader.HASH_ROWS)
    try:
        stored.parquet(part, options, folder, bench_reader.DENSE, bench_reader.CATEGORIES)
        specs["parquet"] = "parquet:" + ",".join([f"{folder}/int32.parquet"] * FILES), folder / "schema.toml"
    except NotAvailable as error:
        report.absent["side_by_side_parquet"] = str(error)
    for name, (spec, schema) in specs.items():
        changed = {"schema_path": schema} if schema is not None else {}
        by_one = open_dataset(spec, options.model_copy(update={**changed, "readers": 1}))
        by_two = open_dataset(spec, options.model_copy(update={**changed, "readers": 2}))
        stored.check(by_one, {f"{name}, two readers": by_two.train}, BATCH)
        work[f"{name}, 1"], work[f"{name}, 2"] = timed(partial(_drain, by_one)), timed(partial(_drain, by_two))
    times = harness.take_turns(work, rounds=settings.rounds, warm_up=settings.warm_up)
    table = report.table(
        f"{FILES} files of {len(whole) / 1e6:.0f} MB as text", "files, readers", "MB/s of text", "over one"
    )
    for name, spent in times.items():
        one = times[f"{name.split(',')[0]}, 1"]
        table.add(name, FILES * len(whole) / 1e3 / median_ms(spent), paired(spent, one))
        if name.endswith("2"):
            report.ratios[f"side_by_side_{name.split(',')[0]}"] = paired(one, spent)
    return report


def _drain(data: Dataset) -> None:
    for _ in data.train(BATCH):
        pass


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
