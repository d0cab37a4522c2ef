"""The GPU of a rank, the choice of NCCL, and ranks that do not respond. Needs no GPU."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from adaptive.cli.app import main
from adaptive.embeddings.ranks import torch_transport
from adaptive.embeddings.ranks.torch_transport import Agreement, Gpus, TorchTransport, find_gpus, is_nccl_wanted
from adaptive.errors import ConfigError

SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("count", "local", "number"), [(0, 1, None), (4, 2, 2), (4, None, None), (1, 3, 0), (2, 3, 1)])
def test_a_rank_takes_the_gpu_of_its_local_number(count: int, local: int | None, number: int | None) -> None:
    """One that is alone to be seen is 0, as where a scheduler shows each process its own."""
    assert Gpus(count, True, local).number == number


def test_what_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert (find_gpus().count, find_gpus().number) == (8, 3)


@pytest.mark.parametrize(("backend", "wanted"), [("auto", True), ("nccl", True), ("gloo", False)])
def test_the_process_group_gets_nccl_where_it_may_be_used(backend: Any, wanted: bool) -> None:
    assert is_nccl_wanted(backend, Gpus(2, True, 0)) is wanted
    if backend == "auto":
        assert not is_nccl_wanted(backend, Gpus(0, True, 0)) and not is_nccl_wanted(backend, Gpus(2, False, 0))


@pytest.mark.parametrize(
    ("backend", "gpus", "words"),
    [
        ("nccl", Gpus(0, True, 0), "ranks.backend=nccl: expected a CUDA device, got none"),
        ("nccl", Gpus(1, False, 0), "ranks.backend=nccl: expected torch with NCCL, got a build without it"),
        ("mpi", Gpus(1, True, 0), "ranks.backend: expected one of auto, gloo, nccl, got 'mpi'"),
    ],
)
def test_nccl_that_cannot_be_is_told(backend: Any, gpus: Gpus, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        is_nccl_wanted(backend, gpus)


def agreed(backend: Any = "auto", names: str = "a0 a1", groups: str = "11") -> Agreement:
    return Agreement(backend, [name.strip("-") for name in names.split()], [one == "1" for one in groups])


def test_nccl_needs_a_gpu_and_a_group_on_every_rank() -> None:
    assert agreed().is_nccl and agreed("nccl").is_nccl
    assert not agreed("gloo").is_nccl
    assert not agreed(groups="10").is_nccl
    assert not agreed(names="a0 a0").is_nccl
    assert not agreed(names="a0 -").is_nccl


@pytest.mark.parametrize(
    ("agreement", "kind", "words"),
    [
        (agreed(names="a0 a1 a0", groups="111"), "cuda", "auto: .* ranks 0 and 2 share one GPU.*gloo to share"),
        (agreed("nccl", names="a0 a0"), "cuda", "nccl: .* ranks 0 and 1 share one GPU"),
        (agreed("nccl", groups="00"), "cuda", "expected a process group with NCCL"),
        (agreed("nccl"), "cpu", "nccl: expected rows on GPUs, got tier.device=cpu"),
        (agreed(names="a0 -"), "cuda", "rank 1 has no GPU"),
    ],
)  # fmt: skip
def test_devices_that_do_not_fit_are_told(agreement: Agreement, kind: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agreement.check(kind)


@pytest.mark.parametrize(
    ("agreement", "kind"),
    [
        (agreed(), "cuda"),
        (agreed(names="- -"), "cpu"),
        (agreed(names="a0 a0"), "cpu"),
        (agreed("gloo", "a0 a0"), "cuda"),
        (agreed(groups="00"), "cuda"),
    ],
)
def test_devices_that_fit(agreement: Agreement, kind: str) -> None:
    agreement.check(kind)


def test_asked_for_without_a_gpu_it_ends_a_run_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--ranks", "2", "--set", "ranks.backend=nccl"])
    assert ended.value.code == 2
    assert "expected a CUDA device, got none from torch. Use gloo or auto." in capsys.readouterr().err


# --- who is not heard any more, by the store that ranks met at, also where it does not answer -------------------------


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
    results = [TorchTransport.__new__(TorchTransport) for _ in range(3)]
    for one in results:
        one._store_lock = threading.Lock()
    for rank, one in enumerate(results):
        one.rank, one.size = rank, 3
    return results


@pytest.mark.nightly
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
