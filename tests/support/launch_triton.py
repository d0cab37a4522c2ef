"""Launch every Triton kernel as training does, without a GPU: `launch_triton.py CAPABILITY`.

Arguments and options are checked, bound and specialized on; then nothing is compiled (`compile_triton.py` does that),
nor launched. Prints a line of JSON for each kernel: its name, and for how many kinds of arguments it would be compiled
while the sizes of batches change and nothing else. It needs its own process, with TRITON_INTERPRET unset.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from adaptive.kernels.planning.lookups import hot_chunks
from adaptive.kernels.rows.cpu import steps
from adaptive.kernels.rows.gpu.decay import decay, decay_kernel
from adaptive.kernels.rows.gpu.deferred import accumulate, accumulate_kernel
from adaptive.kernels.rows.gpu.initial import initial_kernel, initial_rows
from adaptive.kernels.rows.gpu.move import copy_kernel, copy_rows
from adaptive.kernels.rows.gpu.pool import pool, pool_kernel
from adaptive.kernels.rows.gpu.sums import chunks_kernel, hot_kernel
from adaptive.kernels.rows.gpu.update import update, update_kernel

KERNELS = (
    pool_kernel, update_kernel, accumulate_kernel, hot_kernel, chunks_kernel, decay_kernel, copy_kernel,
    initial_kernel,
)  # fmt: skip
SETTINGS = [0.1, 1e-8, 0.9, 0.999, 0.0]


class NoGpu:
    """Triton's driver, as far as it works without a GPU."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def launched_without_a_gpu(capability: int) -> None:
    run = JITFunction.run

    def warm_up(self: Any, *arguments: Any, **options: Any) -> Any:
        return run(self, *arguments, **options | {"warmup": True})

    def note_kind(self: Any, kind: Any, *arguments: Any) -> None:
        self.device_caches[0][0][kind] = "compiled"

    driver.set_active(NoGpu(capability))
    JITFunction.run, JITFunction._do_compile = warm_up, note_kind


def numbers(count: int) -> Tensor:
    return torch.arange(count)


def all_row_updates(width: int) -> Iterator[tuple[Tensor, ...]]:
    """(rows, segments, vectors, gradients) of batches of all sizes: 1 and multiples of 16 are what Triton looks for."""
    for rows, each in ((1, 1), (16, 1), (17, 3), (48, 40), (1, 2000), (5000, 1)):
        yield numbers(rows), numbers(rows + 1) * each, torch.zeros(rows * each, dtype=torch.int32), torch.ones(7, width)


def launch_all(width: int, kind: int, state_width: int) -> None:
    weights, state, none = torch.zeros(5000, width), torch.zeros(5000, state_width), torch.zeros(0)
    squares_width = {steps.SGD_: 0, steps.ADAGRAD: width, steps.ROWWISE_ADAGRAD: 1, steps.ADAM: width + 1}[kind]
    corrections = torch.ones(3 if kind == steps.ADAM else 0)
    for rows, segments, vectors, gradients in all_row_updates(width):
        num, bags = len(rows), len(segments) - 1
        pool(weights, None, numbers(10).long(), vectors, numbers(bags).int(), segments, none, torch.zeros(bags, width))
        pool(weights, None, numbers(10).long(), vectors[:bags], none, none, none, torch.zeros(bags, width), bags)
        table = weights, state, rows, segments, vectors, none, gradients, kind, SETTINGS, corrections
        hot = torch.from_numpy(hot_chunks(segments.numpy()))
        flag = torch.zeros(())
        update(*table, torch.zeros(1, num), hot=hot, found_inf=flag)
        sums, squares = torch.zeros(5000, width), torch.zeros(5000, squares_width)
        pending = torch.zeros(5000, dtype=torch.bool)
        accumulate(rows, segments, vectors, none, gradients, sums, squares, pending, hot=hot, found_inf=flag)
        for factor in (0.99, 1.0, 0.0):
            decay(weights, rows, factor, found_inf=flag)
        copy_rows(weights, state, rows, weights, state, rows)
        for tables in (1, 16, 17):
            starts, keys, bounds = numbers(tables + 1), numbers(tables), torch.ones(tables)
            for row_keys in (None, rows):
                initial_rows(weights, state, rows, rows, starts, keys, bounds, 0.0, row_keys=row_keys)


def main(capability: int) -> None:
    launched_without_a_gpu(capability)
    for width, kind, state_width in ((1, steps.SGD_, 0), (6, steps.ROWWISE_ADAGRAD, 1), (3, steps.ADAM, 7)):
        for kernel in KERNELS:
            kernel.device_caches.clear()
        launch_all(width, kind, state_width)
        for kernel in KERNELS:
            report = {"kernel": kernel.__name__, "kinds": len(kernel.device_caches[0][0])}
            print(json.dumps(report | {"width": width, "state": state_width}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
