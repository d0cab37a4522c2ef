"""What users try with the module that it cannot do: each is told by name, and nothing goes wrong without a word."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adaptive.batch import one_hot_batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embedding import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.optim import SGD, Adagrad, Adam, RowwiseAdagrad

TABLE = TableConfig(name="t", num_embeddings=9, embedding_dim=4)
BATCH = one_hot_batch(np.zeros((2, 0), np.float32), np.array([[1], [2]]), np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": [{"name": "t"}]}, r"tables\[0\]: TableConfig is needed, found dict"),
        ({"tables": [TABLE, "u"]}, r"tables\[1\]: TableConfig is needed, found str"),
        ({"tier": "10%"}, "tier: TierConfig is needed, found str"),
        ({"optimizer": "adam"}, "optimizer: RowOptimizer is needed, found str"),
        ({"optimizer": Adam}, "optimizer: RowOptimizer is needed, found ABCMeta"),
        ({"skip": True}, "skip: SkipConfig is needed, found bool"),
    ],
)
def test_arguments_of_another_kind(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TieredEmbeddingBag(**{"tables": [TABLE], **arguments})


def test_a_batch_that_was_not_looked_ahead() -> None:
    embeddings = TieredEmbeddingBag([TABLE])
    for call in (embeddings, embeddings.stack):
        with pytest.raises(ConfigError, match=r"look_ahead\(\) or read\(\) is needed, found Batch"):
            call(BATCH)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied(copied: Any) -> None:
    model = nn.ModuleDict({"rows": TieredEmbeddingBag([TABLE], skip=SkipConfig())})
    with pytest.raises(TypeError, match=r"load its state_dict\(\) into a new one"):
        copied(model["rows"])


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowwiseAdagrad, Adam])
@pytest.mark.parametrize("rate", [-1, "x", float("nan"), float("inf"), None])
def test_learning_rates_that_are_none(kind: Any, rate: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.__name__}: lr from 0 to below inf is needed, found"):
        kind(lr=rate)


def test_betas_lie_below_one() -> None:
    with pytest.raises(ConfigError, match="beta2 from 0 to below 1 is needed, found 1"):
        Adam(beta2=1)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler's own doing
def test_a_compiled_model_leaves_the_rows_alone() -> None:
    """By the compiler's own account: no graph holds anything of the embeddings, and training is as without it."""
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph.code)
        return graph.forward

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.dense = TieredEmbeddingBag([TABLE], TierConfig(device_rows="4")), nn.Linear(4, 1)

        def forward(self, planned: Any) -> torch.Tensor:
            found: torch.Tensor = self.dense(self.rows.stack(planned).flatten(1)).sum()
            return found

    trained = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = Model()
        call = torch.compile(model, backend=backend) if compiled else model
        for planned in model.rows.look_ahead([BATCH] * 3, depth=1):
            call(planned).backward()
            model.rows.step()
        trained.append(model.rows.table_weights("t"))
    assert np.array_equal(*trained)
    assert graphs and all("linear" in code and "_Pool" not in code for code in graphs)
