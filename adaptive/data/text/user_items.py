"""User-item lists as training data: lines `user item item ...`, with random negatives.

Each pair is a sample with label 1, followed by `num_negatives` samples of the same user with label 0, whose items are
drawn uniformly from all items that are not in the line. The draw depends on seed, epoch, user and item. So every epoch
has other negatives, equal runs have the same ones, and evaluation has its own, which never change. (When an evaluation
file is read, the user's items in the training file are not known, and may be drawn.)

Such lists have no order, so `holdout` keeps a random share of the pairs for evaluation, by a hash of seed, user and
item. The last lines would hold users that are never trained.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch, Origin, one_hot_batch
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset, Feature, require_batches
from adaptive.data.kernels import text as text_kernels
from adaptive.data.kernels import text_rows as kernels
from adaptive.data.rows.batcher import Batcher, Direct, FeatureSource
from adaptive.data.rows.row_dataset import Opened
from adaptive.data.rows.row_source import Column, RowFormat
from adaptive.data.rows.split import Split, read_part
from adaptive.data.sampling import in_blocks, in_size
from adaptive.data.text.schema import UserItemsSchema
from adaptive.data.text.text_reader import open_text_files

_LINES = 256  # read at once
_COUNTED_BYTES = 1 << 26
_EVALUATION = 2**62  # stands for the epoch where there is none
Samples = NDArray[np.int64]  # (n, 5): user, item, label, line, file


def open_pairs(paths: str, schema: UserItemsSchema, options: DataOptions, run_dir: Path | None) -> Dataset:
    """Open the data set `csv:PATH[,PATH...]` with a schema of `format = "user_items"`."""
    refused = ("time_split", "vocabulary", "eval_part")
    options.refuse("data csv: of user_items", refused, "such lists have no times, no vocabulary and no order")
    form = RowFormat(
        (
            Column("user", text_kernels.KEY_INTEGER, required=True),
            Column("items", text_kernels.KEY_BAG, item=text_kernels.KEY_INTEGER, inner=schema.separator),
        ),
        separator=schema.separator,
        max_line_bytes=options.max_line_bytes,
    )
    return Pairs(open_text_files(paths, options, run_dir, format_of=lambda _: form), schema, options)


class Pairs(Dataset):
    """Samples of user-item lists: features `user` and `item`, no dense inputs."""

    epochs_differ = True  # each epoch has other negatives

    def __init__(self, opened: Opened, schema: UserItemsSchema, options: DataOptions) -> None:
        has_unknown = options.out_of_range == "oov"
        self._maps = tuple(
            FeatureSource(name, name, 0, is_bag, Direct(size, has_unknown=has_unknown, has_missing=False))
            for name, size, is_bag in (("user", schema.num_users, False), ("item", schema.num_items, True))
        )
        self.features = tuple(Feature(feature.name, feature.rows.num_embeddings) for feature in self._maps)
        self.tables = ("user", "item")
        self.num_dense = 0
        self._source, self._train_files, self._evaluation_files = opened
        self._schema, self._options = schema, options
        self._batcher = Batcher(self._source.names(), self._maps, np.zeros(0, np.bool_), np.zeros((0, 2)))
        self._num_train: int | None = None

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        """Return batches of the training pairs and their negatives, new ones in every epoch.

        Raises:
            InputError: while iterating, if a file cannot be read, too many lines are bad, an id is out of range, or
                there is no pair.
        """
        wanted = kernels.ALL if self._options.holdout is None else kernels.KEPT
        samples = self._samples(self._train_files, self._draw(wanted, epoch, self._schema.num_negatives))
        read, buffer, seed = partial(self._batches, samples), self._options.shuffle_buffer, self._options.seed
        batches = in_blocks(read, batch_size, shuffle_buffer=buffer, seed=seed, epoch=epoch)
        names = ", ".join(self._source.names())
        return require_batches(
            batches, lambda: f"{names}: expected pairs, got none ({self.rejects() or 'no lines'}). Check the files."
        )

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Return batches of the held-out pairs, or of the evaluation files, with their negatives."""
        num_negatives = self._schema.num_negatives
        if self._options.holdout is not None:
            samples = self._samples(self._train_files, self._draw(kernels.HELD_OUT, _EVALUATION, num_negatives))
        elif self._evaluation_files:
            samples = self._samples(self._evaluation_files, self._draw(kernels.ALL, _EVALUATION, num_negatives))
        else:
            return iter(())
        return self._batches(samples, batch_size)

    def num_train_samples(self) -> int | None:
        """Return the training pairs times (1 + negatives); None if files exceed 64 MiB."""
        if self._num_train is None and self._source.size(self._train_files) <= _COUNTED_BYTES:
            wanted = kernels.ALL if self._options.holdout is None else kernels.KEPT
            pairs = sum(len(samples) for samples in self._samples(self._train_files, self._draw(wanted, 0, 0)))
            self._num_train = pairs * (1 + self._schema.num_negatives)
        return self._num_train

    def fingerprint(self) -> dict[str, object]:
        """Return path, size and SHA-256 of every file, schema, and settings that choose pairs."""
        return {
            "files": [file.fingerprint() for file in self._source.files],
            "format": "user_items",
            "schema": self._schema.model_dump(mode="json"),
            **self._options.identity(),
        }

    def rejects(self) -> dict[str, int]:
        """Return the number of bad lines so far, by cause; each line counts once."""
        return self._source.log.counts

    def out_of_range(self) -> dict[str, int]:
        """Return the number of ids so far that went to the row for unknown ids, by feature."""
        return dict(self._batcher.out_of_range)

    def _draw(self, wanted: int, epoch: int, num_negatives: int) -> kernels.Draw:
        seed = np.uint64(kernels.mix(np.int64(self._options.seed)))  # the compiled function returns a Python int
        return kernels.Draw(
            split_hash=seed,
            negative_hash=np.uint64(kernels.chain(seed, np.int64(epoch + 1))),
            held_out_below=int((self._options.holdout or 0.0) * 2**63),
            wanted=wanted,
            num_items=self._schema.num_items,
            num_negatives=num_negatives,
        )

    def _samples(self, files: tuple[int, ...], draw: kernels.Draw) -> Iterator[Samples]:
        for block in read_part(self._source, Split(files), _LINES):
            (batch,) = self._batcher.batches(block, block.num_rows)
            users, items = batch.ids[: block.num_rows], batch.ids[block.num_rows :]
            ends = batch.offsets[block.num_rows + 1 :] - block.num_rows
            out = np.empty((len(items) * (1 + draw.num_negatives), 5), np.int64)
            count = kernels.expand(users, items, ends, draw, out)
            out, lines = out[:count], out[:count, 3]
            out[:, 4] = block.file_index[lines]
            out[:, 3] = block.columns.lines[lines]
            yield out

    def _batches(self, samples: Iterator[Samples], size: int) -> Iterator[Batch]:
        """Return batches of `size` samples; the last one may be smaller."""
        return (batch.mark_unshared() for batch in in_size(map(self._batch, samples), size))

    def _batch(self, samples: Samples) -> Batch:
        origin = Origin(self._source.names(), samples[:, 4].astype(np.int32), samples[:, 3].copy())
        dense, labels = np.empty((len(samples), 0), np.float32), samples[:, 2].astype(np.float32)
        return one_hot_batch(dense, samples[:, :2], labels, origin)
