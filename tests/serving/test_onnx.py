"""`export --to onnx`: onnxruntime, without torch, gives the run's scores for batches of any size."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.served import bags_of, samples, trained
from support.toy import SIZES, ToyData, toy_config
from support.toy_runs import data_fixture  # noqa: F401

from adaptive.errors import ConfigError
from adaptive.serving import export_run, onnx_files, onnx_scoring, predict_run, scoring
from adaptive.training.runs import train_run

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

OWN = str(Path(__file__).parents[2] / "examples" / "custom_model.py") + ":SumAndDot"
SYNTHETIC = {"num_train": 300, "num_eval": 100, "tables": 4, "rows": 100_000, "lookups": 3}
DLRM = {"bottom_mlp": [8, 4], "top_mlp": [8, 1]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


TOY: dict[str, tuple[str, dict[str, Any]]] = {
    "dcn": ("dcn", {"deep_mlp": [8], "cross_rank": 2}),
    "deepfm": ("deepfm", {"deep_mlp": [8]}),
    "two-tower": ("two-tower", {"user_tables": ["user"], "item_dense": ["dense_1"], "unit_vectors": True}),
    "multi-task": ("multi-task", {"shared_mlp": [8], "task_mlp": [4], "experts": 2}),
    "shared bottom": ("multi-task", {"sharing": "bottom", "shared_mlp": [8], "task_mlp": [4]}),
    "own": (OWN, {"hidden": 8}),
    "own, widths": (OWN, {"hidden": 8, "widths": {"user": 2}}),
    "dlrm, widths": ("dlrm", {**DLRM, "widths": {"user": 2, "hour": 8}}),
    "dcn, numbers": ("dcn", {"deep_mlp": [8], "loss": "mse"}),
    "dcn, batch norm": ("dcn", {"deep_mlp": [8], "feature_norm": "batch"}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", TOY)
def test_every_model_gives_its_scores_again(data: Callable[..., ToyData], name: str) -> None:
    model, options = TOY[name]
    toy = data(labels=("click", "high") if model == "multi-task" else ())
    train_run(toy_config(out="run", model=model, model_options={"embedding_dim": 4, **options}))
    named = {"model": OWN} if model == OWN else {}
    predict_run("run", "scores.npy", settings=named)
    export_run("run", "served", to="onnx", settings=named)
    served, expected = onnx_scoring.load("served"), np.load("scores.npy")
    for size in (1000, 9):
        logits = np.concatenate([served(batch.dense, list(bags_of(batch))) for batch in toy.evaluation(size)])
        predicted = logits if options.get("loss") == "mse" else 1 / (1 + np.exp(-logits))
        np.testing.assert_allclose(predicted, expected, atol=1e-6)
    assert expected.std() > 1e-3
    batch = next(toy.evaluation(3))
    dense = [{f"dense_{number}": value for number, value in enumerate(row)} for row in batch.dense.tolist()]
    ids = [dict(zip(SIZES, row, strict=True)) for row in batch.ids.reshape(len(SIZES), -1).T.tolist()]
    scores = served.score([row | ids_of_row for row, ids_of_row in zip(dense, ids, strict=True)])
    np.testing.assert_allclose(scores, expected[:3], atol=1e-6)


def test_empty_bags_everywhere(tmp_path: Path) -> None:
    """At the beginning, at the end, and in all samples, as torch's export scores them."""
    run = trained(tmp_path)
    export_run(run, "torch")
    export_run(run, "served", to="onnx")
    plain, served = scoring.load("torch"), onnx_scoring.load("served")
    for tags in (["", "t1|t2", ""], ["", "", ""], ["t1", "", "t2|t3|t1"], ["", "t1|t2|t3", "", "", "t4"]):
        rows = samples([f"0,1.5,a,7,b,ff,{one}" for one in tags])
        np.testing.assert_allclose(served.score(rows), plain.score(rows), atol=1e-7)


def test_what_is_written(tmp_path: Path) -> None:
    """A file that its checker takes, without places on this machine; each table begins at a page."""
    export_run(trained(tmp_path), "served", to="onnx")
    onnx.checker.check_model("served/model.onnx", full_check=True)
    model = onnx.load("served/model.onnx", load_external_data=False)
    tables = [tensor for tensor in model.graph.initializer if tensor.name.startswith("tables.")]
    assert [tuple(tensor.dims) for tensor in tables] == [(11, 4), (51, 4), (38, 4), (24, 4)]
    offsets = [int(entry.value) for tensor in tables for entry in tensor.external_data if entry.key == "offset"]
    assert offsets == [0, 4096, 8192, 12288]
    content = Path("served/model.onnx").read_bytes()
    assert str(Path.cwd()).encode() not in content and b"site-packages" not in content


@pytest.mark.nightly
def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path)
    with monkeypatch.context() as changed:
        changed.setattr(onnx_files, "_FILE_BYTES", 100)
        with pytest.raises(ConfigError, match=r"expected a dense part of at most 100 bytes, got"):
            export_run(run, "served", to="onnx")
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "onnxscript", None)
        with pytest.raises(ConfigError, match=r"--to onnx requires .* Run pip install 'adaptive-train\[onnx\]'"):
            export_run(run, "served", to="onnx")
    assert not list(tmp_path.glob("served*"))
    train_run(toy_config(out="half", data="synthetic", data_options={"synthetic": SYNTHETIC},
                         model_options={"embedding_dim": 4, **DLRM, "bf16": True}))  # fmt: skip
    with pytest.raises(ConfigError, match=r"expected model.bf16=false for --to onnx"):
        export_run("half", "served", to="onnx")


def test_a_model_that_fixes_the_batch_size_is_told(data: Callable[..., ToyData]) -> None:
    data()
    Path("mine.py").write_text(
        "import torch\n\n\nclass Mine(torch.nn.Module):\n    def __init__(self, embedding_dim: int) -> None:\n"
        "        super().__init__()\n        self.last = torch.nn.Linear(3 * embedding_dim, 1)\n\n"
        "    def forward(self, dense, pooled):\n        return self.last(pooled.reshape(len(pooled), -1)).squeeze(1)\n"
    )
    train_run(toy_config(out="run", model="mine.py:Mine", model_options={"embedding_dim": 4}))
    with pytest.raises(ConfigError, match=r"cannot trace the model custom for a free batch size. Use x.shape\[0\]"):
        export_run("run", "served", to="onnx", settings={"model": "mine.py:Mine"})
    assert not list(Path.cwd().glob("served*"))
