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
    return (
        is_fused(optimizer)
        and not isinstance(embeddings, ShardedEmbeddingBag)
        and embeddings.runtime.pipeline.takes_flags
    )


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """True if the optimizer's kernels read `found_inf`, and its rates are numbers."""
    groups = optimizer.param_groups
    supports = getattr(optimizer, "_step_supports_amp_scaling", False)
    return supports and all(group.get("fused") and not isinstance(group["lr"], Tensor) for group in groups)


@contextlib.contextmanager
def rates_as_on_the_device(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Round the rates of fused optimizers to float32: steps that wait have the bits of those that do not."""
    groups = optimizer.param_groups if is_fused(optimizer) else []
    with _using_rates(groups, [float(np.float32(group["lr"])) for group in groups]):
        yield


@contextlib.contextmanager
def _using_rates(groups: Sequence[dict[str, Any]], rates: Sequence[float | Tensor]) -> Iterator[None]:
    """Give parameter groups other learning rates, and their own ones back afterwards."""
    own = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    try:
        yield
    finally:
        for group, rate in zip(groups, own, strict=True):
            group["lr"] = rate


@dataclass(frozen=True)
class Judged:
    """What the host will look at: the numbers of a step, on the device, and whose they are.

    Attributes:
        numbers: loss, the largest absolute value of each gradient, logits (B,).
        weights, features: those with a gradient, in the order of `numbers`.
    """

    numbers: Tensor
    weights: Sequence[nn.Parameter]
    features: Sequence[str]


@dataclass(frozen=True)
class Launched:
    """A step on its way through the device.

    Attributes:
        name: of the step, for messages.
        batch: as it was trained.
        buffers, num_states: the model's buffers, and the number of the optimizer's states, before the step.
        numbers: waits for those of `judged`, whose own memory may have other values then.
    """

    name: str
    batch: Batch
    buffers: SavedBuffers
    num_states: int
    judged: Judged
    numbers: Callable[[], Floats]


class FlaggedSteps:
    """The steps of a training that are launched and not looked at, and their flag.

    Attributes:
        flag: () float32 on the device; 1 once a loss or gradient was not finite.
    """

    _launched = _looked_at = 0

    def __init__(self, embeddings: Embeddings, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.flag = torch.zeros((), device=embeddings.device)
        self._embeddings, self._model, self._optimizer = embeddings, model, optimizer
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # number of a step, what to do once it is due
        # Rates are tensors, so that a recorded step reads the current ones.
        self._rates = [torch.zeros((), device=embeddings.device) for _ in optimizer.param_groups]
        self._known_rates = [0.0] * len(self._rates)

    def start(self) -> None:
        """Begin a training."""
        self.flag.fill_(0)
        self._launched = self._looked_at = 0
        self._num_states = len(self._optimizer.state)

    @torch.no_grad()
    def judge(self, planned: Planned, loss: Tensor, logits: Tensor) -> Judged:
        """Set the flag unless loss and gradients are finite."""
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
        return Judged(torch.cat([checked, logits.reshape(-1).float()]), weights, features)

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Let the flag decide whether the optimizers inside change anything."""
        optimizers: list[Any] = [self._optimizer, self._embeddings.optimizer]
        groups = self._optimizer.param_groups
        for number, group in enumerate(groups):
            if group["lr"] != self._known_rates[number]:  # writing to the device is a launch
                self._rates[number].fill_(group["lr"])
                self._known_rates[number] = group["lr"]
        for optimizer in optimizers:
            optimizer.found_inf, optimizer.grad_scale = self.flag, None
        try:
            with _using_rates(groups, self._rates):
                yield
        finally:
            for optimizer in optimizers:
                del optimizer.found_inf, optimizer.grad_scale

    def add(
        self,
        name: str,
        batch: Batch,
        judged: Judged,
        before: tuple[SavedBuffers, int],
        record: Callable[[float, Tensor], None],
    ) -> None:
        """Add a step, and what to do with its loss and logits (B,) on the host. `before`: as in `Launched`."""
        numbers = self._embeddings.runtime.pipeline.to_host(judged.numbers)
        launched = Launched(name, batch, *before, judged, numbers)
        self._launched += 1
        self._waiting.append((self._launched, lambda: record(*self._results(launched))))

    def then(self, action: Callable[[], None]) -> None:
        """Call `action` once all steps so far are looked at."""
        self._waiting.append((self._launched, action))

    @property
    def in_flight(self) -> int:
        """Number of steps that the host has not looked at."""
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
        numbers, judged = launched.numbers(), launched.judged
        loss, sizes, logits = np.split(numbers, [1, 1 + len(judged.weights) + len(judged.features)])
        if not (np.isfinite(loss).all() and np.isfinite(sizes).all()):
            self._waiting.clear()
            restore(launched.buffers)
            known = launched.num_states if self._looked_at else self._num_states
            forget_states(self._optimizer, known)  # made by this step, a later one, or a recording
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
        weights, judged = launched.judged.weights, launched.judged
        parameters = [names[id(weight)] for weight, good in zip(weights, finite, strict=False) if not good]
        bad = {name for name, good in zip(judged.features, finite[len(weights) :], strict=True) if not good}
        features = [name for name in embeddings.features if name in bad]
        return explain_gradients(launched.name, batch, parameters=parameters, features=features)


def forget_states(optimizer: torch.optim.Optimizer, known: int) -> None:
    """Drop the state of all weights but the first `known`."""
    for weight in list(optimizer.state)[known:]:
        del optimizer.state[weight]


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
