"""Lower bounds of a step: the bytes it has to move, over the device's measured bandwidths.

Bytes are counted once per pass: each row that is read, each vector and row that is written. Indices are left out, and
so is every byte that a cache may serve, so no implementation is faster than its floor but for noise.

Letters: U distinct rows of a batch, R bytes of a row, S of its state, E of all pooled vectors (or their gradients).
"""

from dataclasses import dataclass
from statistics import median

import torch

from benchmarks.gpu.accelerator import Accelerator

GB = 1e9


@dataclass(frozen=True)
class Rates:
    """Bytes a second."""

    memory: float  # of the device, read and written together
    to_device: float
    to_host: float


@dataclass(frozen=True)
class Traffic:
    """Bytes that one step of the embeddings has to move."""

    forward: int  # U * R + E: rows are read, vectors written
    update: int  # E + 2 * U * (R + S): gradients are read, rows with their state read and written
    fetched: int = 0  # host to device
    written_back: int = 0

    @property
    def on_device(self) -> int:
        return self.forward + self.update

    def memory_ms(self, rates: Rates) -> float:
        return self.on_device / rates.memory * 1e3

    def link_ms(self, rates: Rates) -> float:
        """Both directions of the link work at once."""
        return max(self.fetched / rates.to_device, self.written_back / rates.to_host) * 1e3

    def step_ms(self, rates: Rates, dense_ms: float = 0.0) -> float:
        """Copies can overlap with kernels, the dense part cannot overlap with its embeddings."""
        return max(self.memory_ms(rates) + dense_ms, self.link_ms(rates))


def traffic(
    distinct: float,
    samples: int,
    features: int,
    dim: int,
    state_width: int,
    moved: tuple[float, float] = (0, 0),
    *,
    value_bytes: int = 4,
) -> Traffic:
    """Of a step with `distinct` rows of width `dim`; `moved`: bytes to the device and back."""
    row, state, vectors = value_bytes * dim, 4 * state_width, 4 * samples * features * dim
    forward = distinct * row + vectors
    update = vectors + 2 * distinct * (row + state)
    return Traffic(int(forward), int(update), int(moved[0]), int(moved[1]))


def measure_rates(accelerator: Accelerator, megabytes: int) -> Rates:
    """Large copies: device to device, from pinned memory, and to it."""
    size = megabytes * 250_000  # float32 values
    rows, copies = torch.ones(size, device=accelerator.device), torch.empty(size, device=accelerator.device)
    host = accelerator.pinned(size)
    count = 4 * size

    def rate(num_bytes: int, source: torch.Tensor, target: torch.Tensor) -> float:
        times = accelerator.times_ms(lambda: target.copy_(source, non_blocking=True), rounds=9)
        return num_bytes / median(times) * 1e3

    return Rates(rate(2 * count, rows, copies), rate(count, host, copies), rate(count, rows, host))
