"""Which ranks are not heard any more, by the store that ranks met at: also where it does not answer."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from adaptive.embeddings.ranks import torch_transport
from adaptive.embeddings.ranks.torch_transport import TorchTransport

SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", SERVER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGCONT)
        process.kill()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, server: subprocess.Popen[str]) -> list[TorchTransport]:
    """Three that have met; their groups are not needed."""
    assert server.stdout is not None
    store = dist.TCPStore("127.0.0.1", int(server.stdout.readline()), is_master=False)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(torch_transport, "ALIVE_SECONDS", 0.1)
    found = [TorchTransport.__new__(TorchTransport) for _ in range(3)]
    for rank, one in enumerate(found):
        one.rank, one.size = rank, 3
    return found


def test_who_is_silent(ranks: list[TorchTransport], server: subprocess.Popen[str]) -> None:
    """Those that left no mark; where the store does not answer, or is gone, rank 0, which had it."""
    assert ranks[0].silent() == [1, 2]
    assert ranks[2].silent() == [1]
    assert ranks[1].silent() == []
    server.send_signal(signal.SIGSTOP)  # as behind a link that is down: connected, and nothing comes
    os.waitpid(server.pid, os.WUNTRACED)  # each of its threads has stopped
    assert ranks[1].silent() == [0]
    server.send_signal(signal.SIGCONT)
    server.kill()
    server.wait()
    assert ranks[1].silent() == [0]
