"""A stand-in for a CUDA graph on the CPU: torch operations are recorded, and done again on the same memory.

As with the original, Python runs while it records and never again; what it recorded reads and writes fixed memory;
nothing is computed while it records (what it wrote is filled with NaN); and what is no operation of the device, such as
a kernel of numba, is not in it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """See the module. `waits`: operations that a capture refuses, as the host would wait in them."""

    waits = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.recorded: list[tuple[Any, Any, Any, Any]] = []
        self.warmed_up = 0

    def warm_up(self, work: Callable[[], object]) -> None:
        self.warmed_up += 1
        work()

    def record(self, work: Callable[[], object]) -> None:
        assert self.warmed_up == 1 and not self.recorded
        with self:
            work()
        made = {one.untyped_storage().data_ptr(): one for one in self._made()}
        for one in made.values():
            if one.is_floating_point():
                one.fill_(torch.nan)

    def _made(self) -> list[Tensor]:
        """New memory, in the order in which it was made."""
        known: set[int] = set()
        found = []
        for _, arguments, options, results in self.recorded:
            known |= {one.untyped_storage().data_ptr() for one in _tensors((arguments, options))}
            for one in _tensors(results):
                if one.untyped_storage().data_ptr() not in known:
                    found.append(one)
                    known.add(one.untyped_storage().data_ptr())
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.waits:
            raise RuntimeError("operation not permitted\nand more lines")
        found = func(*args, **(kwargs or {}))
        self.recorded.append((func, args, kwargs or {}, found))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, results in self.recorded:
            for old, new in zip(_tensors(results), _tensors(func(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():  # no view, not in place
                    old.copy_(new)


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
