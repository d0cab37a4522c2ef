"""`DenseGraph`: forward and backward of the dense part as one CUDA graph, for batches of one shape.

A small batch's dense part is a hundred small kernels, and a GPU waits for each to be launched. A graph is launched
once. What it does was recorded when it was captured: from which memory to which, and nothing that Python did meanwhile.

    captured once    inputs in memory of their own -> logits, loss, gradients in memory of their own
    every batch      inputs are copied there, the graph is replayed, logits and loss are copied out

Gradients are handed on as they lie, since they are used up before the next replay. Batches of another shape take the
ordinary way. So does one in parts: gradients of its parts are sums, and a replay overwrites what it gave before.

A model whose passes depend on anything but inputs and weights would be wrong in silence. What can be told by looking at
it is refused; so is one that changed anything in the passes before the capture; and the first replays are compared with
ordinary passes, bit for bit.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.tasks import Tasks, log_losses
from adaptive.step import capture
from adaptive.step.capture import HINT, Changeable, Graph, refuse_unfit, unfit
from adaptive.system import is_out_of_memory

WARM_UP: Final = 3  # passes before the capture, as torch does: libraries choose algorithms and load kernels
COMPARED: Final = 3  # replays that are compared with ordinary passes
MOST_CAPTURES: Final = 8  # of one training: weights that are moved again and again are a mistake


class Inputs(NamedTuple):
    """Of a batch: dense inputs (B, n), vectors (B, F, D) or (B, sum of widths), labels (B,) or (B, T)."""

    dense: Tensor
    vectors: Tensor
    labels: Tensor

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple((tuple(one.shape), one.dtype) for one in self)

    def own(self) -> "Inputs":
        """Memory for inputs like these, with their values."""
        dense, vectors, labels = (one.detach().clone() for one in self)
        return Inputs(dense, vectors.requires_grad_(), labels)

    @torch.no_grad()
    def take(self, other: "Inputs") -> None:
        """The values of others of this shape."""
        for mine, theirs in zip(self, other, strict=True):
            mine.copy_(theirs)


@dataclass(frozen=True)
class Passes:
    """What forward and backward give: the loss (), logits, and gradients, None where nothing depends on them."""

    loss: Tensor
    logits: Tensor
    of_vectors: Tensor | None
    of_weights: tuple[tuple[nn.Parameter, Tensor | None], ...]

    def hand_on(self, vectors: Tensor) -> None:
        """Put the gradients where backward from the loss would have put them; `vectors` are those of the embeddings."""
        for weight, gradient in self.of_weights:
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        if self.of_vectors is not None:
            vectors.backward(self.of_vectors)  # type: ignore[no-untyped-call]

    @property
    def all(self) -> list[Tensor]:
        found = (self.loss, self.logits, self.of_vectors, *(gradient for _, gradient in self.of_weights))
        return [one for one in found if one is not None]


class DenseGraph:
    """Passes of a model by a graph, captured when a shape of batches comes for the second time in a row.

    Attributes:
        replays: so far.
    """

    def __init__(self, model: nn.Module, tasks: Tasks | None, device: torch.device) -> None:
        """
        Raises:
            ConfigError: for a model that cannot be captured, as far as that can be told by looking at it.
        """
        refuse_unfit(model)
        self.replays = 0
        self._model, self._tasks, self._device = model, tasks, device
        self._latest: tuple[Any, ...] = ()
        self._captures = 0
        self._captured: _Captured | None = None

    def passes(self, given: Inputs) -> Passes | None:
        """Forward and backward of a whole batch; None: go the ordinary way. Gradients are overwritten by the next call.

        Raises:
            ConfigError: for a model that does not do the same in a graph as without one. Nothing was updated.
        """
        if self._captured is not None and self._captured.place != self._place():
            self._captured = None  # weights have moved: the graph would read where they were
        if self._captured is None:
            again, self._latest = self._latest == given.shape, given.shape
            if not again:
                return None
            self._captured = self._capture(given)
        if self._captured is None or given.shape != self._captured.inputs.shape:
            return None
        return self._replayed(self._captured, given)

    def _replayed(self, captured: "_Captured", given: Inputs) -> Passes:
        captured.inputs.take(given)
        captured.graph.replay()
        self.replays += 1
        found = captured.passes
        if captured.left_to_compare:
            self._compare(found, given)
            captured.left_to_compare -= 1
        return Passes(found.loss.clone(), found.logits.clone(), found.of_vectors, found.of_weights)

    def _capture(self, given: Inputs) -> "_Captured | None":
        graph = capture.graph_for(self._device)
        if graph is None:
            return None
        if self._captures == MOST_CAPTURES:
            raise ConfigError(
                f"dense_graphs: the model's weights, its modes or torch's settings of products have changed "
                f"{MOST_CAPTURES} times since training began, and each change needs a new capture; {HINT}"
            )
        inputs, place = given.own(), self._place()
        self._warm_up(graph, inputs)
        made: list[Passes] = []
        try:
            graph.record(lambda: made.append(self._ordinary(inputs)))
        except RuntimeError as error:
            # Where something fails inside, ending the capture fails, too.
            first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            if is_out_of_memory(first):
                raise first from None
            raise unfit(
                "something in its passes waits for the GPU or copies from ordinary memory: "
                + str(first).partition("\n")[0]
            ) from error
        self._captures += 1
        return _Captured(graph, inputs, made[0], place)

    def _ordinary(self, inputs: Inputs) -> Passes:
        logits = self._model(inputs.dense, inputs.vectors)
        loss = log_losses(logits, inputs.labels, self._tasks, samples=len(inputs.labels))
        weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        first, *others = torch.autograd.grad(loss, [inputs.vectors, *weights], allow_unused=True)
        taken = {_memory(one) for one in (*self._model.parameters(), *inputs)}
        gradients = [_own(one, weight, taken) for one, weight in zip(others, weights, strict=True)]
        return Passes(loss.detach(), logits.detach(), first, tuple(zip(weights, gradients, strict=True)))

    def _warm_up(self, graph: Graph, inputs: Inputs) -> None:
        """Passes before the capture; what they change is put back, and refused."""
        before = Changeable(self._model, self._device)

        def passes() -> None:
            for _ in range(WARM_UP):
                self._ordinary(inputs)

        try:
            graph.warm_up(passes)
        finally:
            changed = before.put_back()
        if changed:
            raise unfit(f"its forward pass changes {changed}")

    def _compare(self, found: Passes, given: Inputs) -> None:
        expected = self._ordinary(given.own())
        for one, other in zip(found.all, expected.all, strict=True):
            same = (one == other) | (one.isnan() & other.isnan())
            if not bool(same.all()):
                off = float((one - other).abs().nan_to_num(nan=torch.inf).max())
                raise unfit(
                    f"replayed, its passes give other numbers than run anew, by up to {off:.3g}: they depend on more "
                    "than inputs and weights, do work that is not the GPU's, or round otherwise"
                )

    def _place(self) -> tuple[Any, ...]:
        """Where weights lie, and what else a graph has fixed."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        return (
            *((one.data_ptr(), one.requires_grad) for one in tensors),
            *(module.training for module in self._model.modules()),
            torch.backends.cuda.matmul.fp32_precision,
        )


def _own(gradient: Tensor | None, weight: Tensor, taken: set[int]) -> Tensor | None:
    """A gradient as backward leaves it with a weight: in memory of its own, laid out as the weight is. What autograd
    gives may be spread from fewer values, or be one tensor for two weights. `taken`: memory of others, grows."""
    if gradient is None:
        return None
    if gradient.stride() != weight.stride() or _memory(gradient) in taken:
        gradient = torch.empty_like(weight).copy_(gradient)
    taken.add(_memory(gradient))
    return gradient


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass
class _Captured:
    graph: Graph
    inputs: Inputs
    passes: Passes
    place: tuple[Any, ...]
    left_to_compare: int = COMPARED
