"""Exit codes, error messages, signals, and imports of help."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptive import errors
from adaptive.plugins import load_model_class

Cli = Callable[..., Any]
HEAVY = ("torch", "numba", "numpy", "scipy", "tensorboard", "adaptive.config")


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from adaptive.cli.app import main
try:
    main(sys.argv[1:])
finally:
    loaded = [name for name in {HEAVY} if name in sys.modules]
    assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code, "run", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--device-rows" in done.stdout


@pytest.mark.nightly
def test_training_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    """It takes 0.8 s, and each optimizer of torch imports it."""
    code = """
import sys
from adaptive.cli.app import main
try:
    main(["run", *sys.argv[1:]])
finally:
    print(sorted({"torch._dynamo", "torch._inductor", "sympy", "triton"} & {*sys.modules}), file=sys.stderr)
"""
    small = ["--steps=2", "--batch-size=32", "--set=data.synthetic.rows=100000", "--set=data.synthetic.num_eval=64"]
    command = [sys.executable, "-c", code, *small, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.endswith("\n[]\n"), done.stderr


def test_help_version_and_usage_errors(cli: Cli) -> None:
    for words in (["--help"], ["eval", "--help"], ["policies", "--help"], ["doctor", "-h"]):
        result = cli(*words)
        assert (result.code, result.err) == (0, "") and "Usage: adaptive-train" in result.out
    text = " ".join(cli("--help").out.split())
    assert all(re.search(rf"\b{code} [a-z]", text) for code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 129, 130, 143))
    assert re.fullmatch(r"adaptive-train \d+\.\d+.*\n", cli("--version").out)
    result = cli("exprot", "run")
    assert (result.code, result.out) == (2, "") and "export" in result.err
    result = cli("run", "--polcy", "lru")
    assert (result.code, result.out) == (2, "") and "--policy" in result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError, 2),
        (errors.InputError, 3),
        (errors.CheckpointError, 4),
        (errors.StorageError, 5),
        (errors.OutputError, 6),
        (errors.DeviceMemoryError, 7),
        (errors.NonFiniteError, 8),
        (errors.PolicyError, 9),
    ],
)
def test_each_error_has_its_exit_code(cli: Cli, trainer: Any, error: type[Exception], code: int) -> None:
    trainer.error = error("what, where, do this")
    result = cli("eval", "somewhere", "--json")
    assert (result.code, result.out) == (code, "")
    assert result.err == "evaluating\nadaptive-train: error: what, where, do this\n"


def test_bug_is_one_line_without_traceback(cli: Cli, trainer: Any) -> None:
    trainer.error = ZeroDivisionError("oh")
    result = cli("eval", "somewhere")
    assert result.code == 1
    assert "bug: ZeroDivisionError: oh. Run again with --debug" in result.err
    assert "Traceback" not in result.err


def test_an_error_in_custom_code_names_its_line(cli: Cli, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate_run(*_: Any, **__: Any) -> None:
        model = load_model_class("mine.py:Mine")
        model()(None)

    Path("mine.py").write_text(
        "from torch import nn\n\nclass Mine(nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    )
    monkeypatch.setattr(sys.modules["adaptive.training.runs"], "evaluate_run", evaluate_run)
    result = cli("eval", "x")
    assert result.code == 1 and "bug:" not in result.err
    assert re.search(r"error: TypeError: unsupported operand.* \(your model .*mine\.py:5\)", result.err), result.err
    Path("broken.py").write_text("from torch import nn\nx = 1 / 0\n")
    with pytest.raises(errors.ConfigError, match=r"ZeroDivisionError.*\(your model .*broken\.py:2\)"):
        load_model_class("broken.py:Mine")


def test_missing_torch_says_how_to_install_it(cli: Cli, trainer: Any) -> None:
    trainer.error = ModuleNotFoundError("No module named 'torch'", name="torch")
    result = cli("eval", "x")
    assert result.code == 1 and "expected torch, which is not installed. Run pip install torch" in result.err


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device", "runs/x"), "No space left on device: 'runs/x'. Run again with --debug"),
        (MemoryError("Unable to allocate 9 TiB"), "out of memory: Unable to allocate 9 TiB. Train fewer rows"),
        (OSError(12, "Cannot allocate memory"), "out of memory: [Errno 12] Cannot allocate memory. Train fewer"),
    ],
)
def test_missing_resources_are_no_bugs(cli: Cli, trainer: Any, error: Exception, text: str) -> None:
    trainer.error = error
    result = cli("eval", "x")
    assert result.code == 1
    assert text in result.err and "bug:" not in result.err


LISTS = (sys.executable, "-m", "adaptive.cli.app", "policies", "list")


@pytest.mark.nightly
def test_a_full_stdout_is_no_bug() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(LISTS, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 6
    assert done.stderr == ("adaptive-train: error: the result cannot be written to stdout: No space left on device\n")


@pytest.mark.nightly
def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(LISTS, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["--debug", "eval", "x"], ["eval", "x", "--debug"]])
def test_debug_shows_the_traceback(cli: Cli, trainer: Any, words: list[str]) -> None:
    trainer.error = ZeroDivisionError("oh")
    result = cli(*words)
    assert result.code == 1
    assert "Traceback" in result.err


def test_an_interrupt_has_its_exit_code(cli: Cli, trainer: Any) -> None:
    trainer.error = KeyboardInterrupt()
    result = cli("eval", "x")
    assert result.code == 130
    assert result.err.endswith("adaptive-train: interrupted\n")


@pytest.mark.usefixtures("hangup_heard")
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")]
)
def test_a_signal_unwinds_and_restores_the_handler(
    cli: Cli, trainer: Any, monkeypatch: pytest.MonkeyPatch, number: int, code: int, word: str
) -> None:
    unwound = []

    def evaluate_run(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            unwound.append(True)

    monkeypatch.setattr(sys.modules["adaptive.training.runs"], "evaluate_run", evaluate_run)
    handler = signal.getsignal(number)
    result = cli("eval", "x")
    assert (result.code, unwound) == (code, [True])
    assert word in result.err
    assert signal.getsignal(number) is handler


def test_nohup_ignores_hangups(cli: Cli, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate_run(*_: Any, **__: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGHUP)
        return {"auc": 0.5}

    monkeypatch.setattr(sys.modules["adaptive.training.runs"], "evaluate_run", evaluate_run)
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli("eval", "x", "--json").code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, handler)
