"""`TrainingLoop`: a loop that a guard can copy. `Fork`: a copy that skips nothing.

`RunLoop` is the loop of a run; `adaptive.Guard` has one for custom loops. The rows of a fork are always on the host:
placement does not change the numbers, and the fork takes no device memory. Accumulated updates of the run are applied
to the fork's rows.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import TierConfig
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.tasks import first_label
from adaptive.policy import Policy, RowStats
from adaptive.training.components import Components
from adaptive.training.evaluation import evaluating, logits_of
from adaptive.training.guard.account import SkipCounts
from adaptive.training.guard.judge import Evidence, compare
from adaptive.training.guard.stream import NumberedBatches
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.trainer import Trainer


class TrainingLoop(ABC):
    """Tables and the parts that are trained with them, such as a model and its optimizer.

    Attributes:
        embeddings: the tables.
        parts: objects that training changes: torch modules, optimizers, and others with `state_dict` and
            `load_state_dict`. They may refer to each other and to the tables.
    """

    def __init__(self, embeddings: TieredEmbeddingBag, parts: tuple[Any, ...]) -> None:
        self.embeddings, self.parts = embeddings, parts

    @abstractmethod
    def train(self, batch: Batch, step: int) -> None:
        """Train a batch without look-ahead; `step`: number of batches trained before it."""

    @abstractmethod
    def logits(self, planned: Planned) -> Tensor:
        """Logits (B,) of a batch for evaluation."""

    def copied(self, policy: Policy, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return an independent copy under another policy, with its rows in host memory.

        Args:
            arrays: `state_arrays` of the tables.
        """
        embeddings = _on_host(self.embeddings, policy)
        embeddings.rows.load_state_arrays(arrays)
        rows: dict[int, Any] = {id(self.embeddings): embeddings, id(self.embeddings.optimizer): embeddings.optimizer}
        loop = copy.copy(self)
        loop.embeddings, loop.parts = (
            embeddings,
            copy.deepcopy(self.parts, rows),
        )  # refers to the copied tables
        return loop

    def take_over(self, source: "TrainingLoop") -> None:
        """Take the values of a copy between two steps; the copy remains usable."""
        self.embeddings.rows.overwrite(source.embeddings.rows.state_arrays())
        for part, copied in zip(self.parts, source.parts, strict=True):
            if part is self.embeddings or part is self.embeddings.optimizer:
                continue
            if isinstance(part, nn.Module):
                _take_values(part, copied)
            else:
                part.load_state_dict(copy.deepcopy(copied.state_dict()))

    @property
    def modules(self) -> list[nn.Module]:
        """The parts that are modules."""
        return [part for part in self.parts if isinstance(part, nn.Module)]

    @property
    def num_bytes(self) -> int:
        """Bytes of the dense weights."""
        weights = {id(weight): weight for module in self.modules for weight in module.parameters()}
        return sum(weight.nbytes for weight in weights.values())


def _on_host(embeddings: TieredEmbeddingBag, policy: Policy) -> TieredEmbeddingBag:
    """New tables on the host with equal initial values and optimizer, without skipping."""
    outline = embeddings.runtime.outline
    tier = TierConfig(device=outline.tier.device, device_rows="0", policy_timeout_s=0)
    on_host = TieredEmbeddingBag(
        outline.tables,
        tier,
        policy=policy,
        optimizer=outline.optimizer,
        table_optimizers=outline.table_optimizers,
        seed=outline.seed,
    )
    on_host.optimizer.lr = embeddings.optimizer.lr
    return on_host


def _take_values(part: nn.Module, copied: nn.Module) -> None:
    """Copy weights and buffers in place. `state_dict` would include the rows of tables inside."""
    with torch.no_grad():
        for value, source in zip(_values(part), _values(copied), strict=True):
            value.copy_(source)


def _values(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


class RunLoop(TrainingLoop):
    """The loop of a run, trained by `Trainer`."""

    def __init__(self, components: Components) -> None:
        super().__init__(components.embeddings, (components.model, components.optimizer))
        self._tables = components.tables
        self._trainer: Trainer | None = None

    @property
    def components(self) -> Components:
        model, optimizer = self.parts
        return Components(self._tables, self.embeddings, model, optimizer)

    def copied(self, policy: Policy, arrays: Mapping[str, NDArray[Any]]) -> Self:
        loop = super().copied(policy, arrays)
        loop._trainer = Trainer(loop.embeddings, *loop.parts, recorder=_StepCounter(loop.embeddings))
        return loop

    def train(self, batch: Batch, step: int) -> None:
        assert self._trainer is not None, "only copies are trained here"
        self._trainer.recorder.steps = step  # dropout masks follow from the step
        self._trainer.train([batch], depth=0)

    def logits(self, planned: Planned) -> Tensor:
        return first_label(logits_of(self.embeddings, self.parts[0], planned))


class _StepCounter(Recorder):
    """Counts steps and records nothing."""

    def step(self, *of_batch: object) -> None:
        self.steps += 1


def concatenated(logits: Sequence[Tensor]) -> NDArray[np.float32]:
    """Logits (n,) of all batches on the host."""
    return np.concatenate([np.zeros(0, np.float32), *(tensor.float().cpu().numpy() for tensor in logits)])


class Fork:
    """A copy of a run that skips nothing, trained in the same thread.

    Attributes:
        trained: the copied loop.
        num_bytes: bytes of its rows, their state and the dense weights.
    """

    def __init__(self, run: TrainingLoop, start: int) -> None:
        """`start`: number of the next step; dropout masks follow from it."""
        arrays = run.embeddings.rows.state_arrays()
        self.trained = run.copied(_OnHost(), arrays)
        self._step = start
        self.num_bytes = self.trained.num_bytes + sum(array.nbytes for array in arrays.values())

    def train(self, batch: Batch) -> None:
        """Train one batch without skipping; raise NonFiniteError as `Trainer` does."""
        with _own_random_numbers():
            self.trained.train(batch, self._step)
        self._step += 1

    def overwrite(self, run: TrainingLoop) -> None:
        """Give the run the fork's values; the fork remains usable."""
        run.take_over(self.trained)

    def close(self) -> None:
        self.trained.embeddings.close()


def predict(trained: TrainingLoop, batches: Sequence[Batch]) -> NDArray[np.float32]:
    """Logits (n,) of the first label for all samples; nothing is moved, counted or trained."""
    with _own_random_numbers(), torch.no_grad(), ExitStack() as stack:
        for module in trained.modules:
            stack.enter_context(evaluating(module))
        return concatenated([trained.logits(trained.embeddings.read(batch)) for batch in batches])


def _own_random_numbers() -> AbstractContextManager[None]:
    """Restore torch's random state afterwards: forks do not change the run's numbers."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


class _OnHost(Policy):
    misses = "host"
    device_rows = "0"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))


class Pair:
    """A run and its fork, trained on the same batches and then compared. Close it.

    Attributes:
        start: batch at which both were equal.
        skip_counts: counts of the run's skipped work at `start`.
        trained, judged: numbers of batches that the fork has trained, and that both have predicted.
    """

    def __init__(self, run: TrainingLoop, start: int, skip_counts: SkipCounts) -> None:
        self.start, self.skip_counts = start, skip_counts
        self.trained = self.judged = 0
        self._run, self._fork = run, Fork(run, start)
        self._place = start

    @property
    def num_bytes(self) -> int:
        """Bytes of the fork."""
        return self._fork.num_bytes

    def train_until(self, place: int, stream: NumberedBatches) -> None:
        """Train the fork on all batches before `place`; raise NonFiniteError as `Trainer` does."""
        while self._place < place:
            batch = stream.get(self._place)
            assert batch is not None, self._place
            self._fork.train(batch)
            self._place += 1
            self.trained += 1

    def compare(self, stream: NumberedBatches, num_samples: int) -> Evidence | None:
        """Compare both on the next samples; None if there are too few."""
        batches = stream.coming(self._place, num_samples)
        self.judged += len(batches)
        if not batches:
            return None
        labels = np.concatenate([batch.labels for batch in batches])
        return compare(predict(self._run, batches), predict(self._fork.trained, batches), labels)

    def undo(self, skip_counts: SkipCounts) -> None:
        """Give the run the fork's values; both continue from there."""
        self._fork.overwrite(self._run)
        self.start, self.skip_counts = self._place, skip_counts

    def close(self) -> None:
        self._fork.close()
