"""What users try with the module that it cannot do: each is told by name, and nothing goes wrong without a word."""

import copy
import pickle
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import torch
from helpers import after_sums, step_all, sum_of
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
        with pytest.raises(ConfigError, match=r"expected a batch of look_ahead\(\) or read\(\), got Batch"):
            call(BATCH)


def sgd_table() -> TieredEmbeddingBag:
    """Each look-up takes 1 from its row."""
    return TieredEmbeddingBag([TABLE], TierConfig(device_rows="100%", poison=True), optimizer=SGD(lr=1.0))


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("closed", [False, True])
def test_backward_into_a_batch_that_has_ended(depth: int, closed: bool) -> None:
    """One loss of two batches would lose the gradients of the first."""
    embeddings = sgd_table()
    before = embeddings.table_weights("t")
    coming = embeddings.look_ahead([BATCH] * 3, depth=depth)
    loss = sum_of(embeddings(next(coming)))
    if closed:
        coming.close()
    else:
        loss = loss + sum_of(embeddings(next(coming)))
    with pytest.raises(ConfigError, match="batch 0 has ended; its gradients cannot be applied"):
        loss.backward()
    embeddings.discard()
    coming.close()
    assert np.array_equal(embeddings.table_weights("t"), before)


def test_an_ended_batch_stays_so_after_a_load() -> None:
    """Loading sets the number of the next batch back; an old batch must not come to life again by that."""
    embeddings = sgd_table()
    arrays = embeddings.state_arrays()
    (planned,) = step_all(embeddings, [BATCH])
    embeddings.load_state_arrays(arrays)
    with pytest.raises(ConfigError, match="batch 0 has ended"):
        embeddings(planned)


def test_a_loop_left_between_backward_and_step_warns() -> None:
    embeddings = sgd_table()
    coming = embeddings.look_ahead([BATCH] * 3, depth=1)
    for planned in coming:
        sum_of(embeddings(planned)).backward()
        if planned.number == 1:
            break
        embeddings.step()
    with pytest.warns(UserWarning, match="batch 1: the loop was left after backward"):
        coming.close()


@pytest.mark.parametrize("end", ["step", "discard", "forward", "error"])
def test_a_loop_left_otherwise_does_not_warn(end: str) -> None:
    embeddings = sgd_table()
    with suppress(ZeroDivisionError), closing(embeddings.look_ahead([BATCH] * 3, depth=1)) as coming:
        loss = sum_of(embeddings(next(coming)))
        if end != "forward":
            loss.backward()
        if end in ("step", "discard"):
            getattr(embeddings, end)()
        if end == "error":
            raise ZeroDivisionError


def test_discarded_gradients_do_not_come_back() -> None:
    embeddings = sgd_table()
    before = embeddings.table_weights("t")
    for planned in embeddings.look_ahead([BATCH]):
        (100 * sum_of(embeddings(planned))).backward()
        embeddings.discard()
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert np.array_equal(embeddings.table_weights("t"), after_sums(before, [BATCH]))


@pytest.mark.parametrize("way", ["look_ahead", "read"])
def test_a_batch_of_another_module(way: str) -> None:
    """It would give the other module's vectors, and step() would update the other module's rows."""
    one, other = sgd_table(), sgd_table()
    coming = one.look_ahead([BATCH])
    planned = next(coming) if way == "look_ahead" else one.read(BATCH)
    calls = [other, other.stack, other.side_by_side, lambda batch: other.report_loss(batch, 0.5)]
    for call in calls:
        with pytest.raises(ConfigError, match="got one of another TieredEmbeddingBag"):
            call(planned)
    coming.close()


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
