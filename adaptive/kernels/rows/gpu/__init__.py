"""Kernels for rows on a GPU, in Triton: what `kernels.rows.cpu` does, on one device.

Triton comes with CUDA builds of torch. Version 3.6 (torch 2.10) or newer is required: older ones flush divisions and
square roots below 2**-126 to 0. It is imported late: call `available` first, then import `pool.pool`, `update.update`,
`decay.decay`, `deferred.accumulate`, `move.copy_rows`, `initial.initial_rows`.

Work goes to the current stream of the current device; nothing here waits for it. Host rows are read and written in
place, so their tensors must be pinned: a GPU reaches no other memory of the host.

Rounding. Additions, multiplications, divisions and square roots are each rounded to nearest; none is fused with
another one; numbers below 2**-126 are preserved. So bits equal those of `kernels.rows.cpu` for every launch.
Launch parameters follow from the width of a row alone.
"""

import os
import subprocess

import torch

from adaptive.errors import ConfigError

OLDEST = (3, 6)


def available(device: torch.device) -> bool:
    """True if Triton can be imported, and `device` is a GPU or Triton interprets.

    Triton interprets kernels, slowly and on any device, if TRITON_INTERPRET=1 was set before it was imported.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    version = _version()
    return version is not None and tuple(int(part) for part in version.split(".")[:2]) >= OLDEST


def _version() -> str | None:
    """Return Triton's version, None if it is missing."""
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def prepare() -> None:
    """Make Triton ready to launch kernels, before two threads would do so at once.

    Raises:
        ConfigError: if it is missing, too old, or cannot launch: its launcher is compiled by the machine's C compiler.
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
