"""The dense part as a CUDA graph: the bits of ordinary passes, without a wait, with rows moving beside it."""

from typing import Any

import numpy as np
import pytest
import torch
from gpu_helpers import Delays, Training, assert_same, waiting_is_an_error

from adaptive.errors import ConfigError
from adaptive.optim import Adam, RowwiseAdagrad
from adaptive.policies.lru import LRU
from adaptive.step.graphs import COMPARED
from adaptive.trainer import Trainer

pytestmark = pytest.mark.gpu

BEFORE = 2 + COMPARED  # steps until replays are believed


def trained(device: str, training: Training, *, dense_graphs: bool) -> dict[str, Any]:
    """All numbers; steps that only replay must not wait."""
    running = training.open()
    with running.embeddings as embeddings:
        trainer = Trainer(
            embeddings, running.model, running.optimizer, dense_graphs=dense_graphs, finite_check="a_step_later"
        )
        coming = embeddings.look_ahead(training.batches(), depth=training.depth)
        for _ in range(BEFORE):
            trainer.step(next(coming))
        with waiting_is_an_error(device):
            for planned in coming:
                trainer.step(planned)
        trainer.check()
        running.losses.append(torch.tensor(trainer.recorder.loss))
        if device == "cuda" and dense_graphs:
            assert trainer._graph is not None and trainer._graph.replays == training.num_batches - 1
        return running.numbers()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(), Adam()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("samples", [64, 200])
def test_a_graph_gives_the_bits_of_ordinary_passes(
    device: str, optimizer: RowwiseAdagrad | Adam, samples: int, bf16: bool
) -> None:
    training = Training(device, LRU, optimizer, "100%", samples=samples, bf16=bf16)
    expected = trained(device, training, dense_graphs=False)
    assert_same(trained(device, training, dense_graphs=True), expected)


def test_a_capture_beside_rows_that_move(device: str) -> None:
    """Delays in every stream, while the look-ahead thread asks for memory and copies."""
    training = Training(device, LRU, RowwiseAdagrad(), device_rows="30%", depth=3)
    expected = trained(device, training, dense_graphs=False)
    for seed in range(3):
        with Delays(device, seed).around_events():
            assert_same(trained(device, training, dense_graphs=True), expected)


def test_a_model_that_reads_the_device_is_refused(device: str) -> None:
    if device != "cuda":
        pytest.skip("only a GPU captures")
    training = Training(device, LRU, RowwiseAdagrad())
    running = training.open()
    forward = running.model.forward

    def reads(dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        logits = forward(dense, pooled)
        return logits * float(np.sign(logits.sum().item()))

    running.model.forward = reads  # type: ignore[method-assign]
    with running.embeddings as embeddings:
        trainer = Trainer(embeddings, running.model, running.optimizer, dense_graphs=True)
        with pytest.raises(ConfigError, match="something in its passes waits for the GPU"):
            trainer.train(training.batches(), depth=training.depth)
    expected = trained(device, training, dense_graphs=False)
    assert_same(trained(device, training, dense_graphs=True), expected)  # the failed capture has left nothing behind
