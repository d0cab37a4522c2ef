"""Runs in processes of their own, forked from one that has imported everything: starting one takes a tenth of a second,
so hundreds can be killed."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from adaptive.__main__ import end_at_once
from adaptive.config import TrainConfig

PATIENCE = 300.0  # seconds after which a run hangs


def server() -> ForkServerContext:
    """What makes such processes; in the one that they come from only imports are done: its threads would be lost."""
    places = [
        str(Path(__file__).parent),
        str(Path(__file__).parent.parent),
        *os.environ.get("PYTHONPATH", "").split(":"),
    ]
    os.environ["PYTHONPATH"] = ":".join(dict.fromkeys(filter(None, places)))  # where it looks for what to import
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["forked", "interrupted", "tensorboard.compat.proto.event_pb2"])
    return context


def trained(out: str, settings: dict[str, Any], resume: bool, log: str, ready: Event | None = None) -> None:
    """In the child: train or resume a run of the toy data as the command line does, and exit as it does. It says when
    it is `ready` to be hit: before, a signal meets what starts processes and not a run."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # before anything else, as `adaptive.__main__` does
        signal.signal(number, end_at_once)
    if ready:
        ready.set()

    import torch
    from toy import ToyData

    from adaptive.cli.app import _terminable, _verdict
    from adaptive.runs import resume_run, resuming, train_run, training

    os.setpgid(0, 0)
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    for module in (training, resuming):
        module.open_data = lambda config, run_directory=None: ToyData()  # type: ignore[attr-defined]
    code, stopped = 0, list[int]()
    try:
        with _terminable(stopped):
            if resume:
                resume_run(out, stream=sys.stderr)
            else:
                train_run(TrainConfig.model_validate({**settings, "out": out}), stream=sys.stderr)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code, message = (stopped[0], "stopped") if stopped else _verdict(error)
        print(message, file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)


def run_and_hit(
    context: ForkServerContext, out: Path, settings: dict[str, Any], *, resume: bool, hits: list[tuple[float, int]]
) -> int:
    """Train, or resume, and send signals after so many seconds each; the exit code, negative for the signal."""
    log = out.with_suffix(".log")
    ready = context.Event()
    process = context.Process(target=trained, args=(str(out), settings, resume, str(log), ready))
    process.start()
    assert ready.wait(PATIENCE), "it never began"
    begun = time.monotonic()
    for after, number in hits:
        process.join(max(begun + after - time.monotonic(), 0))
        if not process.is_alive() or process.pid is None:
            break
        os.kill(process.pid, number)
    return ended(process)


def ended(process: BaseProcess) -> int:
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("it hangs")
    assert process.exitcode is not None
    return process.exitcode


SIGNALS: list[Callable[[float], list[tuple[float, int]]]] = [
    lambda at: [(at, signal.SIGKILL)],
    lambda at: [(at, signal.SIGKILL)],
    lambda at: [(at, signal.SIGTERM)],
    lambda at: [(at, signal.SIGINT)],
    lambda at: [(at, signal.SIGHUP)],
    lambda at: [(at, signal.SIGTERM), (at + 0.02, signal.SIGTERM)],
    lambda at: [(at, signal.SIGINT), (at + 0.005, signal.SIGKILL)],
]
