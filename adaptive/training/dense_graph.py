"""The dense part of a step as one CUDA graph: recorded once, replayed for every batch of its size.

Launching the 80 operations of a dense part takes the host longer than a GPU needs for them in TF32. The graph has
forward, loss, backward, the flag and the optimizer; its inputs, the gradients of the vectors and the results are in
memory of its own. It is recorded before the look-ahead starts, on zeros and with the flag set, so that the passes to
warm up change nothing. Batches of other sizes, or with weights, run the same operations one by one: the bits are equal.

Models that a graph cannot repeat run that way, too: with dropout, whose seed belongs to the step, with buffers that
change, hooks, sequences or vectors that are not pooled, or a wait for the device. So do models whose graph would leave
too little memory. None of them is found by a recording that fails, after which torch 2.12 and older cannot allocate.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.distributed.sharded_embedding_bag import Embeddings
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import DeviceMemoryError
from adaptive.system import is_out_of_memory
from adaptive.training.flagged_steps import FlaggedSteps, Judged, forget_states, restore, save_buffers

WARM_UPS = 3  # passes in which kernels are compiled and workspaces allocated, as torch's documentation advises
LITTLE_MEMORY = "it would leave too little GPU memory"
Step = Callable[[Planned], Judged]
logger = logging.getLogger("adaptive.training")


class Graphs(Protocol):
    """What records and replays a device's operations."""

    def warm_up(self, work: Callable[[], object]) -> int:
        """Run `work` a few times; return the bytes of device memory that it takes, and a graph of it.

        Raises:
            RuntimeError: if it waits for the device, or memory runs out.
        """

    def free_bytes(self) -> int:
        """Return the bytes of device memory that are free after a warm-up."""

    def record(self, work: Callable[[], Judged]) -> tuple[Judged, Callable[[], None]]:
        """Return the result of `work`, and what runs it again in the same memory."""


class CudaGraphs:
    """CUDA's graphs."""

    def warm_up(self, work: Callable[[], object]) -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        mode = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(stream), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch calls the mode a prototype
                work()
                torch.cuda.set_sync_debug_mode("error")
                for _ in range(WARM_UPS - 1):
                    work()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            current.wait_stream(stream)
        # All of it is for this stream, which had no memory: a graph allocates the same for its own.
        return torch.cuda.max_memory_reserved() - before

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])

    def record(self, work: Callable[[], Judged]) -> tuple[Judged, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device meanwhile
            result = work()
        return result, graph.replay


def graphs_of(device: torch.device) -> Graphs | None:
    """Return what records a device's operations; None if nothing does."""
    return CudaGraphs() if device.type == "cuda" else None


@dataclass(frozen=True)
class DenseGraph:
    """A recorded step. `planned` has its inputs, `judged` its results, `leaves` the vectors of each group."""

    planned: Planned
    leaves: list[Tensor]
    judged: Judged
    run: Callable[[], None]
    embeddings: TieredEmbeddingBag
    optimizer: torch.optim.Optimizer
    pointers: list[int]
    settings: list[dict[str, Any]]

    @property
    def is_current(self) -> bool:
        """True if weights, optimizer state and settings are those of the recording, whose values may have changed."""
        return self.pointers == _pointers(self.optimizer) and self.settings == _settings(self.optimizer)

    def fits(self, planned: Planned) -> bool:
        """True if a batch has the size of the recording, and no weights."""
        own = self.planned.num_samples, self.planned.dense.shape, self.leaves[0].requires_grad
        of_batch = planned.num_samples, planned.dense.shape, self.embeddings.rows_anchor.requires_grad
        return (
            own == of_batch
            and not planned.batch.extras.keys() & {"weight"}
            and self.settings == _settings(self.optimizer)
        )

    def replay(self, planned: Planned) -> Judged:
        """Run the step on a batch; the results are valid until the next one."""
        planned.wait()  # for rows in flight: what follows does not wait for the host
        self.planned.dense.copy_(planned.dense)
        self.planned.labels.copy_(planned.labels)
        for work, leaf in zip(planned.works, self.leaves, strict=True):
            work.pool(out=leaf.detach())
        self.run()
        for work, leaf in zip(planned.works, self.leaves, strict=True):
            if leaf.grad is not None:
                self.embeddings.optimizer.take_gradients(planned, work, leaf.grad)
        return self.judged


class DenseStep:
    """Runs `step`, by a graph where one fits."""

    def __init__(self, embeddings: Embeddings, model: nn.Module, optimizer: torch.optim.Optimizer, step: Step) -> None:
        self._embeddings, self._model, self._optimizer, self._step = embeddings, model, optimizer, step
        self._graph: DenseGraph | None = None
        self._has_tried = False

    def __call__(self, planned: Planned) -> Judged:
        graph = self._graph
        run = self._step if graph is None or not graph.fits(planned) else graph.replay
        return run(planned)

    def record(self, batches: Iterable[Batch], flagged: FlaggedSteps) -> Iterable[Batch]:
        """Record the step for batches of the first one's size, unless it is; return all batches.

        Raises:
            DeviceMemoryError: if GPU memory runs out where it would without a graph.
        """
        graphs = graphs_of(self._embeddings.device)
        if graphs is None:
            return batches
        following = iter(batches)
        first = next(following, None)
        if isinstance(first, Batch) and (not self._has_tried or self._is_useless(first)):
            self._graph, self._has_tried = None, True  # the next one needs its memory
            with self._embeddings.runtime.pipeline.running_out("in recording a graph"), flagged.deciding():
                parts = cast(TieredEmbeddingBag, self._embeddings), self._model, self._optimizer
                self._graph = _record(*parts, first, self._step, flagged.flag, graphs)
        return () if first is None else chain([first], following)

    def _is_useless(self, batch: Batch) -> bool:
        """True if there is a graph, of smaller batches or other memory."""
        graph = self._graph
        return graph is not None and not (graph.is_current and batch.num_samples <= graph.planned.num_samples)


def _record(
    embeddings: TieredEmbeddingBag,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    step: Step,
    flag: Tensor,
    graphs: Graphs,
) -> DenseGraph | None:
    """Record `step` for batches like this one, or log why it cannot be.

    The caller lets `flag` decide about the update. Changes nothing but memory, and state that an optimizer creates.
    """
    if reason := _obstacle(model, optimizer):
        return _run_eagerly(reason)
    planned = embeddings.read(batch)
    planned.extras = {}
    leaves = [work.hold(requires_grad=embeddings.rows_anchor.requires_grad) for work in planned.works]
    planned.dense.zero_()
    planned.labels.zero_()
    if not all(len(leaf) for leaf in leaves):
        return _run_eagerly("vectors are not pooled")

    def work() -> Judged:
        for leaf in leaves:
            leaf.grad = None  # backward makes it again, in the memory of the graph
        return step(planned)

    buffers = save_buffers(model)
    flag.fill_(1)
    try:
        reason = _warm_up(graphs, work, optimizer)
        if any(not torch.equal(buffer, value) for buffer, value in buffers):
            reason = "buffers change in a forward pass"
        if reason:
            return _run_eagerly(reason)
        with contextlib.ExitStack() as stack:
            for group in optimizer.param_groups:
                if "capturable" in group:  # torch's Adam asks for it while a graph is recorded
                    stack.callback(group.update, capturable=group["capturable"])
                    group["capturable"] = True
            judged, run = graphs.record(work)
    finally:
        restore(buffers)
        flag.fill_(0)
    return DenseGraph(planned, leaves, judged, run, embeddings, optimizer, _pointers(optimizer), _settings(optimizer))


def _warm_up(graphs: Graphs, work: Callable[[], Judged], optimizer: torch.optim.Optimizer) -> str:
    """Run `work` a few times; return why it cannot be recorded, "" if it can."""
    num_states = len(optimizer.state)
    try:
        needed = graphs.warm_up(work)
    except (RuntimeError, DeviceMemoryError) as error:
        if "synchroniz" in str(error):
            return "an operation waits for the device"
        if not isinstance(error, DeviceMemoryError) and not is_out_of_memory(error):
            raise
        forget_states(optimizer, num_states)  # that of some weight may be incomplete
        return LITTLE_MEMORY
    # Twice: batches of other sizes and evaluations take about as much again.
    return LITTLE_MEMORY if 2 * needed > graphs.free_bytes() else ""


def has_dropout(model: nn.Module) -> bool:
    """True if a module draws random numbers in training."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules())


def _obstacle(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return why a graph cannot repeat a model's step, as far as its modules show; "" if it can."""
    modules = list(model.modules())
    if has_dropout(model):
        return "the model has dropout"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, name) for module in modules for name in hooks):
        return "modules have hooks"
    if any(weight._backward_hooks or weight._post_accumulate_grad_hooks for weight in model.parameters()):
        return "weights have hooks"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "the optimizer has hooks"
    if getattr(model, "takes_sequences", False):
        return "the model takes sequences"
    # torch's first step with momentum is another operation, and leaves memory without values if nothing may change.
    has_momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return "the optimizer has momentum" if has_momentum else ""


def _run_eagerly(reason: str) -> DenseGraph | None:
    logger.warning("the dense part runs without a CUDA graph: %s", reason)  # shown without any configuration
    return None


def _pointers(optimizer: torch.optim.Optimizer) -> list[int]:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = [value for weight in weights for value in optimizer.state[weight].values() if isinstance(value, Tensor)]
    return [tensor.data_ptr() for tensor in (*weights, *states)]


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return what a recording keeps: all settings but the rate, which is a tensor."""
    return [
        {k: v for k, v in group.items() if k not in ("params", "lr", "initial_lr")} for group in optimizer.param_groups
    ]
