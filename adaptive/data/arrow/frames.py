"""Frames in memory as data: Arrow tables, pandas' and polars' frames, whatever offers Arrow's C stream."""

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
from adaptive.data.text.schema import DelimitedSchema, delimited_only, load_schema, schema_of
from adaptive.errors import ConfigError


def from_frame(
    frame: Any,
    schema: Path | str | Mapping[str, object] | DelimitedSchema,
    *,
    evaluation: Any = None,
    options: DataOptions | None = None,
) -> Dataset:
    """The rows of a frame as a data set: `dataset.train(batch_size)` yields batches, as of a file with these columns.

    Args:
        frame: a pyarrow Table or RecordBatch, a pandas or polars DataFrame, or any object with `__arrow_c_stream__`. It
            is not copied, and must not change as long as the data set is used. Lists are bags.
        schema: path of a schema, the name of one that is installed, its content as a dictionary, or the schema itself.
        evaluation: another frame with the same columns, to evaluate on; or see `holdout` and `time_split` of `options`.
        options: as for files; those about files have no meaning.

    Raises:
        ConfigError: if pyarrow is missing, or frame and schema do not go together.
        InputError: if values are bad; they are told as `frame:ROW`, rows from 1.
    """
    options = options or DataOptions()
    if options.eval_data is not None:
        raise ConfigError("from_frame: give the frame to evaluate on as evaluation=..., not eval_data")
    if isinstance(schema, Path | str):
        content = delimited_only("from_frame:", load_schema(Path(schema)))
    else:
        content = schema if isinstance(schema, DelimitedSchema) else delimited_only("from_frame:", schema_of(schema))
    frames = tuple(
        _Frame.of(name, table) for name, table in (("frame", frame), ("evaluation", evaluation)) if table is not None
    )
    form, plan = types.describe_columns(content, frames[0].types, options, what="frame")
    for other in frames[1:]:
        types.check_readable(form, other.types, other.name)
    log = RejectLog.of(tuple(piece.name for piece in frames), options, None, unit="rows")
    source = ArrowSource(frames, frames, (form,) * len(frames), log)
    return open_rows(Opened.of(source, 1), plan, options, run_dir=None)


@dataclass(frozen=True)
class _Frame(ArrowPiece):
    """A frame: a piece, and what it is identified by."""

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
                    f"{name}: needed an Arrow table, a pandas or polars frame, or an object with __arrow_c_stream__, "
                    f"found {type(frame).__name__}"
                )
            frame = pyarrow.table(frame)
        return cls(name, frame.num_rows, 0, frame, types.types_of(frame.schema, name))

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        yield from self.table.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)

    def fingerprint(self) -> dict[str, object]:
        """Rows, columns, and crc32 of all values in Arrow's stream format."""
        crc = 0
        for batch in self.table.to_batches(max_chunksize=BATCH_ROWS):
            crc = zlib.crc32(batch.serialize(), crc)
        columns = {name: str(kind) for name, kind in self.types.items()}
        return {"frame": self.name, "rows": self.num_rows, "columns": columns, "crc32": f"{crc:08x}"}
