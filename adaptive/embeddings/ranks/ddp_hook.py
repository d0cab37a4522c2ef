"""`sum_in_order`: a hook for DistributedDataParallel, so that the sums of dense gradients have an order.

    model = DistributedDataParallel(DLRM(...))
    model.register_comm_hook(None, adaptive.sum_in_order)

An all-reduce adds in an order that depends on library, algorithm and number of ranks. Here slices cross, are added rank
after rank, and the sums cross: as many bytes as in a ring. On two ranks the bits are those of any all-reduce.
"""

from typing import Any

import torch
import torch.distributed as dist


def sum_in_order(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """The mean over ranks of a bucket of gradients; `group`: None, or a process group."""
    group = dist.group.WORLD if group is None else group
    size = dist.get_world_size(group)
    gradients: torch.Tensor = bucket.buffer()
    length = -(-gradients.numel() // size)
    padded = gradients.new_zeros(size * length)
    padded[: gradients.numel()] = gradients
    slices = torch.empty_like(padded)
    dist.all_to_all_single(slices, padded, group=group)
    total = slices[:length].clone()
    for rank in range(1, size):
        total += slices[rank * length : (rank + 1) * length]
    total /= size
    copies, sums = total.repeat(size), torch.empty_like(padded)
    dist.all_to_all_single(sums, copies, group=group)
    found: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    found.set_result(sums[: gradients.numel()])
    return found
