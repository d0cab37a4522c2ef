"""Files of named tensors, written block by block: torch's `.pt`, and safetensors. Neither needs a tensor in memory.

A `.pt` file is a zip archive, not compressed, of one entry for each tensor's values and a `data.pkl` that says what
they are. We write the archive ourselves, since `torch.save` wants whole tensors; `torch.load(..., weights_only=True)`
reads it, with `mmap=True` too: values begin at multiples of 64 bytes.
"""

import io
import json
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch._utils import _rebuild_tensor_v2

from adaptive.storage.arrays import Blocks
from adaptive.storage.durable import write_new

ALIGNMENT: Final = 64
_ROOT: Final = "model"  # of the archive
_STORAGES: Final = {"<f4": torch.FloatStorage, "<i8": torch.LongStorage}
_SAFETENSORS: Final = {"<f4": "F32", "<i8": "I64"}
_ZIP64_BYTES, _HEADER_BYTES = 20, 30  # of an entry's header: what says that it may be large, and the fixed part


def write_torch(path: Path, tensors: Mapping[str, Blocks]) -> None:
    """Write name -> tensor as `torch.save` would an `OrderedDict` of them.

    Raises:
        OSError: if it cannot be written.
    """

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            # Of no time, so that the same model is the same file.
            archive.writestr(zipfile.ZipInfo(f"{_ROOT}/data.pkl"), _pickled(tensors))
            archive.writestr(zipfile.ZipInfo(f"{_ROOT}/byteorder"), "little")
            for number, blocks in enumerate(tensors.values()):
                with archive.open(_aligned(f"{_ROOT}/data/{number}", file), "w", force_zip64=True) as entry:
                    for block in blocks.make():
                        entry.write(_bytes(block))
            archive.writestr(f"{_ROOT}/version", "3\n")

    write_new(path, write)


def write_safetensors(path: Path, tensors: Mapping[str, Blocks]) -> None:
    """Write name -> tensor in the format of safetensors: the length of a JSON header, the header, the values.

    Raises:
        OSError: if it cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, blocks in tensors.items():
        start, end = end, end + _size(blocks)
        entry = {"dtype": _SAFETENSORS[blocks.dtype.str], "shape": list(blocks.shape), "data_offsets": [start, end]}
        header[name] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for blocks in tensors.values():
            for block in blocks.make():
                file.write(_bytes(block))
        assert file.tell() == 8 + len(text) + end, f"{path.name}: blocks are not the tensors"

    write_new(path, write)


def blocks_of(tensor: torch.Tensor) -> Blocks:
    """A tensor that is in memory, as one block."""
    array = np.ascontiguousarray(tensor.detach().cpu().numpy())

    def make() -> Iterator[np.ndarray[Any, Any]]:
        yield array

    return Blocks(array.dtype, tuple(tensor.shape), make)


def _size(blocks: Blocks) -> int:
    return math.prod(blocks.shape) * blocks.dtype.itemsize


def _bytes(block: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8).data


def _aligned(name: str, file: BinaryIO) -> zipfile.ZipInfo:
    """The next entry, its header padded by a field that readers pass over, so that its values begin at a multiple."""
    entry = zipfile.ZipInfo(name)
    start = file.tell() + _HEADER_BYTES + len(name) + _ZIP64_BYTES + 4
    padding = -start % ALIGNMENT
    entry.extra = b"FB" + padding.to_bytes(2, "little") + bytes(padding)
    return entry


class _Storage:
    """Stands for the values of a tensor in another entry."""

    def __init__(self, number: int, blocks: Blocks) -> None:
        self.id = ("storage", _STORAGES[blocks.dtype.str], str(number), "cpu", math.prod(blocks.shape))


class _Tensor:
    """Pickled as torch pickles a contiguous tensor."""

    def __init__(self, number: int, blocks: Blocks) -> None:
        self._storage, self._shape = _Storage(number, blocks), blocks.shape

    def __reduce__(self) -> tuple[Any, ...]:
        strides = tuple(math.prod(self._shape[axis + 1 :]) for axis in range(len(self._shape)))
        return _rebuild_tensor_v2, (self._storage, 0, self._shape, strides, False, OrderedDict())


class _Pickler(pickle.Pickler):
    def persistent_id(self, found: object) -> Any:
        return found.id if isinstance(found, _Storage) else None


def _pickled(tensors: Mapping[str, Blocks]) -> bytes:
    out = io.BytesIO()
    content = OrderedDict((name, _Tensor(number, blocks)) for number, (name, blocks) in enumerate(tensors.items()))
    _Pickler(out, protocol=2).dump(content)
    return out.getvalue()
