"""Look-ups and sums of bags as ONNX nodes, before the dense part of a graph that takes pooled vectors.

A bag is summed in look-up order, as `nn.EmbeddingBag` does: by ScatterElements, whose sums onnxruntime takes one after
another (those of ScatterND, side by side, it has got wrong). Where all bags hold one id, rows are only gathered.

Letters: B samples, D width of an embedding vector, N look-ups of one feature.
"""

from collections.abc import Mapping
from typing import Any


class PoolingNodes:
    """The nodes of all features, which give the tensor `pooled`.

    Args:
        onnx: the package.
        facts: content of an export's `model.json`; table n is the tensor `tables.n.weight`.
        side_by_side: give vectors side by side (B, sum of widths), not stacked (B, F, D).

    Attributes:
        nodes, initializers, inputs: to be added to the graph, nodes before all others.
    """

    def __init__(self, onnx: Any, facts: Mapping[str, Any], *, side_by_side: bool) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        for name, values in (("zero", 0), ("one", 1), ("first", [0]), ("second", [1])):
            self._constant(f"pooling.{name}", values)
        parts = [self._feature(number, feature, facts) for number, feature in enumerate(facts["features"])]
        if not side_by_side:
            parts = [self._node("Unsqueeze", [part, "pooling.second"], f"{part}.stacked") for part in parts]
        self._node("Concat", parts, "pooled", axis=1)

    def _feature(self, number: int, feature: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
        """(B, D) pooled vectors of a feature."""
        make, onnx, name = self._onnx.helper, self._onnx, f"features.{number}"
        rows, offsets = f"rows.{number}", f"offsets.{number}"
        self.inputs += [
            make.make_tensor_value_info(rows, onnx.TensorProto.INT64, [f"N{number}"]),
            make.make_tensor_value_info(offsets, onnx.TensorProto.INT64, ["B"]),
        ]
        width = facts["tables"][feature["table"]]["width"]
        vectors = self._node("Gather", [f"tables.{feature['table']}.weight", rows], f"{name}.vectors", axis=0)
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
        self._constant(f"{name}.shape", [-1, width])  # so that every reader knows the width
        return self._node("Reshape", [chosen, f"{name}.shape"], f"{name}.pooled", allowzero=1)

    def _all_single(self, name: str, offsets: str, samples: str, count: str) -> str:
        """Whether each sample has one look-up."""
        number = self._node("Squeeze", [samples], f"{name}.number")
        expected = self._node("Range", ["pooling.zero", number, "pooling.one"], f"{name}.expected")
        equal = self._node("Equal", [offsets, expected], f"{name}.equal")
        other = self._node("Cast", [self._node("Not", [equal], f"{name}.differ")], f"{name}.other", to=7)
        total = self._node("ReduceSum", [other], f"{name}.others", keepdims=0)
        none = self._node("Equal", [total, "pooling.zero"], f"{name}.none")
        as_many = self._node("Squeeze", [self._node("Equal", [samples, count], f"{name}.many")], f"{name}.as_many")
        return self._node("And", [none, as_many], f"{name}.all_single")

    def _sums(self, name: str, offsets: str, samples: str, count: str, width: int) -> None:
        """`NAME.summed` (B, D): the number of look-up n's sample is how many samples begin at or before n, less one."""
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
        given = [zeros, places, f"{name}.vectors"]
        self._node("ScatterElements", given, f"{name}.summed", axis=0, reduction="add")

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def _constant(self, name: str, values: "int | list[int]") -> None:
        shape, flat = ([], [values]) if isinstance(values, int) else ([len(values)], values)
        self.initializers.append(self._onnx.helper.make_tensor(name, self._onnx.TensorProto.INT64, shape, flat))
