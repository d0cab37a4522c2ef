"""`TextDataset`: batches from text files with one line per sample, whatever the format."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.data.dataset import NO_WIDTHS, Dataset, Feature
from adaptive.data.progress import PartRead
from adaptive.data.rows.format import Block
from adaptive.data.rows.row_source import RowSource
from adaptive.data.rows.rows import Batcher, FeatureSource, LabelSource
from adaptive.data.rows.split import Split, read_part, survey
from adaptive.data.shuffle import block_rows, in_blocks
from adaptive.data.subsampling import without_negatives
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
        drop_negatives: share of the training rows with label 0 that is left out.
        identity: what else identifies the data, for the fingerprint.
        labels, more_labels: names of all labels, where there are several, and where the further ones are.
        widths: as in `Dataset`.
        threads: that read files side by side.
    """

    def __init__(
        self,
        source: RowSource,
        features: Sequence[FeatureSource],
        is_log: NDArray[np.bool_],
        *,
        parts: Splits,
        shuffle: tuple[int, int] = (0, 0),
        drop_negatives: float = 0.0,
        identity: dict[str, object] | None = None,
        labels: tuple[str, ...] = (),
        more_labels: tuple[LabelSource, ...] = (),
        widths: Mapping[str, int] = NO_WIDTHS,
        threads: int = 1,
    ) -> None:
        self.features = tuple(Feature(feature.name, feature.rows.num_embeddings) for feature in features)
        self.tables = tuple(feature.table for feature in features)
        self.num_dense, self.dense_names = len(is_log) - len(more_labels), source.formats[0].dense_names
        self.labels, self.widths, self._threads = labels, dict(widths), threads
        self._source = source
        self._batcher = Batcher(source.names(), tuple(features), is_log, more_labels)
        self._parts = parts
        self._shuffle_buffer, self._seed = shuffle
        self._drop_negatives = drop_negatives
        self._identity = identity or {}
        self._num_train = parts.num_train
        self._part_read: PartRead | None = None

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Batches of the training part.

        Raises:
            InputError: at once if the files have no labels; while iterating if a file cannot be read, too many
                lines are bad, an id is out of range, or there is no row.
        """
        for file in self._parts.train.files:
            if not self._source.formats[file].is_labelled:
                raise InputError(
                    f"{self._source.names()[file]}: has no labels to train with: its first line that is not empty, "
                    "which decides, has no column for one. Mend or remove that line if later ones have labels; or use "
                    "the file as eval_data"
                )
        return self._train(batch_size, epoch)

    def _train(self, batch_size: int, epoch: int) -> Iterator[Batch]:
        buffer, seed = self._shuffle_buffer, self._seed
        batches = in_blocks(self._reader(), batch_size, shuffle_buffer=buffer, seed=seed, epoch=epoch)
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
        """Batches of the evaluation part in file order; labels are NaN where a file has none.

        Raises:
            InputError: while iterating, as `train` does, also if there is such a part and it has no row.
        """
        return iter(()) if self._parts.evaluation is None else self._evaluation(self._parts.evaluation, batch_size)

    def _evaluation(self, part: Split, batch_size: int) -> Iterator[Batch]:
        is_empty = True
        for batch in self._in_order(part, batch_size):
            is_empty = False
            yield batch
        if is_empty:
            names = ", ".join(self._source.names()[file] for file in part.files)
            raise InputError(f"no row to evaluate on in {names}: {self._source.log.causes_text() or 'no lines'}")

    def _reader(self) -> Callable[[int], Iterator[Batch]]:
        """Gives the training part in batches of so many rows."""

        def read(rows: int) -> Iterator[Batch]:
            return self._in_order(self._parts.train, rows)

        return without_negatives(read, self._drop_negatives, self._seed) if self._drop_negatives else read

    def _in_order(self, part: Split, batch_size: int) -> Iterator[Batch]:
        rows = block_rows(self._source.READ_ROWS, batch_size)
        with closing(self._blocks(part, rows)) as blocks:
            for block in blocks:
                yield from self._batcher.batches(block, batch_size)

    def _blocks(self, part: Split, rows: int) -> Generator[Block, None, None]:
        def note(read: PartRead) -> None:
            self._part_read = read

        return read_part(self._source, part, rows, threads=self._threads, told=note)

    def part_read(self) -> PartRead | None:
        return self._part_read

    def num_train_samples(self) -> int | None:
        """Rows of the training part; files of more than 64 MiB together are not counted just for this, nor those
        of which negative samples are left out."""
        if self._drop_negatives:
            return None
        train = self._parts.train
        size = sum(self._source.size(file) for file in train.files)
        if self._num_train is None and size <= _COUNTED_BYTES:
            self._num_train = survey(self._source, train.files, window=train.window).num_rows
        return self._num_train

    def fingerprint(self) -> dict[str, object]:
        """Path, size and sha256 of every file (see `TextFile.fingerprint`) and the settings that choose rows."""
        return {"files": [file.fingerprint() for file in self._source.files], **self._identity}

    def rejects(self) -> dict[str, int]:
        """Bad lines so far, by cause; each line counts once."""
        return self._source.log.counts

    def out_of_range(self) -> dict[str, int]:
        """Look-ups so far that were sent to the row for unknown ids, by feature (`out_of_range = "oov"`)."""
        return dict(self._batcher.out_of_range)
