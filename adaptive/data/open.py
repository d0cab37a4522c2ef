"""`open_dataset`: the data set meant by a spec such as `synthetic` or `criteo:PATH[,PATH...]`."""

import difflib
from pathlib import Path
from typing import Final

from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError

BUILT_IN: Final = ("synthetic", "sequences")
FILE_KINDS: Final = ("criteo", "csv", "parquet", "dlrm", "mlperf", "prepared", "taobao", "tbsm")
ENDINGS: Final = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".npz": "dlrm"}


def open_dataset(spec: str, options: DataOptions, *, run_dir: Path | None = None) -> Dataset:
    """Open a data set.

    Args:
        run_dir: where `rejects.jsonl` and a fitted vocabulary are written; without it only to `vocabulary_path`.

    Raises:
        ConfigError: if the spec or a setting cannot work.
        InputError: if files are missing or, where they must be read to open them (`holdout`, vocabularies), bad.
    """
    kind, _, paths = spec.partition(":")
    if spec in BUILT_IN:
        _refuse_files(spec, options)
    if spec == "synthetic":
        from adaptive.data.synthetic.synthetic_stream import Synthetic

        return Synthetic(options.synthetic)
    if kind == "criteo" and paths:
        from adaptive.data.text.criteo import open_criteo

        return open_criteo(paths, options, run_dir=run_dir)
    if kind == "csv" and paths:
        from adaptive.data.text.delimited import open_csv

        return open_csv(paths, options, run_dir=run_dir)
    if kind == "parquet" and paths:
        from adaptive.data.arrow.parquet import open_parquet

        return open_parquet(paths, options, run_dir=run_dir)
    if kind == "dlrm" and paths:
        from adaptive.data.arrays.array_files import open_processed as open_dlrm

        return open_dlrm(paths, options, run_dir=run_dir)
    if kind == "mlperf" and paths:
        from adaptive.data.arrays.array_files import open_mlperf

        return open_mlperf(paths, options, run_dir=run_dir)
    if kind == "prepared" and paths:
        from adaptive.data.prepared.prepared_reader import open_prepared

        return open_prepared(paths, options)
    if spec == "sequences":
        from adaptive.data.sequences.sequence_dataset import open_sequences

        return open_sequences(options.sequences, options.history)
    if kind == "taobao" and paths:
        from adaptive.data.sequences.taobao import open_taobao

        return open_taobao(paths, options, run_dir=run_dir)
    if kind == "tbsm" and paths:
        from adaptive.data.sequences.tbsm_files import open_processed

        return open_processed(paths, options)
    raise ConfigError(
        f"data {spec!r}: give 'synthetic', 'criteo:PATH[,PATH...]', with a schema 'csv:PATH[,PATH...]' or "
        "'parquet:PATH[,PATH...]'; 'dlrm:PATH[,PATH...]', 'mlperf:PATH[,PATH...]'; "
        "'prepared:DIR'; of sequences 'sequences', 'taobao:PATH[,PATH...]' or "
        f"'tbsm:PATH[,PATH...]'{_meant(spec)}"
    )


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


def _refuse_files(spec: str, options: DataOptions) -> None:
    """The built-in streams read no files: who says how to read or divide some, meant data of his own.

    Raises:
        ConfigError: naming the settings.
    """
    names = ("schema_path", "eval_data", "holdout", "time_split", "counts_path", "vocabulary_path", "vocabulary_from")
    given = [name for name in names if getattr(options, name) is not None]
    if given:
        raise ConfigError(
            f"data {spec}: is built in and reads no files, found {', '.join(f'data.{name}' for name in given)}; name "
            "your data, such as --data csv:PATH, or leave it out"
        )
