"""Write a model as an ONNX file, with its tables in a second file.

An ONNX file holds at most 2 GB.

torch traces the dense part only. Lookups and sums are built here: they are a few operators, need no tables in memory,
and leave the batch size free. ScatterElements sums a bag in lookup order, as `nn.EmbeddingBag` does: onnxruntime adds
its values one after another, whereas it sums those of ScatterND in parallel, with wrong results. If all bags hold one
id, rows are only gathered.

Inputs: `dense` (B, dense inputs) float32, if there are any; for feature n `rows.n` (N,), the rows of all its lookups,
and `offsets.n` (B,), the first lookup of each sample, both int64. Outputs: `logits` (B,), or (B, T) for several
labels, and their probabilities `scores`.

Letters: B samples, F features, D width of an embedding vector, N lookups of one feature, T labels.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.tasks import loss_of
from adaptive.serving.sample_values import ExportFacts, FeatureFacts
from adaptive.storage.arrays import Blocks
from adaptive.storage.durable import DISK, write_new

TABLES_FILE: Final = "model.onnx.data"
OPSET: Final = 20
_ALIGNMENT: Final = 4096  # bytes; aligned tables can be memory-mapped
_FILE_BYTES: Final = 2**31 - 1  # limit of protobuf


def onnx_or_error() -> Any:
    """Import and return the package onnx; ConfigError if a package is missing."""
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch traces with it)
    except ImportError as error:
        raise ConfigError(
            f"--to onnx requires onnx and onnxscript. Run pip install 'adaptive-train[onnx]' ({error})"
        ) from error
    return onnx


def write_onnx(path: Path, facts: ExportFacts, tables: Sequence[Blocks], dense: nn.Module) -> None:
    """Write a model, and next to it its tables, aligned to 4,096 bytes.

    Args:
        tables: each table (rows, width) float32, in the order of `facts`.
        dense: the dense part on the CPU in evaluation mode. It takes dense inputs (B, dense inputs) and vectors
            (B, F, D), or (B, sum of widths) if tables differ in width.

    Raises:
        ConfigError: if the dense part cannot be traced for a free batch size.
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
            f"--to onnx: expected a dense part of at most {_FILE_BYTES:,} bytes, got {model.ByteSize():,}. "
            "Use --to torch"
        )
    data = model.SerializeToString(deterministic=True)

    def write_tables(file: BinaryIO) -> None:
        for blocks, start in zip(tables, starts, strict=True):
            file.write(bytes(start - file.tell()))
            for block in blocks.make():
                file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
            assert file.tell() == start + num_bytes(blocks), f"{TABLES_FILE}: blocks are not the table"

    write_new(path.with_name(TABLES_FILE), write_tables)
    write_new(path, lambda file: DISK.write(file, data))


class _Whole(nn.Module):
    """Logits and scores from pooled vectors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pooled: Tensor, dense: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if dense is None:
            dense = pooled.new_zeros((pooled.shape[0], 0))
        logits = self.model(dense, pooled)
        return logits, logits.clone() if loss_of(self.model) == "mse" else torch.sigmoid(logits)


def _traced(dense: nn.Module, facts: ExportFacts) -> Any:
    """Trace the dense part: inputs `pooled` and, if there are dense inputs, `dense`."""
    widths = [facts.tables[feature.table].width for feature in facts.features]
    shape = (sum(widths),) if facts.is_widened else (len(widths), widths[0])
    arguments = [torch.zeros(3, *shape)] + ([torch.zeros(3, len(facts.dense))] if facts.dense else [])
    batch = torch.export.Dim("B", min=1)
    try:
        with _quiet(), torch.no_grad():
            # `torch.onnx.export` alone would silently accept a model that fixes the batch size.
            exported = torch.export.export(
                _Whole(dense).eval(), tuple(arguments), dynamic_shapes=tuple({0: batch} for _ in arguments)
            )
            program = torch.onnx.export(
                exported, dynamo=True, opset_version=OPSET, verbose=False,
                input_names=["pooled", "dense"][: len(arguments)], output_names=["logits", "scores"],
            )  # fmt: skip
    except Exception as error:
        raise ConfigError(
            f"--to onnx: torch cannot trace the model {facts.model['name']} for a free batch size. Use x.shape[0] "
            f"instead of len(x) in the model, or export with --to torch: {error}"
        ) from error
    assert program is not None
    model = program.model_proto
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info):
        part.ClearField("metadata_props")  # paths of code on this machine
        part.ClearField("doc_string")
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages of torch's exporter, which are for its developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _add_pooling(onnx: Any, graph: Any, facts: ExportFacts) -> None:
    """Insert lookups and sums before the dense part, instead of its input `pooled`."""
    pooling = PoolingNodes(onnx, facts)
    nodes, inputs = list(graph.node), [value for value in graph.input if value.name == "dense"]
    for field, content in ((graph.node, pooling.nodes + nodes), (graph.input, inputs + pooling.inputs)):
        del field[:]
        field.extend(content)
    graph.initializer.extend(pooling.initializers)


def _outside(onnx: Any, number: int, blocks: Blocks, start: int) -> Any:
    """Return the tensor of a table whose values are in the second file."""
    tensor = onnx.TensorProto(
        name=f"tables.{number}.weight", data_type=onnx.TensorProto.FLOAT, dims=blocks.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in (("location", TABLES_FILE), ("offset", start), ("length", num_bytes(blocks))):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _starts(tables: Sequence[Blocks]) -> list[int]:
    """Return the offset of each table in the file, in bytes."""
    starts, end = [], 0
    for blocks in tables:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + num_bytes(blocks)
    return starts


def num_bytes(blocks: Blocks) -> int:
    return math.prod(blocks.shape) * blocks.dtype.itemsize


class PoolingNodes:
    """Builds the nodes that compute `pooled`: (B, F, D) or (B, sum of widths).

    Args:
        onnx: the package.
        facts: content of an export's `model.json`; table n is the tensor `tables.n.weight`.

    Attributes:
        nodes, initializers, inputs: parts of the graph; these nodes come before all others.
    """

    def __init__(self, onnx: Any, facts: ExportFacts) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        for name, values in (("zero", 0), ("one", 1), ("first", [0]), ("second", [1])):
            self._constant(f"pooling.{name}", values)
        parts = [self._feature(number, feature, facts) for number, feature in enumerate(facts.features)]
        if not facts.is_widened:
            parts = [self._node("Unsqueeze", [part, "pooling.second"], f"{part}.stacked") for part in parts]
        self._node("Concat", parts, "pooled", axis=1)

    def _feature(self, number: int, feature: FeatureFacts, facts: ExportFacts) -> str:
        """Add the nodes of a feature; return the name of its pooled vectors (B, D)."""
        make, onnx, name = self._onnx.helper, self._onnx, f"features.{number}"
        rows, offsets = f"rows.{number}", f"offsets.{number}"
        self.inputs += [
            make.make_tensor_value_info(rows, onnx.TensorProto.INT64, [f"N{number}"]),
            make.make_tensor_value_info(offsets, onnx.TensorProto.INT64, ["B"]),
        ]
        width = facts.tables[feature.table].width
        vectors = self._node("Gather", [f"tables.{feature.table}.weight", rows], f"{name}.vectors", axis=0)
        samples = self._node("Shape", [offsets], f"{name}.samples")
        count = self._node("Shape", [rows], f"{name}.count")
        single = self._all_single(name, offsets, samples, count)
        outer, self.nodes = self.nodes, []
        output = make.make_tensor_value_info(f"{name}.gathered", onnx.TensorProto.FLOAT, None)
        self._node("Identity", [vectors], f"{name}.gathered")
        then = make.make_graph(self.nodes, f"{name}.single", [], [output])
        self.nodes = []
        output = make.make_tensor_value_info(f"{name}.summed", onnx.TensorProto.FLOAT, None)
        self._sums(name, offsets, samples, count, width)
        other = make.make_graph(self.nodes, f"{name}.bags", [], [output])
        self.nodes = outer
        chosen = self._node("If", [single], f"{name}.chosen", then_branch=then, else_branch=other)
        self._constant(f"{name}.shape", [-1, width])  # declares the width for readers
        return self._node("Reshape", [chosen, f"{name}.shape"], f"{name}.pooled", allowzero=1)

    def _all_single(self, name: str, offsets: str, samples: str, count: str) -> str:
        """Add the nodes for "each sample has one lookup"; return the name of their result."""
        number = self._node("Squeeze", [samples], f"{name}.number")
        expected = self._node("Range", ["pooling.zero", number, "pooling.one"], f"{name}.expected")
        equal = self._node("Equal", [offsets, expected], f"{name}.equal")
        other = self._node("Cast", [self._node("Not", [equal], f"{name}.differ")], f"{name}.other", to=7)
        total = self._node("ReduceSum", [other], f"{name}.others", keepdims=0)
        none = self._node("Equal", [total, "pooling.zero"], f"{name}.none")
        as_many = self._node("Squeeze", [self._node("Equal", [samples, count], f"{name}.many")], f"{name}.as_many")
        return self._node("And", [none, as_many], f"{name}.all_single")

    def _sums(self, name: str, offsets: str, samples: str, count: str, width: int) -> None:
        """Add the nodes of `NAME.summed` (B, D).

        The sample of lookup n is the number of samples that begin at or before n, minus one.
        """
        make, types = self._onnx.helper, self._onnx.TensorProto
        int_zero, float_zero = make.make_tensor("", types.INT64, [1], [0]), make.make_tensor("", types.FLOAT, [1], [0])
        int_one = make.make_tensor("", types.INT64, [1], [1])
        beyond = self._node("Add", [count, "pooling.second"], f"{name}.beyond")
        none = self._node("ConstantOfShape", [beyond], f"{name}.no_starts", value=int_zero)
        ones = self._node("ConstantOfShape", [samples], f"{name}.ones", value=int_one)
        starts = self._node("ScatterElements", [none, offsets, ones], f"{name}.starts", axis=0, reduction="add")
        begun = self._node("CumSum", [starts, "pooling.zero"], f"{name}.begun_all")
        begun = self._node("Slice", [begun, "pooling.first", count], f"{name}.begun")
        owner = self._node("Sub", [begun, "pooling.one"], f"{name}.owner")
        column = self._node("Unsqueeze", [owner, "pooling.second"], f"{name}.column")
        shape = self._node("Shape", [f"{name}.vectors"], f"{name}.vectors_shape")
        places = self._node("Expand", [column, shape], f"{name}.places")
        self._constant(f"{name}.width", [width])
        size = self._node("Concat", [samples, f"{name}.width"], f"{name}.size", axis=0)
        zeros = self._node("ConstantOfShape", [size], f"{name}.zeros", value=float_zero)
        inputs = [zeros, places, f"{name}.vectors"]
        self._node("ScatterElements", inputs, f"{name}.summed", axis=0, reduction="add")

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def _constant(self, name: str, values: "int | list[int]") -> None:
        shape, flat = ([], [values]) if isinstance(values, int) else ([len(values)], values)
        self.initializers.append(self._onnx.helper.make_tensor(name, self._onnx.TensorProto.INT64, shape, flat))
