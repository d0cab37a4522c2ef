"""Files of named tensors, written block by block: torch's `.pt`, and safetensors. Neither needs a tensor in memory."""

import json
import math
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch

from adaptive.storage.arrays import Blocks
from adaptive.storage.durable import write_new

ALIGNMENT: Final = 64
_SAFETENSORS: Final = {"<f4": "F32", "<i8": "I64"}


def write_torch(path: Path, tensors: Mapping[str, Blocks]) -> None:
    """Write name -> tensor as `torch.save` writes an `OrderedDict` of tensors.

    `torch.save` wants whole tensors, so the values go to an unnamed file next to `path` first, which is memory-mapped:
    the export takes twice its size on the disk for a while, and none of it in memory.

    Raises:
        OSError: if it cannot be written.
    """

    def write(file: BinaryIO) -> None:
        with tempfile.TemporaryFile(dir=path.parent) as values:
            starts = [_append(blocks, values) for blocks in tensors.values()]
            values.flush()
            mapped = [_mapped(values, start, blocks) for start, blocks in zip(starts, tensors.values(), strict=True)]
            torch.save(OrderedDict(zip(tensors, mapped, strict=True)), file)

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


def _append(blocks: Blocks, file: BinaryIO) -> int:
    """Write the values at the end of the file and return where they begin."""
    start = file.tell()
    for block in blocks.make():
        file.write(_bytes(block))
    assert file.tell() - start == _size(blocks), "blocks are not the tensor"
    return start


def _mapped(file: BinaryIO, start: int, blocks: Blocks) -> torch.Tensor:
    """The values at `start` as a tensor whose memory is the file's."""
    if _size(blocks) == 0:  # nothing cannot be mapped
        return torch.from_numpy(np.empty(blocks.shape, blocks.dtype))
    # Shared and writable: private pages would count as memory, and torch warns of arrays it must not write to.
    return torch.from_numpy(np.memmap(file, blocks.dtype, "r+", start, blocks.shape))
