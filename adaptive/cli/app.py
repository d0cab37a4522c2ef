"""`adaptive-train`: the commands, and the exit codes of errors.

`main` is the console script. Mistakes of the user (`adaptive.errors`) end with their exit code and a message without a
traceback. Anything else is a bug and exits with 1.
"""

import atexit
import errno
import gc
import inspect
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, NoReturn

import typer

from adaptive.cli import policies_command
from adaptive.cli.config_command import config
from adaptive.cli.data_commands import prepare
from adaptive.cli.doctor_command import doctor
from adaptive.cli.output import note, show_anything
from adaptive.cli.run_command import run
from adaptive.cli.study_commands import compare, simulate
from adaptive.cli.trained_commands import evaluate, export, predict
from adaptive.data import ReportBytes, listen_to_reading
from adaptive.errors import NO_TORCH, AdaptiveError, custom_place, error_text
from adaptive.system import STOPPED, is_hangup_heard
from adaptive.training.telemetry.formatting import bytes_text

DEBUG = "--debug"
EXIT_CODES = (
    "Exit codes: 0 success, 1 bug, error in a custom model or findings of doctor --data, 2 usage or configuration, "
    "3 bad input data, 4 unusable saved weights, "
    "5 failing disk of the host tier, 6 output directory in use or not empty, 7 device memory too small, "
    "8 loss or gradient not finite, 9 policy failed, 10 another rank failed, 129 hung up, 130 interrupted, "
    "143 terminated."
)

app = typer.Typer(
    name="adaptive-train",
    help="Train recommendation models whose embedding tables are stored in two tiers: device and host.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "eval": evaluate,
    "predict": predict,
    "export": export,
    "compare": compare,
    "simulate": simulate,
    "prepare": prepare,
    "config": config,
    "doctor": doctor,
}


for _name, _command in COMMANDS.items():
    _help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(_command.__doc__ or ""))  # rich keeps line breaks
    app.command(_name, help=_help, epilog=EXIT_CODES)(_command)
app.add_typer(policies_command.app, name="policies")


def _print_version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

        print(f"adaptive-train {version('adaptive-train')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Print the traceback of any error. Works anywhere on the line.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in words
    show_anything()
    atexit.register(gc.freeze)  # or Python looks for garbage among a million objects of libraries once more
    stopped: list[int] = []
    try:
        with _terminable(stopped), listen_to_reading(_reading_begins):
            app([word for word in words if word != DEBUG], prog_name="adaptive-train")
    except SystemExit as exit_:
        if exit_.code in STOPPED:
            note(f"adaptive-train: {STOPPED[exit_.code]}")
        raise
    except KeyboardInterrupt:
        note(f"adaptive-train: {STOPPED[130]}")
        sys.exit(130)
    except Exception as error:
        if debug:
            traceback.print_exc()
        if stopped:  # a library that was being imported raised another error
            note(f"adaptive-train: {STOPPED[stopped[0]]}")
            sys.exit(stopped[0])
        code, message = _verdict(error)
        note(f"adaptive-train: {message}")
        sys.exit(code)
    raise AssertionError("typer exits by itself")


def _reading_begins() -> ReportBytes:
    """Report the time left for reading all files first; only on the first rank."""
    from adaptive.system import is_rank
    from adaptive.training.telemetry.progress import Countdown

    if is_rank() and os.environ["RANK"] != "0":
        return lambda done, total: None
    return Countdown(note, "read to count rows or fit vocabularies", text=bytes_text)


def _verdict(error: Exception) -> tuple[int, str]:
    """Return the exit code and message of an error."""
    if isinstance(error, AdaptiveError):
        return error.exit_code, f"error: {error}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        more = "Train fewer rows, or keep them in files: --set tier.host=mmap:DIR"
        return 1, f"error: out of memory{f': {error}' if str(error) else ''}. {more}"
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return 1, f"error: {NO_TORCH}"
    if custom_place(error):
        return 1, f"error: {error_text(error)}. Run again with {DEBUG} for the traceback"
    if isinstance(error, OSError):
        return 1, f"error: {error}. Run again with {DEBUG} to see where"
    return 1, f"bug: {type(error).__name__}: {error}. Run again with {DEBUG} for the traceback, and report it"


@contextmanager
def _terminable(stopped: list[int]) -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind a command like an exit with 143 or 129.

    `stopped` gets the exit code, in case the exception does not arrive.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        stopped.append(128 + number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGTERM, *([signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else [])]
    numbers += [*([signal.SIGHUP] if is_hangup_heard() else [])]
    handlers = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
