"""Check an export before it is published: raw rows get the inputs and scores that the run gives them.

Each row goes two ways: through the reader that trained, and through the export's own code, as a value of Parquet, in
JSON and as a text of CSV. Inputs are compared column by column, so that a difference has a name.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.data.rows.followed_folder import latest_file
from adaptive.errors import ConfigError, OutputError
from adaptive.serving import scoring
from adaptive.serving.sample_values import DenseFacts, FeatureFacts
from adaptive.training.components import torch_settings
from adaptive.training.runs.loading import LoadedRun, data_of

ROWS: Final = 1000
CLOSE: Final = 1e-5  # float32 sums in another order differ by less

Facts = DenseFacts | FeatureFacts  # or their twins in the export's own code: ask `_is_dense`, not isinstance
Rows = Sequence[Sequence[Any]]  # values of columns, row by row


@dataclass(frozen=True)
class ExportCheck:
    """Number of rows that were compared, and the largest difference between the two scores of a row."""

    rows: int
    largest_difference: float


def check_export(
    run: LoadedRun, folder: Path, data: str | None, convert: Callable[[NDArray[Any]], NDArray[np.float32]]
) -> ExportCheck:
    """Score the first rows of some data by the run and by the export in a folder.

    Args:
        data: None: the evaluation part of the run's data, or the last file of a followed folder; else as for `data_of`.
        convert: from rows as tables store them to the exported ones, which the run reads, too.

    Raises:
        ConfigError: if the data have no raw values that a server could get.
        InputError: if the data are missing or do not fit the run.
        OutputError: if an input or a score differs, with its row and column.
    """
    if data is None and run.config.follow:
        data = latest_file(run.config.data)
    dataset = data_of(run, data, may_lack_labels=True)
    model = scoring.load(folder)
    values_of, count, largest = _values_of(model, dataset.raw_values), 0, 0.0
    with torch.no_grad(), torch_settings(run.config), run.embeddings.rows.read_as(convert):
        for batch in _first(dataset.evaluation(run.config.eval_batch_size)):
            values = values_of(batch)
            scores = next(run.predict([batch]))
            vectors = list(run.embeddings(run.embeddings.read(batch)).values())
            for name, form in FORMS.items():
                largest = max(largest, _compare(model, name, form, batch, values, vectors, scores))
            count += batch.num_samples
    if not count:
        raise ConfigError("expected rows to check the export with, got none. Pass data with --check DATA")
    return ExportCheck(count, largest)


def _first(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the first `ROWS` samples."""
    left = ROWS
    while left and (batch := next(batches, None)) is not None:
        yield batch if batch.num_samples <= left else batch.take(np.arange(left))
        left -= min(batch.num_samples, left)


def _values_of(
    model: scoring.Model, raw: Callable[[Sequence[str]], Callable[[Batch], Rows]]
) -> Callable[[Batch], Rows]:
    """Return a function from a batch to the values of the model's inputs; ConfigError if there is none."""
    dense, features = model.facts.dense, model.facts.features
    # In a built-in stream and in data that are ids already, a value is its row, and no dense input is transformed.
    if all(feature.rule == "row" for feature in features) and all(one.transform == "none" for one in dense):
        bags = [feature.bag for feature in features]
        return lambda batch: [_of_sample(batch, sample, bags) for sample in range(batch.num_samples)]
    return raw(model.values.names)


def _of_sample(batch: Batch, sample: int, bags: Sequence[bool]) -> list[Any]:
    starts = range(sample, batch.num_samples * batch.num_features, batch.num_samples)
    ids = [batch.ids[batch.offsets[start] : batch.offsets[start + 1]].tolist() for start in starts]
    return [*batch.dense[sample].tolist(), *(bag if is_bag else bag[0] for bag, is_bag in zip(ids, bags, strict=True))]


def _compare(
    model: scoring.Model,
    name: str,
    form: "Form",
    batch: Batch,
    values: Rows,
    vectors: Sequence[Tensor],
    scores: NDArray[np.float32],
) -> float:
    """Return the largest difference of a score; OutputError for the first row whose inputs or score differ."""
    columns: list[Facts] = [*model.facts.dense, *model.facts.features]
    samples = [{c.name: form(value, c) for c, value in zip(columns, row, strict=True)} for row in values]

    def refuse(sample: int, what: str) -> OutputError:
        where = f"sample {sample}" if batch.origin is None else batch.origin.where(sample)
        return OutputError(
            f"{what} ({where}, values as in {name}). The export disagrees with the run, so it was not written. Score "
            "with `adaptive-train predict`, and report this"
        )

    try:
        dense, bags = model.inputs(samples)
    except ValueError as error:  # of the export's own copy of `sample_values`
        raise refuse(getattr(error, "number", 0), str(error)) from None
    differs = [_differs(dense[:, n], torch.from_numpy(batch.dense[:, n])) for n in range(len(model.facts.dense))]
    for (_, starts), one, expected in zip(bags, model.pooled(bags), vectors, strict=True):
        differing = _differs(one, expected).any(dim=1)
        if len(differing) == batch.num_samples:
            differs.append(differing)
        else:  # vectors of the steps of sequences
            places = np.searchsorted(starts.numpy(), np.flatnonzero(differing), "right") - 1
            differs.append(torch.from_numpy(np.isin(np.arange(batch.num_samples), places)))
    for sample in torch.stack(differs, dim=1).any(dim=1).nonzero()[:1].flatten().tolist():
        column = next(n for n, of_column in enumerate(differs) if of_column[sample])
        value = samples[sample][columns[column].name]
        raise refuse(sample, f"{columns[column].name}: expected the input of the run, got another one from {value!r}")
    got = torch.sigmoid(model(dense, bags).double()).numpy()
    difference = np.abs(got - scores)
    for sample in np.flatnonzero(~(difference <= CLOSE))[:1].tolist():
        raise refuse(sample, f"expected the score {scores[sample]:.6g}, got {got[sample]:.6g} from the same inputs")
    return float(difference.max(initial=0.0))


def _differs(one: Tensor, other: Tensor) -> Tensor:
    if one.shape != other.shape:  # sequences of other lengths
        return torch.ones((len(one), 1), dtype=torch.bool)
    return ~((one - other).abs() <= CLOSE * other.abs().clamp(min=1))


# -- the same value in the forms in which servers get it --------------------------------------------------------------

Form = Callable[[Any, Facts], Any]


def as_typed(value: Any, facts: Facts) -> Any:
    """Return a value as Parquet has it: numbers for numbers, lists for bags."""
    if isinstance(value, str) and (separator := _separator(facts)) is not None:
        value = value.split(separator)
    return [_typed(item, facts) for item in value] if isinstance(value, list) else _typed(value, facts)


def _typed(value: Any, facts: Facts) -> Any:
    if not isinstance(value, str) or value in facts.null:
        return value
    if _is_dense(facts):
        return float(value) if re.fullmatch(r"[-+.0-9eE]+", value) else value
    return int(value) if getattr(facts, "key", "") == "int" and re.fullmatch("-?[0-9]+", value) else value


def as_json(value: Any, facts: Facts) -> Any:
    """Return a value as a JSON parser does."""
    return json.loads(json.dumps(value, default=_plain))


def as_text(value: Any, facts: Facts) -> Any:
    """Return a value as a field of CSV; a list for a bag without a separator, which CSV cannot hold."""
    if isinstance(value, list):
        texts, separator = [as_text(item, facts) for item in value], _separator(facts)
        return texts if separator is None else separator.join(texts)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    is_id = not _is_dense(facts) or getattr(facts, "kind", "") == "int"
    if is_id and isinstance(value, float | Decimal) and value == int(value):
        return str(int(value))
    return str(value)


def _is_dense(facts: Facts) -> bool:
    return hasattr(facts, "transform")


def _separator(facts: Facts) -> str | None:
    """The text between the values of a bag; None for one value, or for bags that are lists."""
    return getattr(facts, "separator", None) if getattr(facts, "bag", False) else None


def _plain(value: Any) -> Any:
    """Return what JSON has for a decimal (a number), a UUID or a date (a text)."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


FORMS: Final[Mapping[str, Form]] = {"Parquet": as_typed, "JSON": as_json, "CSV": as_text}
