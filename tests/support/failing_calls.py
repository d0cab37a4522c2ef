"""System calls of this process that fail from now on, in compiled kernels, libraries or Python."""

import ctypes
import platform
import sys
from collections.abc import Sequence
from typing import Final

NUMBERS: Final = {"pread64": 17, "pwrite64": 18, "preadv": 295, "pwritev": 296, "preadv2": 327, "pwritev2": 328}
READING: Final = ("pread64", "preadv", "preadv2")
WRITING: Final = ("pwrite64", "pwritev", "pwritev2")
CAN_FAIL: Final = sys.platform == "linux" and platform.machine() == "x86_64"  # numbers are those of this machine
PR_SET_NO_NEW_PRIVS, SECCOMP, SET_MODE_FILTER, TSYNC = 38, 317, 1, 1
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000


class _Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filters", ctypes.POINTER(_Filter)))


def fail(calls: Sequence[str], error: int) -> bool:
    """From here on these calls fail with this error, in all threads, for good: for a process that will end. False: the
    system does not let them be filtered."""
    steps = [_Filter(LOAD, 0, 0, 0)]
    steps += [_Filter(JUMP_IF_EQUAL, len(calls) - at, 0, NUMBERS[name]) for at, name in enumerate(calls)]
    steps += [_Filter(RETURN, 0, 0, ALLOW), _Filter(RETURN, 0, 0, ERROR | error)]
    program = _Program(len(steps), (_Filter * len(steps))(*steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if not CAN_FAIL or libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(libc.syscall(SECCOMP, SET_MODE_FILTER, TSYNC, ctypes.byref(program)) == 0)
