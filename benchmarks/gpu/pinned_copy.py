"""Triton kernels that read and write host memory from the GPU: what moving rows without a staging buffer can reach.

Needs Triton, which comes with CUDA builds of torch; import this late. On the CPU it runs under `TRITON_INTERPRET=1`.
"""

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _copy_rows(source, source_rows, target, target_rows, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    number = tl.program_id(0)
    from_row = tl.load(source_rows + number)
    to_row = tl.load(target_rows + number)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(source + from_row * width + columns, mask=inside)
    tl.store(target + to_row * width + columns, values, mask=inside)


def copy_rows(source: torch.Tensor, source_rows: torch.Tensor, target: torch.Tensor, target_rows: torch.Tensor) -> None:
    """Row source_rows[i] of `source` (n, D) becomes row target_rows[i] of `target` (m, D).

    Either matrix may lie in pinned host memory. The rows (k,), int64, lie on the device.
    """
    width = source.shape[1]
    _copy_rows[(len(source_rows),)](
        source,
        source_rows,
        target,
        target_rows,
        width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=1,
        enable_fp_fusion=False,  # nothing is computed; Triton warns where it is not said
    )
