"""`open_dataset`: open a data set such as `synthetic` or `criteo:PATH[,PATH...]`."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from adaptive.data.rows.row_dataset import RowData


class Kind(NamedTuple):
    """A kind of data: its function, and the settings that it does not accept, with a reason."""

    module: str
    function: str  # (paths, options, run_dir) -> Dataset | RowData
    refused: tuple[str, ...] = ()
    reason: str = ""


_BUILT_IN: Final = (
    ("schema_path", "eval_data", "holdout", "time_split", "vocabulary_path", "vocabulary_from"),
    "the stream is built in and reads no files. To use your files, add --data csv:PATH",
)
_KINDS: Final = {
    "synthetic": Kind("synthetic", "open_synthetic", *_BUILT_IN),
    "sequences": Kind("sequences", "open_sequences", (*_BUILT_IN[0], "keys"), _BUILT_IN[1]),
    "criteo": Kind(
        "text.delimited",
        "open_criteo",
        ("schema_path", "time_split"),
        "the format has no schema and no times",
    ),
    "csv": Kind("text.delimited", "open_csv"),
    "parquet": Kind("arrow.parquet", "open_parquet"),
    "prepared": Kind(
        "prepared_reader",
        "open_prepared",
        ("schema_path", "holdout", "time_split", "keys"),
        "it applied when the data were prepared. Prepare them again to read or split them differently",
    ),
    "taobao": Kind("taobao", "open_taobao", ("schema_path", "time_split", "keys"), "the format does not have it"),
}
BUILT_IN: Final = ("synthetic", "sequences")
FILE_KINDS: Final = tuple(kind for kind in _KINDS if kind not in BUILT_IN)
ENDINGS: Final = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet"}


def open_dataset(spec: str, options: DataOptions, *, run_dir: Path | None = None) -> Dataset:
    """Open a data set.

    Args:
        run_dir: folder for `rejects.jsonl` and a fitted vocabulary. Without it no rejects are written, and a vocabulary
            only to `data.vocabulary_path`.

    Raises:
        ConfigError: if the spec or a setting is wrong.
        InputError: if files are missing, or bad and must be read at once (`holdout`, vocabularies).
    """
    opened = open_source(spec, options, run_dir=run_dir)
    return opened if isinstance(opened, Dataset) else opened.dataset(options, run_dir)


def open_source(spec: str, options: DataOptions, *, run_dir: Path | None = None) -> "Dataset | RowData":
    """Open a data set, but of rows only the beginning of their files; arguments and errors as for `open_dataset`."""
    name, _, paths = spec.partition(":")
    if spec not in BUILT_IN and not (name in FILE_KINDS and paths):
        kinds = ", ".join((*BUILT_IN, *(f"{kind}:PATH" for kind in FILE_KINDS)))
        raise ConfigError(f"data: expected one of {kinds}, got {spec!r}{_meant(spec)}")
    kind = _KINDS[name]
    options.refuse(f"data {name}:", kind.refused, kind.reason)
    opened: Dataset | RowData = getattr(import_module(f"adaptive.data.{kind.module}"), kind.function)(
        paths, options, run_dir
    )
    return opened


def _meant(spec: str) -> str:
    """Return `; did you mean csv:small.csv?` for a missing or misspelled kind, or nothing."""
    kind, colon, paths = spec.partition(":")
    if not colon and spec not in FILE_KINDS:
        plain = spec.removesuffix(".gz")
        kind = next((kind for ending, kind in ENDINGS.items() if plain.endswith(ending)), "")
        return f"; did you mean {kind}:{spec}?" if kind else suggestion(spec, BUILT_IN)
    return suggestion(kind, FILE_KINDS).replace("?", f":{paths or 'PATH'}?")
