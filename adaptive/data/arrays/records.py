"""MLPerf's binary Criteo files: records of 40 int32, little-endian: label, 13 dense inputs, 26 ids.

As `numpy_to_binary` of facebookresearch/dlrm writes them (`data_loader_terabyte.py`). Records are mapped into memory.
"""

from dataclasses import dataclass

import numpy as np

from adaptive.data.arrays.source import Columns
from adaptive.data.text.source import TextFile
from adaptive.errors import InputError

NUM_DENSE, NUM_FEATURES = 13, 26
RECORD = np.dtype("<i4")
NUMBERS = 1 + NUM_DENSE + NUM_FEATURES


@dataclass(frozen=True)
class Records:
    """The samples of one file."""

    file: TextFile

    @property
    def name(self) -> str:
        return str(self.file.path)

    @property
    def num_bytes(self) -> int:
        return self.file.size

    @property
    def num_rows(self) -> int:
        return self.file.size // (NUMBERS * RECORD.itemsize)

    def rows(self, first: int, last: int) -> Columns:
        try:
            self.file.require_unchanged(self.file.path.stat())
            where = first * NUMBERS * RECORD.itemsize
            found = np.memmap(self.file.path, RECORD, "r", where, (last - first, NUMBERS))
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read ({error.strerror}); check the path") from error
        return Columns(found[:, 0], found[:, 1 : 1 + NUM_DENSE], found[:, 1 + NUM_DENSE :])


def open_records(file: TextFile) -> Records:
    """A file of records.

    Raises:
        InputError: if it has no whole number of them.
    """
    size = NUMBERS * RECORD.itemsize
    if not file.size or file.size % size:
        raise InputError(
            f"{file.path}: {file.size} bytes are no whole number of records of {size} bytes ({NUMBERS} int32: label, "
            f"{NUM_DENSE} dense inputs, {NUM_FEATURES} ids); it is cut off, or another format"
        )
    return Records(file)
