"""CUDA graphs, and which models can be captured in one: those whose passes depend on inputs and weights alone."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from adaptive.errors import ConfigError
from adaptive.models.layers.dropout import Dropout

HINT: Final = "set dense_graphs=false"


class Graph(Protocol):
    """Work of a device that is recorded once and replayed."""

    def warm_up(self, work: Callable[[], object]) -> None:
        """Do the work as it will be recorded, but do not record it."""

    def record(self, work: Callable[[], object]) -> None:
        """Record the work, which is not done. Memory that it takes stays its own."""

    def replay(self) -> None:
        """Do the work on what lies in the recorded memory now, behind what was asked for before."""


class CudaGraph:
    """A CUDA graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graph = torch.cuda.CUDAGraph()
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def warm_up(self, work: Callable[[], object]) -> None:
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            work()
        current.wait_stream(self._side)

    def record(self, work: Callable[[], object]) -> None:
        # The look-ahead thread asks for memory and copies meanwhile, on streams of its own: that is its own affair.
        # torch's own stream for captures is of the device that was current when it was made.
        with torch.cuda.graph(self._graph, stream=self._side, capture_error_mode="thread_local"):
            work()

    def replay(self) -> None:
        self._graph.replay()


def graph_for(device: torch.device) -> Graph | None:
    """A new graph; None where the device has none."""
    return CudaGraph(device) if device.type == "cuda" else None


class Changeable:
    """What passes may change besides gradients, as it is now."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._tensors = {name: (one, one.detach().clone()) for name, one in _tensors(model).items()}
        self._plain = _plain_values(model)
        self._random = _random_numbers(device)

    @torch.no_grad()
    def put_back(self) -> str:
        """Tensors and generators as they were; says what was not, or nothing."""
        now = _tensors(self._model)
        changed = [
            name
            for name, (one, value) in self._tensors.items()
            if now.get(name) is not one or not torch.equal(one, value)
        ]
        for one, value in self._tensors.values():
            one.copy_(value)
        random = _random_numbers(self._device)
        torch.set_rng_state(self._random[0])
        if len(self._random) > 1:
            torch.cuda.set_rng_state(self._random[1], self._device)
        if changed:
            return f"the values of {changed[0]}"
        if not all(map(torch.equal, random, self._random)):
            return "torch's random numbers"
        others = [name for name, value in _plain_values(self._model).items() if self._plain.get(name) != value]
        return f"attribute {others[0]}" if others else ""


def _random_numbers(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Buffers, and tensors that are attributes of modules."""
    found = dict(model.named_buffers())
    for place, module in model.named_modules():
        own = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
        found |= {f"{place}.{name}".lstrip("."): value for name, value in own.items()}
    return found


def _plain_values(model: nn.Module) -> dict[str, Any]:
    """Attributes of modules that are plain values, and sizes of those that hold several."""
    found: dict[str, Any] = {}
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, int | float | str | tuple | None):
                found[f"{place}.{name}".lstrip(".")] = repr(value)
            elif isinstance(value, list | set | dict) and not name.startswith("_"):
                found[f"{place}.{name}".lstrip(".")] = len(value)
    return found


def unfit(why: str) -> ConfigError:
    """The error for a model that cannot be captured."""
    return ConfigError(f"dense_graphs: the model cannot be captured as a graph: {why}; {HINT}")


def refuse_unfit(model: nn.Module) -> None:
    """Check, on any device, that nothing about a model says that its passes depend on the host, or change buffers.

    Raises:
        ConfigError: if something does.
    """
    for name, module in model.named_modules():
        where = f"{type(module).__name__}{f' {name}' if name else ''}"
        if (isinstance(module, Dropout) and module.share) or _draws(module):
            raise unfit(f"{where} draws other numbers in every step, which the host chooses")
        if getattr(module, "mixes_samples", False) or getattr(module, "track_running_stats", False):
            raise unfit(f"{where} changes its running statistics in the forward pass")
        if _has_hooks(module, ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")):
            raise unfit(f"{where} has hooks, which a replay does not call")
    for name, weight in model.named_parameters():
        if _has_hooks(weight, ("_backward_hooks", "_post_accumulate_grad_hooks")):
            raise unfit(f"weight {name} has hooks, which a replay does not call")


def _draws(module: nn.Module) -> bool:
    known = (nn.modules.dropout._DropoutNd, nn.RReLU)
    return isinstance(module, known) and bool(getattr(module, "p", 1.0))


def _has_hooks(one: object, names: Sequence[str]) -> bool:
    return any(getattr(one, name, None) for name in names)
