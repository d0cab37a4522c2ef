"""How much host memory the benchmarks may count on."""

import os

from adaptive.system import available_bytes

HOST_GIGABYTES = "GPU_BENCH_HOST_GIGABYTES"  # of 10**9 bytes; set by `run_all --host-gigabytes`


def given_bytes() -> int | None:
    """What the user says there is; None: nothing was said.

    Raises:
        SystemExit: if that is no number.
    """
    text = os.environ.get(HOST_GIGABYTES)
    try:
        return None if text is None else int(float(text) * 1e9)
    except ValueError:
        raise SystemExit(f"{HOST_GIGABYTES}={text}: a number of gigabytes is needed, such as 100") from None


def host_bytes() -> int:
    """What the user says there is, or what is free now."""
    given = given_bytes()
    return available_bytes() if given is None else given
