"""The update of the dense weights, which is done wholly or not at all.

A step of torch's optimizers cannot be taken back: if memory runs out in the middle, some weights have moved. So the
memory that it may take is asked for before, where a batch can still be run again with fewer device rows.
"""

from typing import Final

import torch

from adaptive.tiers.gpu.memory import running_out

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
