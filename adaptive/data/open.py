"""`open_dataset`: the data set meant by a spec such as `synthetic` or `criteo:PATH[,PATH...]`."""

import difflib
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError


class Kind(NamedTuple):
    """A kind of data: the function that opens it, and settings that mean nothing to it, with the reason."""

    module: str
    function: str  # (paths, options, run_dir) -> Dataset
    refused: tuple[str, ...] = ()
    reason: str = ""


_BUILT_IN: Final = (
    ("schema_path", "eval_data", "holdout", "time_split", "counts_path", "vocabulary_path", "vocabulary_from"),
    "the stream is built in and reads no files; name your data, such as --data csv:PATH",
)
_NO_SCHEMA: Final = (("schema_path", "time_split"), "the format has no schema and no times")
_NOTHING: Final = "the format has nothing of the kind"
_KINDS: Final = {
    "synthetic": Kind("synthetic.synthetic_stream", "open_synthetic", *_BUILT_IN),
    "sequences": Kind("sequences.sequence_dataset", "open_sequences", *_BUILT_IN),
    "criteo": Kind("text.criteo", "open_criteo", *_NO_SCHEMA),
    "csv": Kind("text.delimited", "open_csv"),
    "parquet": Kind("arrow.parquet", "open_parquet"),
    "dlrm": Kind("array_files", "open_dlrm", *_NO_SCHEMA),
    "mlperf": Kind("array_files", "open_mlperf", *_NO_SCHEMA),
    "prepared": Kind(
        "prepared.prepared_reader",
        "open_prepared",
        ("schema_path", "eval_data", "holdout", "time_split"),
        "it counted when the data were prepared; prepare them again to read or split them differently",
    ),
    "taobao": Kind("sequences.taobao", "open_taobao", ("schema_path", "eval_part"), _NOTHING),
    "tbsm": Kind("sequences.sequence_dataset", "open_tbsm", ("schema_path", "time_split", "eval_part"), _NOTHING),
}
BUILT_IN: Final = ("synthetic", "sequences")
FILE_KINDS: Final = tuple(kind for kind in _KINDS if kind not in BUILT_IN)
ENDINGS: Final = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".npz": "dlrm"}


def open_dataset(spec: str, options: DataOptions, *, run_dir: Path | None = None) -> Dataset:
    """Open a data set.

    Args:
        run_dir: where `rejects.jsonl` and a fitted vocabulary are written; without it only to `vocabulary_path`.

    Raises:
        ConfigError: if the spec or a setting cannot work.
        InputError: if files are missing or, where they must be read to open them (`holdout`, vocabularies), bad.
    """
    name, _, paths = spec.partition(":")
    if spec not in BUILT_IN and not (name in FILE_KINDS and paths):
        raise ConfigError(
            f"data {spec!r}: give 'synthetic', 'criteo:PATH[,PATH...]', with a schema 'csv:PATH[,PATH...]' or "
            "'parquet:PATH[,PATH...]'; 'dlrm:PATH[,PATH...]', 'mlperf:PATH[,PATH...]'; "
            "'prepared:DIR'; of sequences 'sequences', 'taobao:PATH[,PATH...]' or "
            f"'tbsm:PATH[,PATH...]'{_meant(spec)}"
        )
    kind = _KINDS[name]
    options.refuse(f"data {name}:", kind.refused, kind.reason)
    dataset = getattr(import_module(f"adaptive.data.{kind.module}"), kind.function)(paths, options, run_dir)
    assert isinstance(dataset, Dataset)
    return dataset


def _meant(spec: str) -> str:
    """`; did you mean csv:small.csv?` for a path without its kind, or a kind with a typing mistake."""
    kind, colon, paths = spec.partition(":")
    if colon:
        near = difflib.get_close_matches(kind, FILE_KINDS, n=1)
        return f"; did you mean {near[0]}:{paths or 'PATH'}?" if near else ""
    if spec in FILE_KINDS:
        return f"; did you mean {spec}:PATH?"
    plain = spec.removesuffix(".gz")
    kind = next((kind for ending, kind in ENDINGS.items() if plain.endswith(ending)), "")
    near = difflib.get_close_matches(spec, BUILT_IN, n=1)
    return f"; did you mean {kind}:{spec}?" if kind else f"; did you mean {near[0]}?" if near else ""
