"""Mistakes of users with the module: each is an error by name, and none is silent."""

import copy
import gc
import os
import pickle
import select
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from support.helpers import after_sums, step_all, sum_of
from torch import Tensor, nn

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import SkipConfig, TableConfig, TierConfig, TrainConfig
from adaptive.embeddings.planned_batch import LookAhead
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError, PolicyError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad, row_optimizer

TABLE = TableConfig(name="t", num_embeddings=9, embedding_dim=4)
BATCH = one_hot_batch(np.zeros((2, 0), np.float32), np.array([[1], [2]]), np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": [{"name": "t"}]}, r"tables\[0\]: expected a TableConfig, got dict"),
        ({"tables": [TABLE, "u"]}, r"tables\[1\]: expected a TableConfig, got str"),
        ({"tier": "10%"}, "tier: expected a TierConfig, got str"),
        ({"optimizer": Adam}, r"got the class Adam\. Pass one of adaptive\.SGD, Adagrad, RowwiseAdagrad, Adam, FTRL;"),
        ({"skip": True}, "skip: expected a SkipConfig, got bool"),
    ],
)
def test_arguments_of_another_kind(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TieredEmbeddingBag(**{"tables": [TABLE], **arguments})


@pytest.mark.parametrize(("arguments", "hint"), [({"policy": "slipsteam"}, "slipstream"), ({"skip": "defr"}, "defer")])
def test_a_misspelt_name_is_told_with_the_nearest_one(arguments: dict[str, Any], hint: str) -> None:
    with pytest.raises(PolicyError, match=rf"did you mean {hint}\?"):
        TieredEmbeddingBag([TABLE], **arguments)


def test_the_default_optimizer_is_that_of_the_command_line() -> None:
    assert (
        TieredEmbeddingBag([TABLE]).runtime.sized.optimizer
        == row_optimizer(TrainConfig().optimizer)
        == RowwiseAdagrad(0.05)
    )


def test_a_batch_that_was_not_looked_ahead() -> None:
    embeddings = TieredEmbeddingBag([TABLE])
    for call in (embeddings, embeddings.stack):
        with pytest.raises(ConfigError, match=r"batch: expected one from look_ahead\(\) or read\(\), got Batch"):
            call(BATCH)


def sgd_table() -> TieredEmbeddingBag:
    """Each lookup takes 1 from its row."""
    return TieredEmbeddingBag([TABLE], TierConfig(device_rows="100%", poison=True), optimizer=SGD(lr=1.0))


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("closed", [False, True])
def test_backward_into_a_batch_that_has_ended(depth: int, closed: bool) -> None:
    """One loss of two batches would lose the gradients of the first."""
    embeddings = sgd_table()
    before = embeddings.rows.table_weights("t")
    coming = embeddings.look_ahead([BATCH] * 3, depth=depth)
    loss = sum_of(embeddings(next(coming)))
    if closed:
        coming.close()
    else:
        loss = loss + sum_of(embeddings(next(coming)))
    with pytest.raises(ConfigError, match="expected gradients of the current batch, got some of batch 0"):
        loss.backward()
    embeddings.discard()
    coming.close()
    assert np.array_equal(embeddings.rows.table_weights("t"), before)


def test_an_ended_batch_stays_so_after_a_load() -> None:
    """Loading sets the number of the next batch back; an old batch must not come to life again by that."""
    embeddings = sgd_table()
    arrays = embeddings.rows.state_arrays()
    (planned,) = step_all(embeddings, [BATCH])
    embeddings.rows.load_state_arrays(arrays)
    with pytest.raises(ConfigError, match="batch 0: expected the current batch, got one that has ended"):
        embeddings(planned)


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
    before = embeddings.rows.table_weights("t")
    for planned in embeddings.look_ahead([BATCH]):
        (100 * sum_of(embeddings(planned))).backward()
        embeddings.discard()
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(before, [BATCH]))


@pytest.mark.parametrize("way", ["look_ahead", "read"])
def test_a_batch_of_another_module(way: str) -> None:
    """It would give the other module's vectors, and step() would update the other module's rows."""
    one, other = sgd_table(), sgd_table()
    coming = one.look_ahead([BATCH])
    planned = next(coming) if way == "look_ahead" else one.read(BATCH)
    calls = [other, other.stack, other.side_by_side, lambda batch: other.report_loss(batch, 0.5)]
    for call in calls:
        with pytest.raises(ConfigError, match="tables t, got one of another TieredEmbeddingBag"):
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
    with pytest.raises(ConfigError, match=rf"{kind.__name__}: expected a finite lr of at least 0, got"):
        kind(lr=rate)


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
        trained.append(model.rows.rows.table_weights("t"))
    assert np.array_equal(*trained)
    assert graphs and all("linear" in code and "_Pool" not in code for code in graphs)


SAMPLES = 5


class _Buffers:
    """The arrays of a loader that fills the same ones for each batch, or new ones."""

    def __init__(self) -> None:
        self.dense, self.ids = np.empty((SAMPLES, 2), np.float32), np.empty((SAMPLES, 1), np.int64)
        self.labels, self.weights = np.empty(SAMPLES, np.float32), np.empty(SAMPLES, np.float32)
        self.offsets, self.extra = np.empty(SAMPLES + 1, np.int64), np.empty(SAMPLES, np.float32)

    def fill(self, number: int) -> None:
        self.dense[:], self.labels[:], self.extra[:] = number, number % 2, 10 * number
        self.ids[:, 0] = (np.arange(SAMPLES) * number) % 9
        self.weights[:], self.offsets[:] = 1 + number, np.arange(SAMPLES + 1)
        if number % 2:
            self.offsets[1] = 2  # two in the first bag, none in the second


def _named(buffers: _Buffers) -> Batch:
    bags = (buffers.ids[:, 0], buffers.offsets, buffers.weights)
    return Batch.of(t=bags, dense=buffers.dense, labels=buffers.labels, extras={"extra": buffers.extra})


def _arrays(buffers: _Buffers) -> Batch:
    return Batch(
        buffers.dense, buffers.ids.reshape(-1), buffers.offsets, buffers.labels, buffers.weights,
        extras={"extra": buffers.extra},
    )  # fmt: skip


def _one_hot(buffers: _Buffers) -> Batch:
    return replace(one_hot_batch(buffers.dense, buffers.ids, buffers.labels), extras={"extra": buffers.extra})


def _trained(make: Callable[[_Buffers], Batch], *, reuse: bool, depth: int) -> tuple[list[Any], Any]:
    """All that a loop sees of each batch, and the table afterwards."""
    reused, embeddings, seen = _Buffers(), sgd_table(), []

    def loader() -> Iterator[Batch]:
        for number in range(8):
            buffers = reused if reuse else _Buffers()
            buffers.fill(number)
            yield make(buffers)

    for planned in embeddings.look_ahead(loader(), depth=depth):
        vectors = embeddings(planned)
        (vectors["t"].sum(1) * planned.labels).sum().backward()
        embeddings.step()
        inputs = (planned.dense, planned.labels, planned.extras["extra"], vectors["t"].detach())
        seen.append([one.tolist() for one in inputs])
    return seen, embeddings.rows.table_weights("t").tolist()


@pytest.mark.parametrize("make", [_named, _arrays, _one_hot])
@pytest.mark.parametrize("depth", [0, 4])
def test_a_loader_may_reuse_its_arrays(make: Callable[[_Buffers], Batch], depth: int) -> None:
    """The look-ahead reads further while earlier batches wait for training."""
    assert _trained(make, reuse=True, depth=depth) == _trained(make, reuse=False, depth=depth)


@pytest.mark.parametrize("make", [_named, _arrays, _one_hot])
def test_a_batch_that_is_read_keeps_its_numbers(make: Callable[[_Buffers], Batch]) -> None:
    embeddings, buffers, expected = sgd_table(), _Buffers(), _Buffers()
    for one in (buffers, expected):
        one.fill(1)
    planned, again = embeddings.read(make(buffers)), embeddings.read(make(expected))
    buffers.fill(2)
    assert torch.equal(embeddings(planned)["t"], embeddings(again)["t"])
    assert torch.equal(planned.labels, again.labels) and torch.equal(planned.dense, again.dense)
    assert torch.equal(planned.extras["extra"], again.extras["extra"])


@pytest.mark.parametrize("names", [("t",), ("t", "u"), ("u", "t")])
def test_a_batch_without_samples(names: tuple[str, ...]) -> None:
    other = TABLE.model_copy(update={"name": "u"})
    embeddings = TieredEmbeddingBag([TABLE, other][: len(names)])
    empty = Batch.of({name: np.zeros(0, np.int64) for name in names})
    with pytest.raises(InputError, match="expected a batch with samples, got one without"):
        next(embeddings.look_ahead([empty]))
    with pytest.raises(InputError, match="expected a batch with samples, got one without"):
        embeddings.read(empty)


def _in_child(work: Callable[[], None], seconds: float = 60.0) -> str:
    """The error of `work` in a forked child, as text; it may hang there."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork next to threads, on purpose
        child = os.fork()
    if child == 0:
        text = "nothing was raised"
        try:
            work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(into, text.encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        came, _, _ = select.select([answer], [], [], seconds)
        if not came:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return answer.read().decode() if came else "it hangs"


def _abandon(coming: LookAhead) -> None:
    """Close a look-ahead in a child, and end there with no error."""
    coming.close()
    del coming
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("depth", [0, 2])
def test_a_forked_child_is_refused_by_name(depth: int) -> None:
    """The thread that holds the pipeline's lock is not in the child, which would wait for it for ever."""
    embeddings = sgd_table()
    before = embeddings.rows.table_weights("t")
    coming = embeddings.look_ahead([BATCH] * 4, depth=depth)
    planned = next(coming)
    loss = sum_of(embeddings(planned))
    calls: list[Callable[[], Any]] = [
        lambda: embeddings.read(BATCH),
        lambda: embeddings.rows.table_weights("t"),
        embeddings.state_dict,
        embeddings.rows.flush,
        lambda: next(coming),
        lambda: embeddings(planned),
        lambda: (loss.backward(), embeddings.step()),  # type: ignore[no-untyped-call]
        lambda: next(embeddings.look_ahead([BATCH])),
    ]
    for call in calls:
        with embeddings.runtime.pipeline.lock:  # as while the look-ahead thread moves rows
            assert "ConfigError: tables t: expected the process that created them" in _in_child(call)
    for work in (embeddings.close, lambda: _abandon(coming)):
        with embeddings.runtime.pipeline.lock:
            assert _in_child(work) == "nothing was raised"
    loss.backward()
    embeddings.step()
    for planned in coming:  # the parent's look-ahead is as it was
        sum_of(embeddings(planned)).backward()
        embeddings.step()
    assert np.array_equal(embeddings.rows.table_weights("t"), after_sums(before, [BATCH] * 4))


class _Loaded(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Batches made in a worker."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> Batch:
        return Batch.of(t=np.arange(number, number + 3), labels=np.zeros(3))


def test_workers_of_a_data_loader_make_batches() -> None:
    embeddings, loader = sgd_table(), torch.utils.data.DataLoader(_Loaded(), batch_size=None, num_workers=1)
    before = embeddings.rows.table_weights("t")
    for _ in range(2):
        step_all(embeddings, loader, depth=2)
    assert np.array_equal(
        embeddings.rows.table_weights("t"), after_sums(before, [*map(_Loaded().__getitem__, range(6))] * 2)
    )


# --- optimizers that kernels do not know -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SignSGD(SGD):
    def update(self, weights: Any, gradients: Any) -> Any:
        return weights - self.lr * np.sign(gradients)


def test_a_row_optimizer_of_ones_own_is_refused() -> None:
    """Kernels would run plain SGD."""
    with pytest.raises(ConfigError, match=r"optimizer: expected one of SGD, .* itself, got .* SignSGD.*Pass one of"):
        TieredEmbeddingBag([TABLE], optimizer=SignSGD(lr=0.1))


# --- frozen rows -----------------------------------------------------------------------------------------------------


def freeze_itself(model: nn.ModuleDict, embeddings: TieredEmbeddingBag, on: bool) -> None:
    embeddings.requires_grad_(on)


def freeze_parent(model: nn.ModuleDict, embeddings: TieredEmbeddingBag, on: bool) -> None:
    model.requires_grad_(on)
    model["head"].requires_grad_()


def freeze_each_parameter(model: nn.ModuleDict, embeddings: TieredEmbeddingBag, on: bool) -> None:
    for weight in embeddings.parameters():
        weight.requires_grad = on


@pytest.mark.parametrize("freeze", [freeze_itself, freeze_parent, freeze_each_parameter])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adam(lr=0.1, weight_decay=0.1)], ids=["SGD", "Adam"])
def test_requires_grad_freezes_rows(freeze: Callable[..., None], optimizer: RowOptimizer) -> None:
    embeddings = TieredEmbeddingBag([TABLE], TierConfig(device_rows="60%"), optimizer=optimizer)
    model = nn.ModuleDict({"embeddings": embeddings, "head": nn.Linear(4, 1)})
    dense = torch.optim.Adam(model.parameters(), lr=0.1)

    def train() -> tuple[NDArray[Any], Tensor]:
        for planned in embeddings.look_ahead([BATCH] * 3, depth=2):
            loss = model["head"](embeddings.stack(planned).flatten(1)).sum()
            dense.zero_grad()
            loss.backward()
            embeddings.optimizer.clip_grad_norm_(1.0, model.parameters())
            dense.step()
            embeddings.step()
        arrays = embeddings.rows.state_arrays()
        kept = [array.ravel() for name, array in arrays.items() if name.endswith((".weights", ".state"))]
        return np.concatenate(kept), model["head"].weight.detach().clone()

    moved, head = train()
    freeze(model, embeddings, False)
    frozen, later = train()
    assert np.array_equal(frozen, moved) and not torch.equal(later, head)
    with torch.enable_grad():
        assert not embeddings(embeddings.read(BATCH))["t"].requires_grad
    freeze(model, embeddings, True)
    assert not np.array_equal(train()[0], frozen)


def test_the_rate_of_a_table_cannot_change_silently() -> None:
    table = TableConfig(name="t", num_embeddings=9, embedding_dim=4)
    with TieredEmbeddingBag([table]), pytest.raises(ValidationError, match="frozen"):
        table.lr_scale = 0.0


# --- gradients of several batches ------------------------------------------------------------------------------------


def test_gradients_of_several_batches_are_refused_with_advice() -> None:
    embeddings = TieredEmbeddingBag([TABLE], optimizer=SGD(lr=0.1))

    def train() -> None:
        for number, planned in enumerate(embeddings.look_ahead([BATCH] * 4)):
            (embeddings(planned)["t"].sum() / 2).backward()
            if number % 2:
                embeddings.step()

    with pytest.raises(ConfigError, match=r"expected step\(\) or discard\(\).*accumulate.*grad_scale=1 / n"):
        train()


def test_dense_weights_accumulate_while_rows_step_in_every_batch() -> None:
    """`grad_scale=1 / n` undoes the division by n, so rows train as they would without accumulation."""

    def trained(count: int) -> NDArray[Any]:
        embeddings = TieredEmbeddingBag([TABLE], optimizer=SGD(lr=0.5))
        for planned in embeddings.look_ahead([BATCH] * 4):
            (embeddings(planned)["t"].pow(2).sum() / count).backward()
            embeddings.step(grad_scale=1 / count)
        return embeddings.rows.table_weights("t")

    assert np.array_equal(trained(1), trained(4))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_gradients_cannot_have(scale: float) -> None:
    embeddings = TieredEmbeddingBag([TABLE], optimizer=SGD(lr=0.1))
    for planned in embeddings.look_ahead([BATCH]):
        embeddings(planned)["t"].sum().backward()
        with pytest.raises(ConfigError, match="grad_scale: expected a finite number above 0"):
            embeddings.step(grad_scale=scale)
        embeddings.discard()
