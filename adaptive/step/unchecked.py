"""`UncheckedStep`: a step that updates before its loss and gradients are looked at, which happens one step later.

On a GPU whoever looks at a step's numbers between backward and update waits until the device has computed them, and the
device then waits for the next work. So the numbers are copied to the host behind the backward pass, and looked at when
the next step has asked for its own passes: by then they have come. What an error has to say of the batch is kept for
that long: the batch on the host, and its logits.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.embedding import TieredEmbeddingBag
from adaptive.errors import NonFiniteError
from adaptive.finite import UPDATED, bounds_of_gradients, explain_gradients, explain_loss
from adaptive.planned import Planned
from adaptive.telemetry.recorder import Recorder


@dataclass(frozen=True)
class Numbers:
    """What is looked at of a step, on the device.

    Attributes:
        values: (n,) the parts' losses, then bounds of gradients.
        parameters: (p,) the weights that the first of these bounds are of.
        features: (n - parts - p,) the features whose vectors the others are of.
    """

    values: Tensor
    parameters: tuple[str, ...]
    features: tuple[str, ...]


@dataclass(frozen=True)
class LearntPart:
    """A part of a batch, as far as it is needed later: its samples in the batch, and their logits."""

    first: int
    logits: Tensor


def total_loss(losses: Sequence[float]) -> float:
    """Of a batch, from its parts' shares."""
    total = 0.0
    for loss in losses:  # `sum` rounds otherwise
        total += loss
    return total


def numbers_of(losses: Sequence[Tensor], model: nn.Module, planned: Planned) -> Numbers:
    """After backward, without a wait: numbers that are finite exactly if the losses () of the parts and all gradients
    are."""
    dense = bounds_of_gradients(model)
    rows = [one for work in planned.works for one in work.gradient_bounds(planned.batch)]
    values = [*losses, *(bound for _, bound in (*dense, *rows))]
    return Numbers(torch.stack(values), tuple(name for name, _ in dense), tuple(name for name, _ in rows))


class UncheckedStep:
    """The latest step, until somebody looks.

    Args:
        name: `step 7`.
        batch: the whole of it.
        parts: those that were run one after the other.
        numbers: whose values are on their way.
        come: waits for them, if need be, and gives them.
        features: all there are, in the order in which errors name them.
    """

    def __init__(
        self,
        name: str,
        batch: Batch,
        parts: Sequence[LearntPart],
        numbers: Numbers,
        come: Callable[[], list[float]],
        features: Sequence[str],
    ) -> None:
        self._name, self._batch, self._parts, self._come = name, batch, tuple(parts), come
        self._bounded, self._known = (*numbers.parameters, *numbers.features), len(numbers.parameters)
        self._features = tuple(features)

    def look(self) -> float:
        """The loss of the batch.

        Raises:
            NonFiniteError: if it, or a gradient, is not finite. Tables and weights have been updated.
        """
        found = self._come()
        losses, bounds = found[: len(self._parts)], found[len(self._parts) :]
        for part, loss in zip(self._parts, losses, strict=True):
            if not math.isfinite(loss):
                raise explain_loss(
                    f"{self._name}: the loss is {loss}", self._of(part), logits=part.logits, pooled=None, model=None
                )
        if not all(map(math.isfinite, bounds)):
            raise self._about_gradients(bounds)
        return total_loss(losses)

    def _of(self, part: LearntPart) -> Batch:
        """The samples of a part."""
        if len(self._parts) == 1:
            return self._batch
        return self._batch.take(np.arange(part.first, part.first + len(part.logits)))

    def _about_gradients(self, bounds: Sequence[float]) -> NonFiniteError:
        bad = [number for number, bound in enumerate(bounds) if not math.isfinite(bound)]
        parameters = dict.fromkeys(self._bounded[number] for number in bad if number < self._known)
        tables = {self._bounded[number] for number in bad if number >= self._known}
        features = [name for name in self._features if name in tables]
        return explain_gradients(self._name, self._batch, parameters=list(parameters), features=features, then=UPDATED)


class LaterChecks:
    """Looks at each step of a trainer when the next one has asked for its passes, or before anybody uses what it has
    changed."""

    def __init__(self, embeddings: TieredEmbeddingBag, recorder: Recorder) -> None:
        self._embeddings, self._recorder = embeddings, recorder
        self._step: UncheckedStep | None = None
        self._spoiled: str | None = None

    def expect(self, name: str, batch: Batch, parts: Sequence[LearntPart], numbers: Numbers) -> None:
        """A step updates without a look at its numbers, which begin to come; the one before is checked."""
        self._embeddings.refuse_spoiled(name)  # another trainer of these tables may have a step that is not
        come = self._embeddings.bring(numbers.values)
        self._step = UncheckedStep(name, batch, parts, numbers, come, self._embeddings.features)
        self._embeddings.check_before_use(self.check)

    def check(self) -> None:
        """Look at the latest step, if nobody has yet, and tell the recorder its loss.

        Raises:
            NonFiniteError: if it was not finite. Tables and model are refused from now on.
        """
        if self._step is None:
            return
        try:
            loss = self._step.look()
        except NonFiniteError as error:
            self._step, self._spoiled = None, str(error)
            self._embeddings.spoil(self._spoiled)
            raise
        self._step = None
        self._embeddings.check_before_use(None)
        if self._recorder.lacks_loss:  # or something failed before the step was recorded
            self._recorder.known_loss(loss)

    def refuse_spoiled(self) -> None:
        """
        Raises:
            NonFiniteError: if a step was not finite. Tables may have been loaded anew since; the model was not.
        """
        if self._spoiled is not None:
            raise NonFiniteError(
                "the model is spoiled by a step that was not finite; load it, its optimizer and the tables from a "
                f"checkpoint, and make a new Trainer. {self._spoiled}"
            )

    @contextlib.contextmanager
    def told_first(self) -> Iterator[None]:
        """If something fails inside while a step is unchecked, that step may be why: then it is what is told."""
        try:
            yield
        except Exception:
            with contextlib.suppress(RuntimeError):  # a device that has failed answers nothing any more
                self.check()
            raise
