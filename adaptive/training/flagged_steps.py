"""Steps that do not wait for the device: a flag there stops all changes from the first bad batch on.

The device sets the flag if a loss or gradient is not finite, and never clears it. Optimizers read it as they read the
finding of `torch.amp.GradScaler`, so nothing changes any more, whenever the host looks. It looks at the numbers of each
step two steps later, when they have arrived.
"""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.arrays import Floats
from adaptive.batch import Batch
from adaptive.distributed.sharded_embedding_bag import Embeddings, ShardedEmbeddingBag
from adaptive.embeddings.planned_batch import Planned
from adaptive.errors import NonFiniteError
from adaptive.training.evaluation import vectors_of
from adaptive.training.finite import explain_gradients, explain_loss

LAG: Final = 2  # launched steps that the host does not look at: the device works on one while the next is launched

SavedBuffers = list[tuple[Tensor, Tensor]]


def may_be_flagged(embeddings: Embeddings, optimizer: torch.optim.Optimizer) -> bool:
    """True if rows and dense weights are updated by kernels that read a flag: torch's fused optimizers do."""
    fused = getattr(optimizer, "_step_supports_amp_scaling", False) and all(
        group.get("fused") for group in optimizer.param_groups
    )
    return fused and not isinstance(embeddings, ShardedEmbeddingBag) and embeddings.runtime.pipeline.takes_flags


@dataclass(frozen=True)
class Launched:
    """A step on its way through the device.

    Attributes:
        name: of the step, for messages.
        batch: as it was trained.
        weights: those with a gradient.
        features: those with gradients.
        buffers, num_states: the model's buffers, and the number of the optimizer's states, before the step.
        numbers: waits for the loss, the largest absolute value of each gradient, and the logits (B,).
    """

    name: str
    batch: Batch
    weights: Sequence[nn.Parameter]
    features: Sequence[str]
    buffers: SavedBuffers
    num_states: int
    numbers: Callable[[], Floats]


class FlaggedSteps:
    """The steps of one training that are launched and not looked at, and their flag.

    Attributes:
        flag: () float32 on the device; 1 once a loss or gradient was not finite.
    """

    def __init__(self, embeddings: Embeddings, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.flag = torch.zeros((), device=embeddings.device)
        self._embeddings, self._model, self._optimizer = embeddings, model, optimizer
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # number of a step, what to do once it is due
        self._launched = self._looked_at = 0

    @torch.no_grad()
    def send(self, name: str, planned: Planned, loss: Tensor, logits: Tensor, buffers: SavedBuffers) -> Launched:
        """Set the flag unless loss and gradients are finite; start to copy the step's numbers to the host."""
        weights = [weight for weight in self._model.parameters() if weight.grad is not None]
        # The largest values: sums of finite values may overflow. Many tensors at once, as torch's clipping does it.
        gradients = [cast(Tensor, weight.grad) for weight in weights]
        sizes = list(torch._foreach_norm(gradients, math.inf, torch.float32)) if weights else []
        features, of_features = [], list[Tensor]()
        for work in planned.works:
            names, largest = work.largest_gradients(planned.batch)
            features += names
            of_features += largest
        checked = torch.cat([loss.reshape(1).float(), *(size.reshape(1) for size in sizes), *of_features])
        torch.maximum(self.flag, (checked * 0).sum().ne(0).float(), out=self.flag)  # 0 * NaN and 0 * infinity are NaN
        numbers = self._embeddings.runtime.pipeline.to_host(torch.cat([checked, logits.reshape(-1).float()]))
        return Launched(name, planned.batch, weights, features, buffers, len(self._optimizer.state), numbers)

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Let the flag decide whether the optimizers inside change anything."""
        optimizers: list[Any] = [self._optimizer, self._embeddings.optimizer]
        for optimizer in optimizers:
            optimizer.found_inf, optimizer.grad_scale = self.flag, None
        try:
            yield
        finally:
            for optimizer in optimizers:
                del optimizer.found_inf, optimizer.grad_scale

    def add(self, launched: Launched, record: Callable[[float, Tensor], None]) -> None:
        """Add a step, and what to do with its loss and logits (B,) on the host."""
        self._launched += 1
        self._waiting.append((self._launched, lambda: record(*self._results(launched))))

    def then(self, action: Callable[[], None]) -> None:
        """Call `action` once all steps so far are looked at."""
        self._waiting.append((self._launched, action))

    def __len__(self) -> int:
        return self._launched - self._looked_at

    def look(self, lag: int = 0) -> None:
        """Look at all steps but the last `lag`.

        Raises:
            NonFiniteError: for the first whose loss or gradients are not finite. No step from it on changed anything.
        """
        while self._waiting and self._waiting[0][0] <= self._launched - lag:
            self._waiting.popleft()[1]()

    def _results(self, launched: Launched) -> tuple[float, Tensor]:
        """Wait for a step; return its loss and logits (B,)."""
        numbers, num_weights = launched.numbers(), len(launched.weights)
        loss, sizes, logits = np.split(numbers, [1, 1 + num_weights + len(launched.features)])
        if not (np.isfinite(loss).all() and np.isfinite(sizes).all()):
            self._waiting.clear()
            restore(launched.buffers)
            for weight in list(self._optimizer.state)[launched.num_states :]:  # made by this step or a later one
                del self._optimizer.state[weight]
            raise self._error(launched, float(loss[0]), np.isfinite(sizes), torch.from_numpy(logits))
        self._looked_at += 1
        return float(loss[0]), torch.from_numpy(logits)

    def _error(self, launched: Launched, loss: float, finite: Any, logits: Tensor) -> NonFiniteError:
        embeddings, batch = self._embeddings, launched.batch
        if not math.isfinite(loss):
            pooled = None
            if not embeddings.runtime.pipeline.has_keys:  # batches in flight may have given away the rows of keys
                with torch.no_grad():
                    pooled = vectors_of(embeddings, self._model, embeddings.read(batch))
            name = f"{launched.name}: the loss is {loss}"
            return explain_loss(name, batch, logits=logits, pooled=pooled, model=self._model)
        names = {id(weight): name for name, weight in self._model.named_parameters()}
        parameters = [names[id(weight)] for weight, good in zip(launched.weights, finite, strict=False) if not good]
        bad = {name for name, good in zip(launched.features, finite[len(launched.weights) :], strict=True) if not good}
        features = [name for name in embeddings.features if name in bad]
        return explain_gradients(launched.name, batch, parameters=parameters, features=features)


def save_buffers(model: nn.Module) -> SavedBuffers:
    """Return the model's buffers (running statistics) with copies."""
    return [(buffer, buffer.clone()) for buffer in model.buffers()]


def restore(buffers: SavedBuffers) -> None:
    """Restore what `save_buffers` returned."""
    for buffer, value in buffers:
        buffer.copy_(value)


@contextlib.contextmanager
def restoring_on_error(buffers: SavedBuffers) -> Iterator[None]:
    """Restore buffers if the block fails."""
    try:
        yield
    except BaseException:
        restore(buffers)
        raise
