"""`FollowedFolder`: the files of a folder one after another, in the order of their names, as they appear.

Writers rename complete files into place, under names that ascend. Of the files that were read, only the latest is
remembered: its name and the digest of its bytes. So the position in the data never grows, and older files may be
removed.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from adaptive.batch import Batch
from adaptive.data.data_options import DataOptions
from adaptive.data.dataset import Changed, Dataset, by_table, shape_of
from adaptive.data.open import ENDINGS, open_dataset
from adaptive.data.rows.data_files import find_file, name_order, names_below
from adaptive.data.rows.row_dataset import RowDataset
from adaptive.errors import ConfigError, InputError

logger = logging.getLogger("adaptive.data")

_REFUSED: Final = ("eval_data", "holdout", "time_split", "shuffle_buffer", "vocabulary")
_REASON: Final = "each file is evaluated before it is trained, in the order of its rows, and new ids get no new rows"


class FollowedFile(BaseModel):
    """A file that a run trains, or has trained last, as checkpoints hold it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str  # relative to the folder
    bytes: int = Field(ge=0)
    sha256: str
    judged: bool = False  # evaluated, before its rows were trained
    counts: list[dict[str, int]] = Field(default=[{}, {}, {}], min_length=3, max_length=3)  # of the files before it


def file_names(spec: str) -> list[str]:
    """Return the data files in the folder of `csv:FOLDER` or `parquet:FOLDER` and below, in order.

    Without those whose name, or folder, begins with `.` or `_`: temporary files.

    Raises:
        ConfigError: for other data.
        InputError: if there is no such folder.
    """
    kind, _, text = spec.partition(":")
    endings = tuple(ending for ending, named in ENDINGS.items() if named == kind)
    if not endings or not text:
        raise ConfigError(f"run --follow expected data csv:FOLDER or parquet:FOLDER, got {spec} (data)")
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder to follow, got none. Create it, or check the path.")
    return names_below(folder, (*endings, *(f"{ending}.gz" for ending in endings)))


def latest_file(spec: str) -> str:
    """Return the spec of the last file in a folder, such as `csv:FOLDER/NAME`; InputError if there is none."""
    names = file_names(spec)
    if not names:
        raise InputError(f"{spec}: expected a file in the folder, got none")
    return f"{spec}/{names[-1]}"


class Counts(NamedTuple):
    """What a data set has counted; see its methods of these names."""

    rejects: Counter[str]
    out_of_range: Counter[str]
    truncated: Counter[str]

    @classmethod
    def of(cls, dataset: Dataset) -> "Counts":
        return cls(*(Counter(count()) for count in (dataset.rejects, dataset.out_of_range, dataset.truncated)))


class FollowedFolder(Changed):
    """Both parts are the rows of the current file, at first the first one of the folder.

    The first file gives features, tables and the scales of dense inputs; all others must fit.
    """

    def __init__(self, spec: str, options: DataOptions, run_dir: Path | None) -> None:
        """
        Args:
            spec: `csv:FOLDER` or `parquet:FOLDER`.
            run_dir: as for `open_dataset`.

        Raises:
            ConfigError: for settings that need all files at once.
            InputError: if the folder has no file yet.
        """
        names = file_names(spec)
        options.refuse("run --follow", _REFUSED, _REASON)
        self._spec, self._options, self._run_dir = spec, options, run_dir
        kind, _, folder = spec.partition(":")
        self._kind, self._folder = kind, Path(folder).expanduser()
        if not names:
            raise InputError(
                f"{self._folder}: expected at least one {kind} file to begin with, got none. Start the run when the "
                "first one is there; names that begin with . or _ do not count."
            )
        self._listed = set(names)
        self._counts = Counts(Counter(), Counter(), Counter())
        self._identity: dict[str, Any] | None = None
        self._open(names[0])
        super().__init__(self._dataset, lambda batch: batch)

    def _open(self, name: str) -> FollowedFile:
        path = self._folder / name
        if "," in str(path):
            raise InputError(f"{path}: expected a path without commas, which separate files, got one. Rename it.")
        try:
            self._file = find_file(path)
            opened = open_dataset(f"{self._kind}:{path}", self._options, run_dir=self._run_dir)
            assert isinstance(opened, RowDataset)
            opened.follow(is_first=self._identity is None)
        except (ConfigError, InputError) as error:
            raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from error
        self._dataset, self._name, self._counted = by_table(opened), name, Counts.of(opened)
        identity: dict[str, Any] = self._dataset.fingerprint()
        (digest,) = identity.pop("files")
        if tables := identity.get("vocabularies"):
            raise ConfigError(
                "run --follow expected hash_rows, num_embeddings or keys for ids, got a vocabulary for "
                f"{', '.join(tables)}: {_REASON}. Change the schema."
            )
        if self._identity is None:
            self._identity = identity
        elif shape_of(self._dataset) != shape_of(self) or identity != self._identity:
            raise InputError(f"{path}: expected the columns of the first file, got others. Use equal columns.")
        self._digest = FollowedFile(name=name, bytes=digest["bytes"], sha256=digest["sha256"])
        return self._digest

    def turn_to(self, name: str) -> FollowedFile:
        """Make a file the current one; return its identity.

        Raises:
            ConfigError, InputError: if it cannot be read, or has other columns than the first one.
        """
        file = self._digest if name == self._name else self._open(name)
        return file.model_copy(update={"counts": [dict(counts) for counts in self._counts]})

    def return_to(self, file: FollowedFile, *, is_needed: bool) -> None:
        """Make the file of a checkpoint the current one.

        Args:
            is_needed: not all of its rows are trained. If they are, it may be gone.

        Raises:
            InputError: if it has changed since, or is gone and needed.
        """
        self._counts = Counts(*map(Counter, file.counts))
        if not is_needed and not (self._folder / file.name).exists():
            return
        now = self.turn_to(file.name)
        if (now.bytes, now.sha256) != (file.bytes, file.sha256):
            raise InputError(
                f"{self._folder / file.name}: expected the file that was read before the checkpoint, {file.bytes} "
                f"bytes with sha256 {file.sha256}, got {now.bytes} with {now.sha256}. Restore it: a file must not "
                "change once it is in the folder. Rename complete files into place."
            )

    def next_name(self, after: str | None) -> str | None:
        """Return the first name behind another one; None if there is none yet.

        Raises:
            InputError: if the file of that name has changed since it was read.
        """
        self.require_unchanged()
        names = file_names(self._spec)
        late = [name for name in names if after and name not in self._listed and name_order(name) < name_order(after)]
        for name in late:
            logger.warning(
                "%s: expected a name behind %s, which is trained, got an earlier one: it is not trained. Rename it",
                *(self._folder / name, after),
            )
        self._listed = set(names)
        return next((name for name in names if after is None or name_order(name) > name_order(after)), None)

    def require_unchanged(self) -> None:
        """Raise InputError if the current file is another one than it was when it was opened."""
        with contextlib.suppress(FileNotFoundError):
            self._file.require_unchanged(self._file.path.stat())

    def finish(self) -> None:
        """Add what was counted in the current file, whose rows are trained, to the counts of all files."""
        counted = Counts.of(self._dataset)
        for total, now, before in zip(self._counts, counted, self._counted, strict=True):
            total.update(now - before)
        self._counted = counted

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        # Bad lines count once, however often they are read. Ids count each time, so only in the latest pass.
        self._counted = Counts.of(self._dataset)._replace(rejects=self._counted.rejects)
        return self._dataset.train(batch_size)

    def num_train_samples(self) -> None:
        """Return None: files may still come."""

    def fingerprint(self) -> dict[str, object]:
        """Return the settings that choose rows and map values, which are equal for all files."""
        assert self._identity is not None
        return dict(self._identity)

    def rejects(self) -> dict[str, int]:
        """Return the number of bad lines of the finished files; so do the others, with ids and sequences."""
        return dict(self._counts.rejects)

    def out_of_range(self) -> dict[str, int]:
        return dict(self._counts.out_of_range)

    def truncated(self) -> dict[str, int]:
        return dict(self._counts.truncated)
