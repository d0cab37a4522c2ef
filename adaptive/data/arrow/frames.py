"""Frames in memory: Arrow tables, pandas and polars frames, objects with Arrow's C stream."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive.data.arrow import arrow_values as types
from adaptive.data.arrow.arrow_reader import BATCH_ROWS, ArrowPiece, ArrowSource
from adaptive.data.arrow.arrow_values import Types
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_dataset import Opened, open_rows
from adaptive.data.text.schema import Schema, load_schema, schema_of
from adaptive.errors import ConfigError, InputError


def from_frame(
    frame: Any,
    schema: Path | str | Mapping[str, object] | Schema,
    *,
    evaluation: Any = None,
    options: DataOptions | None = None,
) -> Dataset:
    """Return the rows of a frame as a data set, with the batches of an equal file.

    Args:
        frame: a pyarrow Table or RecordBatch, a pandas or polars DataFrame, or any object with `__arrow_c_stream__`. It
            is not copied, and must not change while the data set is in use. Lists are bags.
        schema: path of a schema, the name of an installed one, its content as a dictionary, or the schema itself.
        evaluation: another frame with the same columns, to evaluate on. Or set `holdout` or `time_split` in `options`.
        options: as for files; options about files are ignored.

    Raises:
        ConfigError: if pyarrow is missing, or the schema does not fit the frame.
        InputError: if values are bad; their place is `frame:ROW`, rows from 1.
    """
    options = options or DataOptions()
    if options.eval_data is not None:
        raise ConfigError("from_frame: expected evaluation=FRAME, got options.eval_data. Remove eval_data.")
    if isinstance(schema, Path | str):
        content = load_schema(Path(schema))
    else:
        content = schema if isinstance(schema, Schema) else schema_of(schema)
    frames = tuple(
        _Frame.of(name, table) for name, table in (("frame", frame), ("evaluation", evaluation)) if table is not None
    )
    form, plan = types.describe_columns(content, frames[0].types, options, what="frame")
    for other in frames[1:]:
        types.check_readable(form, other.types, other.name)
    log = RejectLog(tuple(piece.name for piece in frames), options, None, unit="rows")
    source = ArrowSource(frames, frames, (form,) * len(frames), log)
    return open_rows(Opened.of(source, 1), plan, options, run_dir=None)


@dataclass(frozen=True)
class _Frame(ArrowPiece):
    """A frame: a piece with a fingerprint."""

    table: Any
    types: Types

    @classmethod
    def of(cls, name: str, frame: Any) -> "_Frame":
        pyarrow = types.pyarrow_or_error("from_frame")
        if isinstance(frame, pyarrow.RecordBatch):
            frame = pyarrow.Table.from_batches([frame])
        if not isinstance(frame, pyarrow.Table):
            if not hasattr(frame, "__arrow_c_stream__"):
                raise ConfigError(
                    f"from_frame: expected an Arrow table, a pandas or polars frame, or an object with "
                    f"__arrow_c_stream__ as {name}, got {type(frame).__name__}. Convert it with "
                    "pyarrow.table(...), or collect a lazy frame."
                )
            try:
                frame = pyarrow.table(frame)
            except (pyarrow.ArrowException, ValueError, TypeError) as error:
                raise InputError(
                    f"{name}: expected columns with names of their own and values of one type that Arrow has, got an "
                    f"error: {error}. Convert them, for example with frame.astype({{'user': 'str'}})."
                ) from error
        return cls(name, frame.num_rows, 0, frame, types.types_of(frame.schema, name))

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        yield from self.table.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)

    def fingerprint(self) -> dict[str, object]:
        """Return rows, columns, and the CRC-32 of all values in Arrow's stream format."""
        crc = 0
        for batch in self.table.to_batches(max_chunksize=BATCH_ROWS):
            crc = zlib.crc32(batch.serialize(), crc)
        columns = {name: str(kind) for name, kind in self.types.items()}
        return {"frame": self.name, "rows": self.num_rows, "columns": columns, "crc32": f"{crc:08x}"}
