"""`Fork`: a copy of a run that skips nothing, in memory.

Its rows lie on the host, whatever the run's tiers are: placement does not change the numbers, and the device keeps its
memory. Gradients that wait in the run are applied to the fork's rows.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.build import Components, dense_optimizer
from adaptive.config import TierConfig, TrainConfig
from adaptive.embedding import TieredEmbeddingBag
from adaptive.evaluation import evaluating
from adaptive.guard.account import SkipCounts
from adaptive.guard.judge import Evidence, compare
from adaptive.guard.stream import NumberedBatches
from adaptive.optim import row_optimizer
from adaptive.policy import Policy, RowStats
from adaptive.telemetry.recorder import Recorder
from adaptive.trainer import Trainer


class Fork:
    """A copy of a run that skips nothing. Made between two steps of the run, and trained in the same thread.

    Attributes:
        components: what is trained.
        num_bytes: memory of its rows, their state and the dense weights.
    """

    def __init__(self, run: Components, config: TrainConfig) -> None:
        arrays = run.embeddings.state_arrays()
        tier = TierConfig(device=config.tier.device, device_rows="0", exact=config.tier.exact, policy_timeout_s=0)
        optimizer = row_optimizer(config.optimizer)
        embeddings = TieredEmbeddingBag(run.tables, tier, policy=_OnHost(), optimizer=optimizer, seed=config.seed)
        embeddings.load_state_arrays(arrays)
        model = copy.deepcopy(run.model)
        self.components = Components(run.tables, embeddings, model, dense_optimizer(config.dense_optimizer, model))
        self.components.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        self._trainer = Trainer(embeddings, model, self.components.optimizer, recorder=_Silent(embeddings))
        dense = sum(weight.nbytes for weight in model.parameters())
        self.num_bytes = dense + sum(array.nbytes for array in arrays.values())

    def train(self, batch: Batch) -> None:
        """One step, nothing left out.

        Raises:
            NonFiniteError: for a loss or gradient that is not finite.
        """
        with _own_random_numbers():
            self._trainer.train([batch], depth=0)

    def overwrite(self, run: Components) -> None:
        """Give the run the fork's values; the fork can go on."""
        run.embeddings.overwrite_rows(self.components.embeddings.state_arrays())
        run.model.load_state_dict(self.components.model.state_dict())
        run.optimizer.load_state_dict(copy.deepcopy(self.components.optimizer.state_dict()))

    def close(self) -> None:
        self.components.embeddings.close()


def predict(components: Components, batches: Sequence[Batch]) -> NDArray[np.float32]:
    """(n,) logits of the samples of all batches; nothing is moved, counted or trained."""
    logits = [np.zeros(0, np.float32)]
    with _own_random_numbers(), evaluating(components.model), torch.no_grad():
        for batch in batches:
            planned = components.embeddings.read(batch)
            logits.append(components.model(planned.dense, components.embeddings.stack(planned)).float().cpu().numpy())
    return np.concatenate(logits)


def _own_random_numbers() -> AbstractContextManager[None]:
    """Inside, random numbers are the fork's: the run draws the numbers that it would draw without it."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


class _OnHost(Policy):
    misses = "host"
    device_rows = "0"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))


class _Silent(Recorder):
    """Counts steps and remembers nothing of them."""

    def step(self, loss: float, logits: Tensor, labels: NDArray[np.float32]) -> None:
        self.steps += 1


class Pair:
    """A run and its fork, trained on the same batches and then compared. To be closed.

    Attributes:
        start: batch at which both were equal.
        left_out: what the run had left out until then.
        trained, judged: batches that the fork has trained, and that both have predicted.
    """

    def __init__(self, run: Components, config: TrainConfig, start: int, left_out: SkipCounts) -> None:
        self.start, self.left_out = start, left_out
        self.trained = self.judged = 0
        self._run, self._fork = run, Fork(run, config)
        self._place = start

    @property
    def num_bytes(self) -> int:
        """Memory of the fork."""
        return self._fork.num_bytes

    def train_until(self, place: int, stream: NumberedBatches) -> None:
        """Train the fork on all batches before `place`.

        Raises:
            NonFiniteError: if the fork cannot go on.
        """
        while self._place < place:
            batch = stream.get(self._place)
            assert batch is not None, self._place
            self._fork.train(batch)
            self._place += 1
            self.trained += 1

    def compare(self, stream: NumberedBatches, num_samples: int) -> Evidence | None:
        """Compare the two on the next samples, which neither has trained on."""
        batches = stream.coming(self._place, num_samples)
        self.judged += len(batches)
        if not batches:
            return None
        labels = np.concatenate([batch.labels for batch in batches])
        return compare(predict(self._run, batches), predict(self._fork.components, batches), labels)

    def undo(self, left_out: SkipCounts) -> None:
        """The run takes over the fork's values; both start again from there."""
        self._fork.overwrite(self._run)
        self.start, self.left_out = self._place, left_out

    def close(self) -> None:
        self._fork.close()
