"""`adaptive-train`: the commands, and what becomes of errors.

`main` is the console script. Users' mistakes (`adaptive.errors`) end with their exit code and a message without
traceback; anything else is a bug and exits with 1.
"""

import difflib
import errno
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Annotated, NoReturn

import typer

from adaptive.cli import policies_command
from adaptive.cli.compare_command import compare
from adaptive.cli.config_command import config
from adaptive.cli.data_commands import prepare, vocabulary
from adaptive.cli.doctor_command import doctor
from adaptive.cli.output import note, show_anything
from adaptive.cli.placements_command import placements
from adaptive.cli.profile_command import profile
from adaptive.cli.reproduce_command import reproduce
from adaptive.cli.run_command import run
from adaptive.cli.simulate_command import simulate
from adaptive.cli.trained_commands import evaluate, export, predict, report
from adaptive.data.reading_progress import ReportBytes, listen_to_reading
from adaptive.errors import AdaptiveError
from adaptive.system import STOPPED, is_hangup_heard

DEBUG = "--debug"
SYNONYMS = {
    "train": "run",
    "fit": "run",
    "resume": "run --resume",
    "test": "eval",
    "score": "predict",
    "serve": "export",
}
EXIT_CODES = (
    "Exit codes: 0 ok, 1 bug, 2 usage or configuration, 3 bad input data, 4 saved weights unusable, "
    "5 host tier on disk failing, 6 output directory busy or not empty, 7 device memory too small, "
    "8 loss or gradient not finite, 9 policy failed, 10 another rank failed, 129 hung up, 130 interrupted, "
    "143 terminated."
)

# What loaders of libraries and torch say if they get no memory.
NO_MEMORY = re.compile(r"[Cc]annot allocate memory|failed to map segment|can't allocate memory|not enough memory")

app = typer.Typer(
    name="adaptive-train",
    help="Train recommendation models whose embedding tables lie in two tiers.",
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
    "profile": profile,
    "placements": placements,
    "simulate": simulate,
    "reproduce": reproduce,
    "report": report,
    "prepare": prepare,
    "vocabulary": vocabulary,
    "config": config,
    "doctor": doctor,
}
for _name, _command in COMMANDS.items():
    app.command(_name, epilog=EXIT_CODES)(_command)
app.add_typer(policies_command.app, name="policies")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"adaptive-train {version('adaptive-train')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show the traceback of any error; may stand anywhere on the line.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in words
    show_anything()
    _need_folder()
    _refuse_empty(words)
    _refuse_unknown(words)
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
        if stopped:  # a library that was being imported made something else of it
            note(f"adaptive-train: {STOPPED[stopped[0]]}")
            sys.exit(stopped[0])
        code, message = _verdict(error)
        note(f"adaptive-train: {message}")
        sys.exit(code)
    raise AssertionError("typer exits by itself")


def _reading_begins() -> ReportBytes:
    """Tells how long it takes to read all files before a command begins; of several ranks the first one does."""
    from adaptive.embeddings.ranks.launch import is_rank
    from adaptive.training.telemetry.formatting import bytes_text
    from adaptive.training.telemetry.progress import Countdown

    if is_rank() and os.environ["RANK"] != "0":
        return lambda done, total: None
    return Countdown(note, "read to count rows or fit vocabularies", text=bytes_text)


def _need_folder() -> None:
    """torch's libraries end a process whose working directory is gone, and blame something else."""
    try:
        os.getcwd()
    except OSError as error:
        note(f"adaptive-train: error: the working directory is gone ({error.strerror}); change to another one")
        sys.exit(2)


def _refuse_empty(words: Sequence[str]) -> None:
    """An empty word is a variable of the shell that has no value; as a path it would be the working directory."""
    for before, word in pairwise(["", *words]):
        flag = before if before.startswith("--") and "=" not in before else word
        if not word or (word.startswith("--") and word.find("=") == len(word) - 1):
            place = f"{flag.rstrip('=')}: " if flag else ""
            note(
                f"adaptive-train: error: {place}needed a value, found an empty one; is a variable of the shell not set?"
            )
            sys.exit(2)


def _refuse_unknown(words: Sequence[str]) -> None:
    """A command that is none ends with the one that was probably meant."""
    name = next((word for word in words if not word.startswith("-")), "")
    known = [str(command.name) for command in app.registered_commands]
    known += [str(group.name) for group in app.registered_groups]
    if name and name not in known:
        near = SYNONYMS.get(name) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
        note(f"adaptive-train: error: expected a command, got {name!r}; {hint}")
        sys.exit(2)


def _verdict(error: Exception) -> tuple[int, str]:
    """Exit code and message of what stopped a command."""
    if isinstance(error, AdaptiveError):
        return error.exit_code, f"error: {error}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return (
            1,
            f"error: not enough memory: {error}; train fewer rows, or keep them in files: --set tier.host=mmap:DIR",
        )
    if isinstance(error, OSError) and "Could not find/load shared object file" in str(error):  # what llvmlite raises
        return 1, f"error: not enough memory to load a library, or a damaged installation: {error}"
    if _lacks_threads(error):
        return (
            1,
            f"error: no more threads can be started: {error}; raise the limit (ulimit -u, or the container's pids)",
        )
    if isinstance(error, ImportError | RuntimeError) and NO_MEMORY.search(str(error)):
        return 1, f"error: not enough memory: {error}; raise the limit (ulimit -v), or end other programs"
    if isinstance(error, OSError):
        return 1, f"error: {error}; run again with {DEBUG} to see where"
    return 1, f"bug: {type(error).__name__}: {error}; run again with {DEBUG} for the traceback and report it"


def _lacks_threads(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


@contextmanager
def _terminable(stopped: list[int]) -> Iterator[None]:
    """While a command runs, SIGTERM or SIGHUP unwinds it as an exit with 143 or 129 would: files are closed and threads
    joined. `stopped`: gets the exit code, for where the exception does not arrive."""

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
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
