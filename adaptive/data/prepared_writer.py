"""Write a prepared data set: all files under a temporary name, synced, then renamed."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from adaptive.batch import Batch
from adaptive.data import PartRead
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Dataset, shape_of
from adaptive.data.open import open_dataset
from adaptive.data.prepared_reader import (
    AGAIN,
    FIRST_FEATURE,
    FORMAT,
    MANIFEST,
    ROWS,
    SINGLE,
    BlockLayout,
    Index,
    Manifest,
    StoredPart,
    block_samples,
)
from adaptive.errors import ConfigError, InputError, OutputError
from adaptive.storage.arrays import write_array
from adaptive.storage.durable import DISK, Disk, write_directory, write_failed, write_new
from adaptive.storage.files import json_text
from adaptive.system import usable_cores

ReportPart = Callable[[PartRead], None]


def prepare(
    spec: str,
    options: DataOptions,
    path: Path,
    *,
    begins: Callable[[str], ReportPart] = lambda part: lambda read: None,
    disk: Disk = DISK,
) -> Manifest:
    """Write the samples of a data set to the folder `path`, in order; return its manifest.

    `data.shuffle_buffer` is ignored here and applies when the prepared data are read.

    Args:
        begins: is called with the name of each part, `train` or `evaluation`, before it is written. Its result is
            called now and then with the progress of the part.

    Raises:
        ConfigError: if the data set cannot be opened, or is already prepared.
        InputError: if the data are bad, or have changed since they were opened.
        OutputError: if `path` exists or cannot be written; in the latter case nothing is left under its name.
    """
    if spec.startswith("prepared:"):
        raise ConfigError(f"prepare: expected data that are not prepared, got {spec!r}. Name the original data.")
    written = list[Manifest]()

    def fill(folder: Path) -> None:
        changed = {"shuffle_buffer": 0}
        if options.num_workers == "auto":
            changed["num_workers"] = usable_cores()
        dataset = open_dataset(spec, options.model_copy(update=changed), run_dir=folder)
        written.append(_Writer(dataset, spec, folder, begins, disk).write())
        if (folder / "rejects.jsonl").exists():
            with (folder / "rejects.jsonl").open("rb") as file:
                disk.sync(file)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_directory(path, fill, disk=disk)
    except FileExistsError as error:
        raise OutputError(f"{path}: expected a new folder, got an existing one. Remove it, or name another.") from error
    except OSError as error:
        raise write_failed(path, error) from error
    return written[0]


class _Writer:
    """Writes a data set into a folder."""

    def __init__(
        self, dataset: Dataset, spec: str, folder: Path, begins: Callable[[str], ReportPart], disk: Disk
    ) -> None:
        self._dataset, self._folder, self._begins, self._disk = dataset, folder, begins, disk
        self._rows = block_samples(dataset.num_dense + len(dataset.features))
        train = dataset.train(self._rows)
        first = next(train)
        nothing = StoredPart(samples=0, bytes=0, blocks=0, index_bytes=0, index_sha256="")
        self._manifest = Manifest(
            format=FORMAT,
            shape=replace(shape_of(dataset), dense_names=()),  # transformed values are not those of the columns
            extras=tuple(name for name in ("timestamp", "weight") if name in first.extras),
            files=first.origin.files if first.origin is not None else None,
            train=nothing,
            evaluation=None,
            rejects={},
            data=spec,
            fingerprint=dataset.fingerprint(),
        )
        self._train = chain([first], train)

    def write(self) -> Manifest:
        """Write all parts, then the manifest."""
        train = self._part("train", self._train)
        assert train is not None
        evaluation = self._part("evaluation", self._dataset.evaluation(self._rows))
        if self._dataset.fingerprint() != self._manifest.fingerprint:
            raise InputError(f"data {self._manifest.data!r}: expected unchanged files, got others. {AGAIN}")
        parts = {"train": train, "evaluation": evaluation, "rejects": self._dataset.rejects()}
        manifest = self._manifest.model_copy(update=parts)
        text = json_text(manifest.model_dump(mode="json"))
        write_new(self._folder / MANIFEST, lambda file: self._disk.write(file, text), disk=self._disk)
        return manifest

    def _part(self, name: str, batches: Iterator[Batch]) -> StoredPart | None:
        """Write the samples of a part in blocks; return None if there are none."""
        report = self._begins(name)
        first = next(batches, None)
        if first is None:
            return None
        total = None
        if name == "train" and self._dataset.part_read() is None:
            total = self._dataset.num_train_samples()
        entries, offset, samples = list[Index](), 0, 0
        path = self._folder / f"{name}.bin"

        def write(file: BinaryIO) -> None:
            nonlocal offset, samples
            for batch in chain([first], batches):
                block, entry = self._block(batch, offset)
                self._disk.write(file, memoryview(block))
                entries.append(entry)
                offset += len(block)
                samples += batch.num_samples
                report(self._dataset.part_read() or PartRead(samples, total))

        write_new(path, write, disk=self._disk)
        index = np.stack(entries)
        stored = write_array(self._folder / f"{name}.index.npy", index, self._disk)
        return StoredPart(
            samples=int(index[:, ROWS].sum()),
            bytes=offset,
            blocks=len(index),
            index_bytes=stored["size"],
            index_sha256=stored["sha256"],
        )

    def _block(self, batch: Batch, offset: int) -> tuple[Any, Index]:
        """Return the bytes of a block, and its row of the index."""
        samples, features = batch.num_samples, batch.num_features
        ends = batch.offsets[1:].reshape(features, samples) - batch.offsets[:-1:samples, None]
        lookups = ends[:, -1].copy()
        lookups[(ends == np.arange(1, samples + 1)).all(axis=1)] = SINGLE
        layout = BlockLayout.of(self._manifest, samples, lookups)
        block = np.zeros(layout.size, np.uint8)
        values = {"labels": batch.labels, "dense": batch.dense.reshape(-1), **batch.extras}
        if self._manifest.files is not None:
            if batch.origin is None or batch.origin.files != self._manifest.files:
                raise ConfigError(
                    f"data {self._manifest.data!r}: expected equal origin.files in all batches, got others. Correct "
                    "the data set."
                )
            values |= {"file": batch.origin.file_index, "line": batch.origin.lines}
        for name, column in layout.columns.items():
            column.of(block)[:] = values[name]
        for feature in range(features):
            section = layout.ends[feature]
            if section is not None:
                section.of(block)[:] = ends[feature]
            layout.ids[feature].of(block)[:] = batch.ids[batch.feature_span(feature)]
        entry = np.empty(FIRST_FEATURE + features, np.int64)
        entry[:FIRST_FEATURE] = offset, layout.size, samples, zlib.crc32(block.data)
        entry[FIRST_FEATURE:] = lookups
        return block, entry
