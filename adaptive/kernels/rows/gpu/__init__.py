"""What happens to rows on a GPU, in Triton: contracts of `kernels.rows.cpu` on tensors of one device.

Triton comes with CUDA builds of torch; 3.6 (torch 2.10) or newer is needed: what older ones make of a division or a
square root takes numbers below 2**-126 for 0. It is imported late: ask `available` first, then import `pool.pool`,
`update.update`, `deferred.accumulate`, `drift.drift`, `move.fetch`, `move.write_back`, `initial.initial_rows`.
Where it is missing, `torch_ops` does the same work in torch operations.

Work goes to the current stream of the current device; nothing here waits for it. Host rows are read and written in
place, so their tensors must be pinned: a GPU reaches no other memory of the host.

Rounding. Additions, multiplications, divisions and square roots are each rounded to nearest; none is fused with
another one; numbers below 2**-126 are kept. So bits equal those of `kernels.rows.cpu`, whatever the launch.
Launch parameters follow from the width of a row alone.
"""

import os
import subprocess
import warnings

import torch

from adaptive.errors import ConfigError

OLDEST = (3, 6)


def available(device: torch.device) -> bool:
    """Whether the kernels run on `device`: Triton can be imported, and it is a GPU or Triton interprets.

    Triton interprets kernels, slowly and on any device, if TRITON_INTERPRET=1 was set before it was imported. One that
    is too old is warned of: everything is right without it, and slower.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    try:
        import triton
    except ImportError:
        return False
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST:
        found = f"Triton {triton.__version__} is too old, {'.'.join(map(str, OLDEST))} is needed"
        warnings.warn(f"{found}: rows are trained by torch operations, which takes longer", stacklevel=2)
        return False
    return True


def prepare() -> None:
    """Make Triton ready to launch kernels: otherwise two threads would do so at once, and a fault would end training.

    Raises:
        ConfigError: if it cannot: it has what launches kernels compiled on the spot, by the machine's C compiler.
    """
    from triton.runtime.driver import driver

    try:
        driver.active.get_current_target()
    except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"Triton cannot launch kernels here: {error}. It needs a GPU, a C compiler (gcc) and Python's headers "
            f"(python3-dev); or uninstall it, and torch operations do its work"
        ) from error
