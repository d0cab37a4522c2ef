"""A custom model for the command line: an `nn.Module` that returns one logit per sample.

adaptive-train run --model examples/custom_model.py:SumAndDot --set model.hidden=32 --steps 100
"""

import torch
from torch import Tensor, nn


class SumAndDot(nn.Module):
    """An MLP on dense inputs, the sum of all vectors, and its square.

    Parameters such as `hidden` become settings: `model.hidden`.
    """

    def __init__(self, num_dense: int, embedding_dim: int, hidden: int = 16) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(num_dense + 2 * embedding_dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return logits (B,) of `dense` (B, num_dense) and `pooled` (B, features, embedding_dim)."""
        total = pooled.sum(dim=1)
        logits: Tensor = self.mlp(torch.cat([dense, total, total.square()], dim=1))
        return logits.squeeze(1)
