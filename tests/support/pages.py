"""Runs the code of documentation pages, block by block, and compares what it prints with what the page shows.

Fenced blocks of a page that is run as a whole:
    ```python or ```toml    whose first line is `# NAME`: saved as that file
    ```sh                   one command per line, run by bash in the folder of the files
    ```text                 the standard output of the commands before it; `...` stands for any lines
Other blocks, such as indented ones, are not run.
"""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TOLERANCE: Final = 0.02
"""Largest relative difference of numbers: processors round differently."""
TIMED: Final = re.compile(r"[\d,.]+(?= (?:samples/s|ms|s|seconds)\b)|(?<=samples/s \()[\d,.]+")
NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of the fenced blocks."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def outputs(page: Path, language: str) -> list[tuple[str, str]]:
    """Return each block of a language that is followed by its output, and that output."""
    return [(code, text) for (kind, code), (then, text) in pairwise(blocks(page)) if (kind, then) == (language, "text")]


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder and return its standard output; fail with its standard error."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_page(page: Path, folder: Path) -> int:
    """Run a page in an empty folder; return the number of outputs that were compared."""
    compared, printed = 0, ""
    for language, text in blocks(page):
        if language == "sh":
            printed = "".join(run(["bash", "-ec", line], folder) for line in text.replace("\\\n", " ").splitlines())
        elif language == "text":
            assert_shown(text, printed)
            compared += 1
        else:
            (name,) = re.findall(r"\A# ([\w.-]+)\n", text)
            (folder / name).write_text(text, encoding="utf-8")
    return compared


def assert_shown(shown: str, printed: str) -> None:
    """Fail unless the printed lines are those shown, up to times and to small differences of numbers."""
    expected, lines = shown.splitlines(), iter(printed.splitlines())
    gap = False
    for want in expected:
        if want == "...":
            gap = True
            continue
        for line in lines:
            if is_same_line(want, line):
                break
            assert gap, f"shown:   {want}\nprinted: {line}"
        else:
            raise AssertionError(f"shown, but not printed: {want}\nin\n{printed}")
        gap = False
    assert gap or not list(lines), f"more was printed than shown:\n{printed}"


def is_same_line(want: str, line: str) -> bool:
    """Return True if two lines have the same words, and numbers within the tolerance where they are not times."""
    want, line = (" ".join(text.split()) for text in (want, line))
    if NUMBER.sub("0", want) != NUMBER.sub("0", line):
        return False
    timed = {match.start() for match in TIMED.finditer(want)}
    pairs = zip(NUMBER.finditer(want), NUMBER.finditer(line), strict=True)
    return all(a.start() in timed or is_close(a.group(), b.group()) for a, b in pairs)


def is_close(a: str, b: str) -> bool:
    """Return True if two numbers differ by at most the tolerance, or by one in the last digit shown."""
    step = 10.0 ** -len(a.partition(".")[2])
    x, y = (float(text.replace(",", "")) for text in (a, b))
    return abs(x - y) <= max(TOLERANCE * abs(x), 1.01 * step if "." in a else 0)
