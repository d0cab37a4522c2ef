"""`TextDataset`: batches from text files with one line per sample, whatever the format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.dataset import Dataset, Feature
from adaptive.data.shuffle import block_rows, shuffled
from adaptive.data.text.row_source import RowSource
from adaptive.data.text.rows import Batcher, FeatureSource
from adaptive.data.text.split import Split, read_part, survey
from adaptive.errors import InputError

_COUNTED_BYTES = 1 << 26  # on disk; files up to here are counted when somebody asks


@dataclass(frozen=True)
class Splits:
    """The rows of a data set for training and, where there are any, for evaluation; `num_train` if known."""

    train: Split
    evaluation: Split | None = None
    num_train: int | None = None


class TextDataset(Dataset):
    """Batches of text files.

    Args:
        features: in the order of a batch's features; `num_embeddings` of each contains its rows for unknown and
            missing ids. `tables` names the table of each: features with the same one share it.
        is_log: (D,) dense columns that are scaled by log(1 + max(x, 0)).
        shuffle_buffer: rows that are shuffled together in training; 0: the order of the files.
        identity: what else identifies the data, for the fingerprint.
    """

    def __init__(
        self,
        source: RowSource,
        features: Sequence[FeatureSource],
        is_log: NDArray[np.bool_],
        *,
        parts: Splits,
        shuffle: tuple[int, int] = (0, 0),
        identity: dict[str, object] | None = None,
    ) -> None:
        self.features = tuple(Feature(feature.name, feature.rows.num_embeddings) for feature in features)
        self.tables = tuple(feature.table for feature in features)
        self.num_dense, self.dense_names = len(is_log), source.formats[0].dense_names
        self._source = source
        self._batcher = Batcher(source.names(), tuple(features), is_log)
        self._parts = parts
        self._shuffle_buffer, self._seed = shuffle
        self._identity = identity or {}
        self._num_train = parts.num_train

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Batches of the training part.

        Raises:
            InputError: at once if the files have no labels; while iterating if a file cannot be read, too many
                lines are bad, an id is out of range, or there is no row.
        """
        for file in self._parts.train.files:
            if not self._source.formats[file].is_labelled:
                raise InputError(f"{self._source.names()[file]}: has no labels to train with; use it as eval_data")
        return self._train(batch_size, epoch)

    def _train(self, batch_size: int, epoch: int) -> Iterator[Batch]:
        if self._shuffle_buffer:
            blocks = self._blocks(self._parts.train, block_rows(self._shuffle_buffer, batch_size))
            batches = shuffled(blocks, batch_size, seed=self._seed, epoch=epoch)
        else:
            batches = self._in_order(self._parts.train, batch_size)
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            raise InputError(
                f"no row to train with in {', '.join(self._source.names())}: "
                f"{self._source.log.causes_text() or 'no lines'}"
            )

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Batches of the evaluation part in file order; labels are NaN where a file has none."""
        return iter(()) if self._parts.evaluation is None else self._in_order(self._parts.evaluation, batch_size)

    def _in_order(self, part: Split, batch_size: int) -> Iterator[Batch]:
        for block in read_part(self._source, part, block_rows(self._source.READ_ROWS, batch_size)):
            yield from self._batcher.batches(block, batch_size)

    def _blocks(self, part: Split, rows: int) -> Iterator[Batch]:
        return (self._batcher.batch(block) for block in read_part(self._source, part, rows))

    def num_train_samples(self) -> int | None:
        """Rows of the training part; files of more than 64 MiB together are not counted just for this."""
        train = self._parts.train
        size = sum(self._source.size(file) for file in train.files)
        if self._num_train is None and size <= _COUNTED_BYTES:
            self._num_train = survey(self._source, train.files, window=train.window).num_rows
        return self._num_train

    def fingerprint(self) -> dict[str, object]:
        """Path, size and crc32 of every file (see `TextFile.fingerprint`) and the settings that choose rows."""
        return {"files": [file.fingerprint() for file in self._source.files], **self._identity}

    def rejects(self) -> dict[str, int]:
        """Bad lines so far, by cause; each line counts once."""
        return self._source.log.counts

    def out_of_range(self) -> dict[str, int]:
        """Look-ups so far that were sent to the row for unknown ids, by feature (`out_of_range = "oov"`)."""
        return dict(self._batcher.out_of_range)
