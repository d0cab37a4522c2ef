"""`--ranks NUMBER`: checks and warnings before any process starts."""

from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]
GIB = 1 << 30


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of ranks that start, on two cores with 8 GiB."""
    result: list[int] = []

    def launch(size: int, words: object) -> int:
        result.append(size)
        return 0

    monkeypatch.setattr("adaptive.cli.launching.launch", launch)
    monkeypatch.setattr("adaptive.cli.launching.usable_cores", lambda: 2)
    monkeypatch.setattr("adaptive.system.available_bytes", lambda: 8 * GIB)
    return result


def test_ranks_beyond_memory_are_refused(cli: Cli, launched: list[int]) -> None:
    for number in ("28", "100", "9" * 20):
        result = cli("run", "--ranks", number)
        assert result.code == 2 and launched == []
        assert f"--ranks: expected at most 27 ranks, got {number}, which take" in result.err
        assert "(300.0 MiB each). This machine has 2 cores. Start no more ranks than cores" in result.err


def test_more_ranks_than_cores_start_with_a_warning(cli: Cli, launched: list[int]) -> None:
    result = cli("run", "--ranks", "27")
    assert result.code == 0 and launched == [27]
    assert "27 ranks take turns on 2 cores, which is slower than --ranks 2, and take 7.9 GiB" in result.err
    result = cli("run", "--ranks", "2")
    assert result.code == 0 and launched == [27, 2] and result.err == ""


def test_one_rank_starts_with_any_memory(cli: Cli, launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive.system.available_bytes", lambda: 0)
    assert cli("run", "--ranks", "1").code == 0 and launched == [1]
