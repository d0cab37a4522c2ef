"""Score samples with a model exported to ONNX: numpy and onnxruntime are all it takes. A copy of this file lies in each
such export, as `scoring.py`.

    import scoring
    model = scoring.load("DIR")                                    # the folder of the export
    model.score([{"user": "4711", "price": 3.5, "tags": ["a"]}])   # probabilities that labels are 1
    model(dense, bags)                                             # logits of rows that are known already

As a program: `python DIR/scoring.py < samples.jsonl` prints a score a line.

Letters: B samples, T labels, N look-ups of one feature.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bag = tuple[NDArray[np.int64], NDArray[np.int64]]


def load(folder: str | Path) -> "Model":
    """The model in the folder of an export.

    Raises:
        ValueError: for an array of `ids` that is not what `model.json` says, or a file that onnxruntime cannot load.
    """
    return Model(Path(folder))


class Model:
    """A session of onnxruntime on the CPU, and what turns values into its inputs. `load` makes one."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        self.facts: dict[str, Any] = json.loads((folder / "model.json").read_text("utf-8"))
        self.values = beside("values").Values(self.facts, folder)
        path = str(folder / self.facts["tensors"])
        try:
            self.session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common class
            raise ValueError(f"expected a model that onnxruntime loads, got: {error} ({path})") from error

    def __call__(self, dense: NDArray[np.float32], bags: Sequence[Bag]) -> NDArray[np.float32]:
        """Logits (B,), of several labels (B, T), of dense inputs (B, dense) as they are after their transformation; and
        for each feature in order the rows of all its look-ups (N,) and where those of each sample begin (B,)."""
        return self._run("logits", dense, bags)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The probability that its label is 1, of each sample; where there are several labels, a list of theirs in the
        order of `facts["labels"]`. A sample: name of a feature or dense input -> its value, as it
        stands in the data; of a bag a list of values, or one text with the data's separator between them. What is not
        given, or empty, is missing.

        Raises:
            ValueError: for a name that the model does not have, or a value that its column cannot hold; names both.
        """
        if not samples:
            return []
        found: list[Any] = self._run("scores", *self.values.inputs(samples)).tolist()
        return found

    def _run(self, output: str, dense: NDArray[np.float32], bags: Sequence[Bag]) -> NDArray[np.float32]:
        features = self.facts["features"]
        if len(bags) != len(features):
            raise ValueError(f"{len(features)} features are needed, found {len(bags)}")
        given: dict[str, NDArray[Any]] = {"dense": dense} if self.facts["dense"] else {}
        for number, (rows, offsets) in enumerate(bags):
            given |= {f"rows.{number}": rows, f"offsets.{number}": offsets}
        found: NDArray[np.float32] = self.session.run([output], given)[0]
        return found


def beside(name: str) -> Any:
    """The module `name.py`, which lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    try:
        here = load(Path(__file__).parent)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    here.values.score_lines(here.score, sys.stdin.buffer)
