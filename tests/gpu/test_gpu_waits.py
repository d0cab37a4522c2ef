"""A training step never waits for the device; `Trainer.step` alone does once, for loss and gradients.

The device tier takes the memory that is configured.
"""

import gc
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.gpu_helpers import Running, Training, assert_same, reading_is_allowed, waiting_is_an_error

import adaptive.training.dense_graph
from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import NonFiniteError
from adaptive.optim import SGD, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policies.device import Device
from adaptive.policies.lfu import LFU
from adaptive.policies.lru import LRU
from adaptive.policy import Policy
from adaptive.training.components import FUSED_ADAGRAD
from adaptive.training.dense_graph import CudaGraphs
from adaptive.training.trainer import Trainer

pytestmark = pytest.mark.gpu

WARM_UP = 4  # steps in which kernels are compiled, buffers made


@pytest.mark.parametrize("optimizer", [SGD(), RowwiseAdagrad(), Adam()], ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize(("policy", "lookups"), [(LRU, "host"), (LFU, "host"), (Device, "host"), (LRU, "device")])
def test_no_host_waits_in_a_step(device: str, policy: type[Policy], lookups: str, optimizer: RowOptimizer) -> None:
    """Nor does the look-ahead thread, except for the events that it waits for on purpose."""
    training = Training(device, policy, optimizer, lookups=lookups)
    running = training.open()
    with running.embeddings:
        steps = running.train(training.batches(), training.depth)
        advance(steps, WARM_UP)
        with waiting_is_an_error(device):
            done = sum(1 for _ in steps)
    assert done == training.num_batches - WARM_UP


def test_inputs_of_samples_arrive_without_a_wait(device: str) -> None:
    """They come with the plans, and a loop may keep them."""
    training = Training(device, LRU, RowwiseAdagrad())
    random = np.random.default_rng(0)
    batches = [
        replace(batch, extras={"stars": random.integers(0, 5, batch.num_samples)}) for batch in training.batches()
    ]
    received = []
    with training.open().embeddings as embeddings:
        for planned in embeddings.look_ahead(batches, depth=training.depth):
            with waiting_is_an_error(device) if planned.number >= WARM_UP else nullcontext():
                received.append((planned.dense, planned.labels, planned.extras["stars"]))
            embeddings.discard()
    for batch, tensors in zip(batches, received, strict=True):
        for tensor, array in zip(tensors, (batch.dense, batch.labels, batch.extras["stars"]), strict=True):
            assert np.array_equal(tensor.cpu().numpy(), array)


def reads_of(trainer: Trainer, training: Training, batches: list[Batch]) -> int:
    """Count reads of the device by the host in the steps after warm-up; other waits are errors."""
    look_ahead = trainer.embeddings.look_ahead(batches, depth=training.depth)
    for _ in range(WARM_UP):
        trainer.step(next(look_ahead))
    with waiting_is_an_error(training.device), reading_is_allowed(training.device) as reads:
        for planned in look_ahead:
            trainer.step(planned)
    return len(reads)


@pytest.mark.smoke
@pytest.mark.parametrize("dense", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_a_step_alone_waits_once(device: str, dense: type[torch.optim.Optimizer]) -> None:
    training = Training(device, LRU, RowwiseAdagrad())
    running = training.open()
    with running.embeddings as embeddings:
        trainer = Trainer(embeddings, running.model, dense(running.model.parameters(), lr=0.01))  # type: ignore[call-arg]
        assert reads_of(trainer, training, training.batches()) == training.num_batches - WARM_UP


@pytest.mark.parametrize("dense", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam])
def test_training_waits_in_no_step(device: str, dense: type[torch.optim.Optimizer]) -> None:
    skip_if_not_fused(device, dense)
    training = Training(device, LRU, RowwiseAdagrad(), num_batches=45)  # two intervals of records
    running = training.open()
    with running.embeddings as embeddings, ExitStack() as waiting:
        trainer = Trainer(embeddings, running.model, dense(running.model.parameters(), lr=0.01, fused=True))  # type: ignore[call-arg]

        def after_step() -> None:
            if trainer._launched == WARM_UP:
                waiting.enter_context(waiting_is_an_error(device))

        assert trainer.train(training.batches(), depth=training.depth, after_step=after_step) == 45


@pytest.mark.parametrize(
    "dense", [torch.optim.SGD, pytest.param(torch.optim.Adagrad, marks=pytest.mark.smoke), torch.optim.Adam]
)
@pytest.mark.parametrize("bf16", [False, True])
def test_a_graph_gives_the_bits_of_its_operations(
    device: str, dense: type[torch.optim.Optimizer], bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_if_not_fused(device, dense)
    training, results = Training(device, LRU, RowwiseAdagrad(), bf16=bf16, num_batches=20), []
    batches = training.batches()
    batches[6] = batches[6].take(np.arange(20))
    for graphed in (True, False):
        with monkeypatch.context() as patch:
            if not graphed:
                patch.setattr(adaptive.training.dense_graph, "graphs_of", lambda device: None)
            running = training.open()
            with running.embeddings as embeddings:
                optimizer = dense(running.model.parameters(), lr=0.01, fused=True)  # type: ignore[call-arg]
                rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
                trainer = Trainer(embeddings, running.model, optimizer)
                trainer.train(batches, depth=training.depth, after_step=rates.step)
                assert (trainer._dense_step._graph is not None) == (graphed and device == "cuda")
                running.losses.append(torch.tensor(trainer.recorder.loss))
                results.append(running.numbers())
    assert_same(*results)


def skip_if_not_fused(device: str, dense: type[torch.optim.Optimizer]) -> None:
    if device == "cuda" and dense is torch.optim.Adagrad and torch.__version__ < FUSED_ADAGRAD:
        pytest.skip(f"needs torch {FUSED_ADAGRAD}, whose Adagrad is fused on a GPU")


@pytest.mark.smoke
def test_a_graph_takes_the_memory_that_is_looked_for(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no recording runs out of it."""
    if device != "cuda":
        pytest.skip("nothing is recorded without a GPU")
    looked_for, taken = [], []

    class Noted(CudaGraphs):
        def warm_up(self, work: Callable[[], object]) -> int:
            looked_for.append(2 * super().warm_up(work))
            return looked_for[0] // 2

        def record(self, work: Callable[[], Any]) -> Any:
            before = torch.cuda.memory_reserved()
            result = super().record(work)
            taken.append(torch.cuda.memory_reserved() - before)
            return result

    monkeypatch.setattr(adaptive.training.dense_graph, "graphs_of", lambda device: Noted())
    training = Training(device, LRU, RowwiseAdagrad())
    running = training.open()
    with running.embeddings as embeddings:
        optimizer = torch.optim.Adam(running.model.parameters(), fused=True)
        Trainer(embeddings, running.model, optimizer).train(training.batches())
    assert 0 < taken[0] <= looked_for[0]


@pytest.mark.smoke
def test_a_bad_loss_changes_nothing_that_was_trained_before(device: str) -> None:
    training, results = Training(device, LRU, Adam()), []
    batches = training.batches()
    spoilt = replace(batches[7], dense=np.full_like(batches[7].dense, np.nan))
    for some in (batches[:7], [*batches[:7], spoilt, *batches[8:]]):
        running = training.open()
        with running.embeddings as embeddings:
            optimizer = torch.optim.Adam(running.model.parameters(), fused=True)
            trainer = Trainer(embeddings, running.model, optimizer)
            with nullcontext() if len(some) == 7 else pytest.raises(NonFiniteError, match="step 8: the loss is nan"):
                trainer.train(some, depth=training.depth)
            assert trainer.recorder.steps == 7
            running.losses.append(torch.zeros(()))
            state = {f"{n} {key}": value.cpu().numpy() for n, values in enumerate(optimizer.state.values())
                     for key, value in values.items()}  # fmt: skip
            values = {name: array for name, array in running.numbers().items() if not name.startswith("rows ")}
            saved = embeddings.rows.state_arrays()
            rows = np.zeros((2540, saved["rows0.state"].shape[1]), np.float32)
            rows[saved["rows0.changed"]] = saved[
                "rows0.state"
            ]  # rows of batches that were passed over count as changed
            results.append(values | state | {"row state": rows})
    assert_same(*results)


def advance(steps: "object", count: int) -> None:
    for _ in range(count):
        next(steps)  # type: ignore[call-overload]


@pytest.mark.parametrize("optimizer", [SGD(), RowwiseAdagrad(), Adam()], ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize("size", ["64MB", "25%"])
def test_a_tier_takes_the_memory_that_is_configured(device: str, size: str, optimizer: RowOptimizer) -> None:
    tables = [TableConfig(name="t", num_embeddings=1_000_000, embedding_dim=64)]
    row_bytes = 4 * (64 + optimizer.state_width(64))
    configured = 64e6 if size == "64MB" else 0.25 * 1_000_000 * row_bytes
    gc.collect()
    before = taken(device)
    tier = TierConfig(device_rows=size, device=device)  # type: ignore[arg-type]
    with TieredEmbeddingBag(tables, tier, optimizer=optimizer, policy=LRU) as embeddings:
        memory = embeddings.statistics.memory()
        assert memory["device_weights"] + memory["device_state"] == pytest.approx(configured, rel=0.03)
        if device == "cuda":
            assert taken(device) - before == pytest.approx(configured, rel=0.03)


def taken(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def test_training_longer_takes_no_more_memory(device: str) -> None:
    training = Training(device, LRU, RowwiseAdagrad(), num_batches=15)
    running = training.open()
    with running.embeddings, closing(running.train(training.batches() * 4, training.depth)) as steps:
        peaks = [peak(device, running, steps) for _ in range(4)]
    assert peaks[3] <= 1.1 * peaks[1]


def peak(device: str, running: Running, steps: "object") -> int:
    """Most bytes allocated during 15 steps, without the losses."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    advance(steps, 15)
    running.losses.clear()
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0
