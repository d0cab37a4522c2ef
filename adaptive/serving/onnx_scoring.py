"""Score samples with an ONNX export, with numpy and onnxruntime only.

Its copy in an export is `scoring.py`.

    import scoring
    model = scoring.load("DIR")                                    # the folder of the export
    model.score([{"user": "4711", "price": 3.5, "tags": ["a"]}])   # probabilities that labels are 1
    model(dense, bags)                                             # logits from rows

As a program: `python DIR/scoring.py < samples.jsonl` prints a score per line.

Letters: B samples, T labels, N lookups of one feature.
"""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from adaptive.serving.sample_values import ExportFacts, Sample, Values

Bag = tuple[NDArray[np.int64], NDArray[np.int64]]


def load(folder: str | Path) -> "Model":
    """Load the model in the folder of an export.

    Raises:
        ValueError: for an array of `ids` that does not fit `model.json`, or a file that onnxruntime cannot load.
    """
    return Model(Path(folder))


class Model:
    """A session of onnxruntime on the CPU, with the conversion of samples; created by `load`."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        spec = importlib.util.spec_from_file_location("sample_values", folder / "sample_values.py")
        assert spec is not None and spec.loader is not None
        sample_values = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sample_values)
        self.facts: ExportFacts = sample_values.read_facts(folder)
        self.values: Values = sample_values.Values(self.facts, folder)
        path = str(folder / self.facts.tensors)
        try:
            self.session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common class
            raise ValueError(f"expected a model that onnxruntime loads, got: {error} ({path})") from error

    def __call__(self, dense: NDArray[np.float32], bags: Sequence[Bag]) -> NDArray[np.float32]:
        """Return logits (B,), or (B, T) for several labels.

        Args:
            dense: transformed dense inputs (B, dense inputs) float32.
            bags: for each feature the rows of all lookups (N,) and the first lookup of each sample (B,), both int64.
        """
        return self._run("logits", dense, bags)

    def score(self, samples: "Sequence[Sample]") -> list[Any]:
        """Return the probability of label 1, or a list of all labels', for each sample.

        A sample maps names of features and dense inputs to values as in the data; a bag is a list of values, or a text
        with the data's separator between them. Absent and empty values are missing.

        Raises:
            ValueError: for an unknown name, or a value of the wrong kind.
        """
        if not samples:
            return []
        scores: list[Any] = self._run("scores", *self.values.inputs(samples)).tolist()
        return scores

    def _run(self, output: str, dense: NDArray[np.float32], bags: Sequence[Bag]) -> NDArray[np.float32]:
        features = self.facts.features
        if len(bags) != len(features):
            raise ValueError(f"expected bags of {len(features)} features, got {len(bags)}")
        inputs: dict[str, NDArray[Any]] = {"dense": dense} if self.facts.dense else {}
        for number, (rows, offsets) in enumerate(bags):
            inputs |= {f"rows.{number}": rows, f"offsets.{number}": offsets}
        values: NDArray[np.float32] = self.session.run([output], inputs)[0]
        return values


if __name__ == "__main__":
    try:
        loaded = load(Path(__file__).parent)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    loaded.values.score_lines(loaded.score, sys.stdin.buffer)
