"""What happens to rows on a GPU, in Triton: contracts of `kernels.cpu`, `deferred`, `drift` on tensors of one device.

Triton comes with CUDA builds of torch. It is imported late: ask `available` first, then import `pool.pool`,
`update.update`, `accumulate.accumulate`, `drift.drift`, `move.fetch`, `move.write_back`, `initial.initial_rows`.
Where it is missing, `kernels.cuda` does the same work in torch operations.

Work goes to the current stream of the current device; nothing here waits for it. Host rows are read and written in
place, so their tensors must be pinned: a GPU reaches no other memory of the host.

Rounding. Additions, multiplications, divisions and square roots are each rounded to nearest; none is fused with
another one; numbers below 2**-126 are kept. So bits equal those of `kernels.cpu`, whatever the launch, with one
exception that callers choose (`exact=False`, see `sums`). Launch parameters follow from the width of a row alone.
"""

import os

import torch


def available(device: torch.device) -> bool:
    """Whether the kernels run on `device`: Triton can be imported, and it is a GPU or Triton interprets.

    Triton interprets kernels, slowly and on any device, if TRITON_INTERPRET=1 was set before it was imported.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
