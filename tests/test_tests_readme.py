"""What `tests/README.md` says is there: every path, a row for every room, a word about every test file."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PAGE = (TESTS / "README.md").read_text(encoding="utf-8")
FILES = sorted(TESTS.rglob("test_*.py"))
SUFFIXES = (".py", ".md", ".json", ".toml", ".npy", ".zip")

TABLE = PAGE.split("## Kinds of test")[0]
ROWS = re.findall(r"^\| (.*?) \| (.*) \|$", TABLE, re.M)[1:]


def paths_in(text: str) -> list[str]:
    """What stands in backticks and is a path: it has a slash, or ends as a file's name does."""
    words = re.findall(r"`([^`\n]+)`", text)
    return [word for word in words if " " not in word and ("/" in word or word.endswith(SUFFIXES))]


def found(word: str, *folders: Path) -> list[Path]:
    """The files or folders that a path, a pattern or the name of a test file stands for."""
    there = [path for folder in folders for path in folder.glob(word.rstrip("/")) if path.is_dir() or word[-1] != "/"]
    return there or ([] if "/" in word else sorted(TESTS.rglob(word)))


def rooms() -> Iterator[str]:
    """Packages and top-level modules of `adaptive`, as the table writes them."""
    package = ROOT / "adaptive"
    folders = (path.parent.relative_to(package) for path in package.glob("*/**/__init__.py"))
    yield from (f"{folder.as_posix()}/" for folder in folders if folder.parts[0] != "policies")  # one row for all
    yield from (path.name for path in package.glob("*.py"))


def test_the_table_is_read() -> None:
    assert len(ROWS) > 40 and ROWS[0][0] == "`embeddings/planning/`"


@pytest.mark.parametrize("word", sorted({word for first, _ in ROWS for word in paths_in(first)}))
def test_rows_are_of_rooms_and_folders(word: str) -> None:
    assert found(word, ROOT / "adaptive", ROOT)


@pytest.mark.parametrize("word", sorted(set(paths_in(re.sub(r"^\| `[^`]*` \|", "", PAGE, flags=re.M)))))
def test_every_path_exists(word: str) -> None:
    assert found(word, TESTS, ROOT)


@pytest.mark.parametrize("room", sorted(rooms()))
def test_every_room_has_one_row_with_tests(room: str) -> None:
    (tests,) = (second for first, second in ROWS if first == f"`{room}`")
    assert any(path in FILES or path.is_dir() for word in paths_in(tests) for path in found(word, TESTS))


def test_every_test_file_is_named_or_its_folder_is() -> None:
    named = {path for word in paths_in(PAGE) for path in found(word, TESTS, ROOT)}
    folders = {path for _, tests in ROWS for word in paths_in(tests) for path in found(word, TESTS) if path != TESTS}
    assert [path for path in FILES if path not in named and path.parent not in folders] == []


def test_no_two_test_files_share_a_name() -> None:
    assert len({path.name for path in FILES}) == len(FILES)


def test_what_is_not_there_is_not_found() -> None:
    assert not found("nothing/", TESTS, ROOT) and not found("test_nothing.py", TESTS) and not found("no/*.py", TESTS)
    assert paths_in("`a/`, `b.py`, `-m nightly`, `ADAPTIVE_DATA` and `from a import b/c`") == ["a/", "b.py"]
