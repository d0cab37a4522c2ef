"""What happens to rows on a GPU, in Triton: contracts of `kernels.rows.cpu` on tensors of one device.

Triton comes with CUDA builds of torch; 3.6 (torch 2.10) or newer is needed: what older ones make of a division or a
square root takes numbers below 2**-126 for 0. It is imported late: ask `available` first, then import `pool.pool`,
`update.update`, `deferred.accumulate`, `drift.drift`, `move.fetch`, `move.write_back`, `initial.initial_rows`.

Work goes to the current stream of the current device; nothing here waits for it. Host rows are read and written in
place, so their tensors must be pinned: a GPU reaches no other memory of the host.

Rounding. Additions, multiplications, divisions and square roots are each rounded to nearest; none is fused with
another one; numbers below 2**-126 are kept. So bits equal those of `kernels.rows.cpu`, whatever the launch.
Launch parameters follow from the width of a row alone.
"""

import os
import subprocess

import torch

from adaptive.errors import ConfigError

OLDEST = (3, 6)


def available(device: torch.device) -> bool:
    """Whether the kernels run on `device`: Triton can be imported, and it is a GPU or Triton interprets.

    Triton interprets kernels, slowly and on any device, if TRITON_INTERPRET=1 was set before it was imported.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    version = _version()
    return version is not None and tuple(int(part) for part in version.split(".")[:2]) >= OLDEST


def _version() -> str | None:
    """Triton's, None where it is missing."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def prepare() -> None:
    """Make Triton ready to launch kernels: otherwise two threads would do so at once, and a fault would end training.

    Raises:
        ConfigError: if it is missing, too old, or cannot: it has what launches kernels compiled on the spot, by the
            machine's C compiler.
    """
    if not available(torch.device("cuda")):
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"expected Triton {oldest} or newer for a GPU, got {_version() or 'none'}. Install torch's CUDA build, "
            f"which brings Triton, or set tier.device=cpu"
        )
    from triton.runtime.driver import driver

    try:
        driver.active.get_current_target()
    except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"Triton cannot launch kernels here: {error}. Install a C compiler (gcc) and Python's headers "
            f"(python3-dev), or set tier.device=cpu"
        ) from error
