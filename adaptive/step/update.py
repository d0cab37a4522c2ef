"""The update of dense weights, which is done wholly or not at all, and what a pass that fails leaves behind."""

import contextlib
from collections.abc import Iterator
from typing import Final

import torch
from torch import nn

from adaptive.system import running_out

# Most that one step takes anew, over the gradients' bytes: Adam its state (2, in its first step) and the square root of
# the second moment (1), Adagrad a root and a numerator (2), and one more for the rounding of the allocator.
UPDATE_ROOM: Final = 4


def require_room(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Make sure, without a wait, that a GPU has the memory which `update` takes; ordinary memory is not asked.

    Raises:
        torch.OutOfMemoryError: if it has not. Nothing was updated.
    """
    if device.type == "cpu":
        return
    groups = optimizer.param_groups
    gradients = [weight.grad for group in groups for weight in group["params"] if weight.grad is not None]
    # torch keeps what is freed here for the next to ask: the optimizer.
    torch.empty(UPDATE_ROOM * sum(gradient.nbytes for gradient in gradients), dtype=torch.uint8, device=device)


def update(optimizer: torch.optim.Optimizer) -> None:
    """One step of the optimizer.

    Raises:
        DeviceMemoryError: if it runs out of memory all the same, as one that takes more than torch's usual ones may.
    """
    with running_out("in the update of dense weights"):
        optimizer.step()


@contextlib.contextmanager
def buffers_back_on_error(model: nn.Module) -> Iterator[None]:
    """Give the model's buffers (running statistics) the values back that they had, if what is inside fails."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    except BaseException:
        for buffer, value in before:
            buffer.copy_(value)
        raise
