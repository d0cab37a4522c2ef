"""What the tests of runs share: fixtures, a model to hook into, all values of a run to compare."""

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from adaptive.models.dense import assembly
from adaptive.models.dense.dlrm import DLRM
from adaptive.studies.compare import comparison_runs
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.training.components import Components, build
from adaptive.training.runs import loading, resuming, training
from support.toy import SIZES, ToyData, toy_config


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    threads = set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert set(threading.enumerate()) == threads
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def open_toy_data(patch: pytest.MonkeyPatch, toy: ToyData) -> None:
    """Make this data set what every run opens."""
    for module in (training, loading, resuming):
        patch.setattr(module, "open_data", lambda config, run_directory=None: toy)
    # With a cold cache of kernels a rehearsal trains the model first: a bug or interruption planted in the model would
    # come there, before the run.
    patch.setattr(training, "rehearse", lambda *arguments: 0.0)


@pytest.fixture(name="data")
def data_fixture(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ToyData]:
    """`data(...)` makes the toy data set what every run opens."""

    def use(*arguments: Any, **options: Any) -> ToyData:
        toy = ToyData(*arguments, **options)
        open_toy_data(monkeypatch, toy)
        return toy

    use()
    return use


def in_model(monkeypatch: pytest.MonkeyPatch, action: Callable[["Hooked", Tensor, Tensor], None]) -> None:
    """Runs use a DLRM that calls `action(model, dense, pooled)` before each forward pass."""

    class Model(Hooked):
        def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
            if self.training:
                self.calls += 1
            action(self, dense, pooled)
            return super().forward(dense, pooled)

    monkeypatch.setattr(assembly, "DLRM", Model)


class Hooked(DLRM):
    calls = 0  # in training mode


def parts_of(**changed: Any) -> tuple[Components, ToyData]:
    toy = ToyData()
    sample = list(toy.train(32))
    parts = build(toy_config(tier={"device_rows": "auto"}, **changed), toy, sample)
    parts.embeddings.calibrate(sample)
    return parts, toy


def everything(parts: Components) -> dict[str, NDArray[Any]]:
    """All weights and all optimizer state, wherever rows lie."""
    values, saved = all_weights(parts), parts.embeddings.rows.state_arrays()
    values["row state"] = np.zeros((sum(SIZES.values()), saved["rows0.state"].shape[1]), np.float32)
    values["row state"][saved["rows0.changed"]] = saved["rows0.state"]
    return values | {name: value for name, value in state(parts).items() if not name.startswith(("rows", "next"))}


def all_weights(parts: Components) -> dict[str, NDArray[Any]]:
    """All tables, and the model's parameters and buffers."""
    tables = {table.name: parts.embeddings.rows.table_weights(table.name) for table in parts.tables}
    return tables | dense_weights(parts)


def dense_weights(parts: Components) -> dict[str, NDArray[Any]]:
    return {f"dense {name}": value.numpy().copy() for name, value in parts.model.state_dict().items()}


def state(parts: Components) -> dict[str, NDArray[Any]]:
    optimizer = {
        f"optimizer {number} {name}": value.numpy().copy()
        for number, values in parts.optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    return {**parts.embeddings.rows.state_arrays(), **dense_weights(parts), **optimizer}


def assert_equal(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, strict=True, err_msg=name)


def train_all(*arguments: Any, **options: Any) -> list[Outcome]:
    """All outcomes of a comparison."""
    return list(comparison_runs.train_all(*arguments, **options))
