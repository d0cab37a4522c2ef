"""DLRM's interaction in plain torch, padded to a width that suits matrix products.

Letters: B samples, F features, D values in a vector, P columns of the output. `bottom` is the bottom MLP's output
(B, D), or (B, 0) for a model without dense inputs; `pooled` is (B, F, D). Any device, any floating dtype.

Exports contain this file as `interactions.py`, so that they need torch only; training uses fused kernels.
"""

import torch
from torch import Tensor

ALIGNMENT = 16  # MKL's products of 2048 samples are 3% faster with 368 columns than with 367


def aligned(width: int) -> int:
    """Return the smallest multiple of 16 that is at least `width`, and at least 16."""
    return max(1, -(-width // ALIGNMENT)) * ALIGNMENT


def num_dots(num_vectors: int) -> int:
    """Return the number of pairs of vectors."""
    return num_vectors * (num_vectors - 1) // 2


def concatenation(bottom: Tensor, pooled: Tensor) -> Tensor:
    """Return `[bottom | pooled vectors | zeros]`, (B, P)."""
    return padded(bottom, pooled.flatten(1))


def dot_interaction(bottom: Tensor, pooled: Tensor) -> Tensor:
    """Return `[bottom | dots | zeros]`, (B, P), dots in the order of a lower triangle."""
    vectors = stacked(bottom, pooled)
    products = torch.bmm(vectors, vectors.transpose(1, 2))
    num_vectors = vectors.shape[1]
    i, j = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=pooled.device)
    return padded(bottom, products[:, i, j])


def stacked(bottom: Tensor, pooled: Tensor) -> Tensor:
    """Return (B, F or F + 1, D) the interacting vectors: the bottom output first, if any."""
    return pooled if bottom.shape[1] == 0 else torch.cat([bottom[:, None], pooled], dim=1)


def padded(left: Tensor, right: Tensor) -> Tensor:
    """Return `[left | right | zeros]`, (B, P)."""
    width = left.shape[1] + right.shape[1]
    return torch.cat([left, right, right.new_zeros((right.shape[0], aligned(width) - width))], dim=1)
