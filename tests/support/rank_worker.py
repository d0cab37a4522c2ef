"""A process that is one of several ranks, again and again: runs jobs that come as lines of JSON, so that torch and
kernels are loaded once. `rank_pool` starts it.

A job: {"argv": [...], "env": {...}, "out": FILE, "err": FILE}. `argv` is a script and its arguments, or `-m
adaptive` and a command line. The answer is a line with the exit code.
"""

import contextlib
import json
import os
import runpy
import sys
import traceback
from typing import Any

import torch.distributed as dist

from adaptive.cli.app import main as command_line


def run(argv: list[str]) -> int:
    """The exit code of a job."""
    try:
        if argv[:2] == ["-m", "adaptive"]:
            command_line(argv[2:])
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def do(job: dict[str, Any]) -> int:
    """Run a job with its output in files; its process group does not outlive it."""
    os.environ.update(job["env"])
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    try:
        return run(job["argv"])
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(f"{do(json.loads(line))}\n")
        answers.flush()


if __name__ == "__main__":
    main()
