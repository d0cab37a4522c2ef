"""An exported model as an ONNX file, and its tables in a file beside it, since one ONNX file holds 2 GB at most.

torch traces the dense part alone. Look-ups and sums are written here: they are a few operators, tables need not be in
memory for them, and the batch size stays free. A bag is summed in look-up order, as `nn.EmbeddingBag` does.

Inputs: `dense` (B, dense inputs) float32, if there are any; for feature n `rows.n` (N,), the rows of all its look-ups,
and `offsets.n` (B,), where those of each sample begin, both int64. Outputs: `logits` (B,), of several labels
(B, T), and `scores`, their probabilities.

Letters: B samples, F features, D width of an embedding vector, N look-ups of one feature, T labels.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.serving.onnx_pooling import PoolingNodes
from adaptive.serving.scoring import is_widened
from adaptive.storage.arrays import Blocks
from adaptive.storage.durable import DISK, write_new

TABLES_FILE: Final = "model.onnx.data"
OPSET: Final = 20
_ALIGNMENT: Final = 4096  # of a table in its file, so that readers can map it
_FILE_BYTES: Final = 2**31 - 1  # what protobuf can hold


def onnx_or_error() -> Any:
    """The package onnx, if all that writing takes is there.

    Raises:
        ConfigError: if it is not.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch traces with it)
    except ImportError as error:
        raise ConfigError(
            f"--to onnx needs onnx and onnxscript: pip install 'adaptive-train[onnx]' ({error})"
        ) from error
    return onnx


def write_onnx(path: Path, facts: Mapping[str, Any], tables: Sequence[Blocks], dense: nn.Module) -> None:
    """Write a model and, beside it, its tables, 4096 bytes aligned.

    Args:
        facts: content of `model.json`.
        tables: (rows, width) float32 of each table, in the order of `facts`.
        dense: the dense part, on the CPU, in evaluation: of dense (B, dense inputs) and of vectors stacked (B, F, D),
            or where tables differ in width side by side.

    Raises:
        ConfigError: if the dense part cannot be traced, or works for the batch size only that it was traced with.
        OSError: if a file cannot be written.
    """
    onnx = onnx_or_error()
    model = _traced(dense, facts)
    _add_pooling(onnx, model.graph, facts)
    starts = _starts(tables)
    for number, (blocks, start) in enumerate(zip(tables, starts, strict=True)):
        model.graph.initializer.append(_outside(onnx, number, blocks, start))
    if model.ByteSize() > _FILE_BYTES:
        raise ConfigError(
            f"--to onnx: the dense part takes {model.ByteSize():,} bytes, and an ONNX file holds {_FILE_BYTES:,}"
        )
    data = model.SerializeToString(deterministic=True)

    def write_tables(file: BinaryIO) -> None:
        for blocks, start in zip(tables, starts, strict=True):
            file.write(bytes(start - file.tell()))
            for block in blocks.make():
                file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
            assert file.tell() == start + _size(blocks), f"{TABLES_FILE}: blocks are not the table"

    write_new(path.with_name(TABLES_FILE), write_tables)
    write_new(path, lambda file: DISK.write(file, data))


class _Whole(nn.Module):
    """Logits and scores of what is pooled already."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pooled: Tensor, dense: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if dense is None:
            dense = pooled.new_zeros((pooled.shape[0], 0))
        logits = self.model(dense, pooled)
        return logits, torch.sigmoid(logits)


def _traced(dense: nn.Module, facts: Mapping[str, Any]) -> Any:
    """The graph of the dense part: inputs `pooled` and, if there are dense inputs, `dense`."""
    widths = _widths(facts)
    shape = (sum(widths),) if is_widened(facts) else (len(widths), widths[0])
    given = [torch.zeros(3, *shape)] + ([torch.zeros(3, len(facts["dense"]))] if facts["dense"] else [])
    batch = torch.export.Dim("B", min=1)
    try:
        with _quiet(), torch.no_grad():
            # Not by `torch.onnx.export` alone: that takes a batch size that the model has fixed without a word.
            found = torch.export.export(
                _Whole(dense).eval(), tuple(given), dynamic_shapes=tuple({0: batch} for _ in given)
            )
            program = torch.onnx.export(
                found, dynamo=True, opset_version=OPSET, verbose=False,
                input_names=["pooled", "dense"][: len(given)], output_names=["logits", "scores"],
            )  # fmt: skip
    except Exception as error:
        raise ConfigError(
            f"--to onnx: torch could not trace the model {facts['model']['name']} for any batch size (x.shape[0] stays "
            f"free, len(x) does not); --to torch exports it as it is: {error}"
        ) from error
    assert program is not None
    model = program.model_proto
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("metadata_props")  # places in code, on the machine where it was traced
        part.ClearField("doc_string")
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of torch's exporter, which are for its developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _add_pooling(onnx: Any, graph: Any, facts: Mapping[str, Any]) -> None:
    """Put look-ups and sums before the graph of a dense part, in place of its input `pooled`."""
    pooling = PoolingNodes(onnx, facts, side_by_side=is_widened(facts))
    nodes, inputs = list(graph.node), [one for one in graph.input if one.name == "dense"]
    for field, content in ((graph.node, pooling.nodes + nodes), (graph.input, inputs + pooling.inputs)):
        del field[:]
        field.extend(content)
    graph.initializer.extend(pooling.initializers)


def _outside(onnx: Any, number: int, blocks: Blocks, start: int) -> Any:
    """A table, as a tensor whose values lie in the other file."""
    tensor = onnx.TensorProto(
        name=f"tables.{number}.weight", data_type=onnx.TensorProto.FLOAT, dims=blocks.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in (("location", TABLES_FILE), ("offset", start), ("length", _size(blocks))):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _starts(tables: Sequence[Blocks]) -> list[int]:
    """Where each table begins in the file."""
    found, end = [], 0
    for blocks in tables:
        found.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = found[-1] + _size(blocks)
    return found


def _size(blocks: Blocks) -> int:
    return math.prod(blocks.shape) * blocks.dtype.itemsize


def _widths(facts: Mapping[str, Any]) -> list[int]:
    return [facts["tables"][feature["table"]]["width"] for feature in facts["features"]]
