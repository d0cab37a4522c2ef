"""Dropout whose masks follow from seed, layer and step alone: neither torch's generator nor the order of work counts.

So a resumed run drops what it would have dropped, a batch that is run again drops the same, and a batch in parts drops
of each sample what it drops without parts. (Values are drawn by torch on the model's device: another kind of device has
other masks.)
"""

import hashlib
import struct

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """In training each value is set to 0 with probability `share`, and the others are divided by 1 - share.

    Until a trainer says otherwise, every pass is one of step 0: in a loop of your own call
    `at_step(model, planned.number)` before the forward pass.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise ValueError(f"dropout needs a share from 0 to below 1, found {share}")
        self.share = share
        self.seed = self.layer = self.step = self.first = 0
        self.samples = self.whole = 1

    def forward(self, values: Tensor) -> Tensor:
        """(n, ...) of (n, ...), where n is the number of samples, or so many times that."""
        if not self.training or not self.share:
            return values
        times, rest = divmod(len(values), self.samples)
        rows, first = (self.whole * times, self.first * times) if not rest and self.whole >= self.samples else (0, 0)
        generator = torch.Generator(values.device).manual_seed(self._number())
        shape = (rows or len(values), *values.shape[1:])
        kept = torch.rand(shape, generator=generator, device=values.device) >= self.share
        return values * kept[first : first + len(values)].to(values.dtype) / (1 - self.share)

    def _number(self) -> int:
        packed = struct.pack("<3Q", self.seed, self.layer, self.step)
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1

    def extra_repr(self) -> str:
        return f"share={self.share}"


class DroppedReLU(Dropout):
    """ReLU, and dropout behind it."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(torch.relu(values))


def dropouts(model: nn.Module) -> list[Dropout]:
    return [module for module in model.modules() if isinstance(module, Dropout)]


def seed_dropouts(model: nn.Module, seed: int) -> None:
    """Give each layer its number, and all the seed of the run."""
    for layer, module in enumerate(dropouts(model)):
        module.seed, module.layer = seed, layer


def at_step(model: nn.Module, step: int, *, first: int = 0, samples: int = 1, whole: int | None = None) -> None:
    """Say which step the next forward pass is of.

    Args:
        first, samples, whole: of a part of a batch its first sample, how many it has, and how many the batch has.
    """
    for module in dropouts(model):
        module.step, module.first, module.samples, module.whole = step, first, samples, whole or samples
