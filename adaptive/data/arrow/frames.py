"""Frames in memory as data: Arrow tables, pandas' and polars' frames, whatever offers Arrow's C stream."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptive.data.arrow import arrow_types as types
from adaptive.data.arrow.arrow_reader import BATCH_ROWS, ArrowSource, Piece
from adaptive.data.arrow.arrow_types import describe_columns, readable
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset
from adaptive.data.rows.rejects import RejectLog
from adaptive.data.rows.row_dataset import limits, open_rows
from adaptive.data.text.schema import DelimitedSchema, load_schema, schema_of
from adaptive.errors import ConfigError


def from_frame(
    frame: Any,
    schema: Path | str | Mapping[str, Any] | DelimitedSchema,
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
    schema = _schema(schema)
    frames = [_Frame.of("frame", frame), *([_Frame.of("evaluation", evaluation)] if evaluation is not None else [])]
    form, plan = describe_columns(schema, frames[0].types, options, what="frame")
    for other in frames[1:]:
        readable(form, other.types, other.name)
    log = RejectLog(tuple(one.name for one in frames), limits(options), None, unit="rows")
    source = ArrowSource(frames, tuple(frames), (form,) * len(frames), log)
    return open_rows((source, (0,), tuple(range(1, len(frames)))), plan, options, run_dir=None)


def _schema(given: Path | str | Mapping[str, Any] | DelimitedSchema) -> DelimitedSchema:
    if isinstance(given, Path | str):
        given = load_schema(Path(given))  # type: ignore[assignment]
    found = schema_of(given, "schema") if isinstance(given, Mapping) else given
    if not isinstance(found, DelimitedSchema):
        raise ConfigError(
            "from_frame: the schema's format is user_items, lists in text files; describe columns instead"
        )
    return found


@dataclass(frozen=True)
class _Frame(Piece):
    """A frame: a piece, and what it is identified by."""

    name: str
    table: Any
    num_rows: int
    num_bytes: int = 0

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
        names = frame.column_names
        twice = sorted({one for one in names if names.count(one) > 1})
        if twice:
            raise ConfigError(f"{name}: columns come twice: {', '.join(twice)}")
        return cls(name, frame, frame.num_rows)

    @property
    def types(self) -> dict[str, Any]:
        return {field.name: field.type for field in self.table.schema}

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        yield from self.table.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)

    def fingerprint(self) -> dict[str, object]:
        """Rows, columns, and crc32 of all values in Arrow's stream format."""
        crc = 0
        for batch in self.table.to_batches(max_chunksize=BATCH_ROWS):
            crc = zlib.crc32(batch.serialize(), crc)
        columns = {name: str(kind) for name, kind in self.types.items()}
        return {"frame": self.name, "rows": self.table.num_rows, "columns": columns, "crc32": f"{crc:08x}"}
