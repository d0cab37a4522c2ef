"""The lines of a Criteo file stored in other ways, for bench_reader: prepared, and as Parquet."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from adaptive.batch import Batch
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.open import open_dataset
from adaptive.data.prepared.prepared_writer import prepare
from benchmarks import harness
from benchmarks.variants import NotAvailable

ROW_GROUP = 1 << 17


def prepared(spec: str, options: DataOptions, folder: Path) -> dict[str, Callable[[int], Iterator[Batch]]]:
    """Read again, all blocks having been checked; and opened anew, as by another run."""
    target = folder / "prepared"
    prepare(spec, options, target)

    def opened() -> Dataset:
        return open_dataset(f"prepared:{target}", DataOptions())

    data = opened()
    return {
        "adaptive, prepared": lambda size: data.train(size),
        "adaptive, prepared, opened anew": lambda size: opened().train(size),
    }


def parquet(
    path: Path, options: DataOptions, folder: Path, dense: list[str], categories: list[str]
) -> dict[str, Callable[[int], Iterator[Batch]]]:
    """Parquet files as pyarrow writes them, with categories as texts, and as int32 of the same bits.

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
    found = dict[str, Callable[[int], Iterator[Batch]]]()
    for name, table in (("texts", texts), ("int32", integers)):
        files.write_table(table, folder / f"{name}.parquet", row_group_size=ROW_GROUP)
        data = open_dataset(f"parquet:{folder / name}.parquet", DataOptions(schema_path=schema))
        found[f"adaptive, Parquet of {name}"] = data.train
    return found


def check(wanted: Dataset, found: dict[str, Callable[[int], Iterator[Batch]]], size: int) -> None:
    """Every way gives the batches of the text."""
    for name, train in found.items():
        for one, other in zip(wanted.train(size), train(size), strict=True):
            for part in ("dense", "ids", "offsets", "labels"):
                if not np.array_equal(getattr(one, part), getattr(other, part)):
                    raise harness.NotEqual(f"{part} differ between text and {name}")
