"""`TorchRanks`: ranks on torch.distributed. The only file that knows it.

Two groups, one for each channel: what the look-ahead thread and the training thread send never meets. Both are gloo and
send ordinary memory. Where every rank has a GPU of its own, the training thread sends rows and gradients by NCCL, from
device to device, in the process group itself; the look-ahead thread does not, as NCCL forbids two communicators of one
device in two threads. No collective that adds is used, and none that pickles.

    ranks.backend = auto   NCCL where the process group has it and every rank has a GPU of its own; else gloo
                    gloo   over the host's memory; ranks may share a GPU, to try things out
                    nccl   an error where it cannot be

A rank takes the GPU of the number LOCAL_RANK, which torchrun and `--ranks` give, of those that its process sees.
"""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from adaptive.embeddings.ranks.launch import NEEDED
from adaptive.embeddings.ranks.ranks import Ranks
from adaptive.embeddings.ranks.transport import CHANNELS, ROWS, Bytes, Transport, TransportError
from adaptive.errors import ConfigError, RanksError

T = TypeVar("T")
MOST: Final = 64 << 20  # bytes of one message: larger uneven ones have aborted processes (pytorch/gloo#334)
NAME: Final = 128  # bytes of a host and process
ALIVE_SECONDS: Final = 2.0  # that ranks have to say that they live
ANSWER_SECONDS: Final = 2.0  # that the store has to answer
Backend = Literal["auto", "gloo", "nccl"]
BACKENDS: Final = ("auto", "gloo", "nccl")


@dataclass(frozen=True)
class Gpus:
    """What this process sees."""

    count: int
    has_nccl: bool  # torch was built with it
    local_rank: int | None  # among the ranks of this host; None: nobody has told

    @property
    def number(self) -> int | None:
        """The number of this rank's GPU; None: there is none, or it is the one that is current."""
        return None if self.local_rank is None or not self.count else self.local_rank % self.count


def gpus_here() -> Gpus:
    """What this process sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = os.environ.get("LOCAL_RANK")
    return Gpus(count, dist.is_nccl_available(), None if local is None else int(local))


def wants_nccl(backend: Backend, gpus: Gpus) -> bool:
    """Whether to start the process group with NCCL for what lies on GPUs.

    Raises:
        ConfigError: for another name, and if NCCL is asked for and cannot be.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"ranks.backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "nccl" and not gpus.count:
        raise ConfigError("ranks.backend=nccl: torch finds no CUDA device here; use gloo or auto")
    if backend == "nccl" and not gpus.has_nccl:
        raise ConfigError("ranks.backend=nccl: this torch was built without NCCL; use gloo or auto")
    return backend != "gloo" and gpus.count > 0 and gpus.has_nccl


def name_of_gpu(host: str, gpus: Gpus) -> str:
    """The same for no two GPUs; empty where there is none."""
    if not gpus.count:
        return ""
    number = torch.cuda.current_device() if gpus.number is None else gpus.number
    properties = torch.cuda.get_device_properties(number)
    return f"{host} {getattr(properties, 'uuid', number)}"


@dataclass(frozen=True)
class Agreement:
    """What all ranks know of each other's GPUs, equal on all.

    names: of each rank's GPU, as `name_of_gpu` says.
    groups: whether each rank's process group has NCCL.
    """

    backend: Backend
    names: Sequence[str]
    groups: Sequence[bool]

    @property
    def is_nccl(self) -> bool:
        """Rows and gradients that lie on GPUs cross by NCCL."""
        return self.backend != "gloo" and all(self.groups) and not self._trouble

    @property
    def _trouble(self) -> str:
        """Why NCCL cannot be, as far as GPUs go; empty: it can."""
        for rank, name in enumerate(self.names):
            if not name:
                return f"rank {rank} has no GPU"
            if (first := list(self.names).index(name)) != rank:
                return f"ranks {first} and {rank} share one GPU ({name}), and NCCL needs one for each rank"
        return ""

    def check(self, kind: str) -> None:
        """Check that rows may lie on devices of a kind, "cpu" or "cuda".

        Raises:
            ConfigError: on every rank, if NCCL is asked for and cannot be, or GPUs would be shared unasked.
        """
        if self.backend == "nccl" and kind != "cuda":
            raise ConfigError(f"ranks.backend=nccl: expected rows on GPUs, got tier.device={kind}; use gloo or auto")
        if self.backend == "nccl" and not all(self.groups):
            raise ConfigError(
                'ranks.backend=nccl: the process group has no NCCL for GPUs; start it by init_process_group("cpu:gloo,'
                'cuda:nccl"), or leave it to TorchRanks'
            )
        if self.backend != "gloo" and kind == "cuda" and self._trouble:
            raise ConfigError(
                f"ranks.backend={self.backend}: {self._trouble}; start as many ranks as there are GPUs, set "
                "tier.device=cpu, or ranks.backend=gloo to share GPUs"
            )


class TorchRanks(Ranks):
    """This process among those of `torch.distributed`. Starts the process group if there is none, by what `torchrun`
    has put into the environment.

    Args:
        blocks: of `Ranks`.
        gradients: of `Ranks`.
        wire: of `Ranks`.
        timeout_s: how long a rank waits for the others.
        backend: for rows and gradients that lie on GPUs, see `adaptive.embeddings.ranks.torch_transport`.

    Raises:
        ConfigError: if the environment does not say which rank this is, or NCCL is asked for and cannot be.
        RanksError: if the ranks do not find each other.
    """

    def __init__(
        self,
        *,
        blocks: int | None = None,
        gradients: Literal["mean", "sum"] = "mean",
        wire: Literal["fp32", "bf16"] = "fp32",
        timeout_s: float = 600.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(TorchTransport(timeout_s, backend), blocks=blocks, gradients=gradients, wire=wire)


class TorchTransport(Transport):
    """See the module."""

    def __init__(self, timeout_s: float, backend: Backend = "auto") -> None:
        timeout, gpus = timedelta(seconds=timeout_s), gpus_here()
        nccl = wants_nccl(backend, gpus)
        self._own_group = not dist.is_initialized()
        if self._own_group:
            _start(timeout, "cpu:gloo,cuda:nccl" if nccl else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._names = [f"process {os.getpid()}"] * self.size
        self._groups: list[Any] = [_met(lambda: dist.new_group(backend="gloo", timeout=timeout)) for _ in CHANNELS]
        self._alone = self.size == 1
        self._names = self._everyones(f"{socket.gethostname()}, process {os.getpid()}")
        self.job = int(self._everyones(secrets.token_hex(4))[0], 16)
        self.gpu = gpus.number
        names = self._everyones(name_of_gpu(socket.gethostname(), gpus))
        has_nccl = self._everyones("nccl" if "cuda:nccl" in dist.get_backend_config() else "")
        self._gpus = Agreement(backend, names, list(map(bool, has_nccl)))
        self.values_on = "cuda" if self._gpus.is_nccl else None
        self._closed = False
        self._store_lock = threading.Lock()

    def _everyones(self, text: str) -> list[str]:
        """The text of each rank."""
        message = np.frombuffer(text.encode()[:NAME].ljust(NAME), np.uint8)
        texts = self.swap(ROWS, [[message]] * self.size, [NAME] * self.size, NAME)
        return [text.tobytes().decode(errors="replace").strip() for text in texts]

    def check_device(self, kind: str) -> None:
        self._gpus.check(kind)

    def swap_values(self, values: torch.Tensor, sizes: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """On a GPU the host does not wait: the stream that is current does."""
        received = values.new_empty(sum(lengths))
        self._do(lambda: dist.all_to_all_single(received, values, list(lengths), list(sizes)))
        return received

    def swap(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int], largest: int) -> list[Bytes]:
        """Where some rank would send more than `MOST` to another, all send in several messages."""
        if self._alone:
            return [np.concatenate(parts[0])]
        if largest <= MOST:
            return self._swap_once(channel, parts, sizes)
        wholes, received = [np.concatenate(part) for part in parts], [np.empty(size, np.uint8) for size in sizes]
        for done in range(0, largest, MOST):
            pieces = [[whole[done : done + MOST]] for whole in wholes]
            more = self._swap_once(channel, pieces, [max(0, min(size - done, MOST)) for size in sizes])
            for array, piece in zip(received, more, strict=True):
                array[done : done + len(piece)] = piece
        return list(received)

    def _swap_once(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int]) -> list[Bytes]:
        sent = torch.from_numpy(np.concatenate([piece for part in parts for piece in part]))
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        lengths = [sum(map(len, part)) for part in parts]
        self._do(lambda: dist.all_to_all_single(received, sent, list(sizes), lengths, group=self._groups[channel]))
        whole, ends = received.numpy(), list(accumulate(sizes))
        return [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def _do(self, operation: Callable[[], Any]) -> None:
        try:
            operation()
        except RuntimeError as error:
            raise TransportError(str(error).splitlines()[0][:300]) from error

    def name_of(self, rank: int) -> str:
        return self._names[rank]

    def silent(self) -> list[int]:
        """Each rank that finds a fault leaves a mark in the store that ranks met at; those without one are silent. A
        store that does not answer has gone, with its process or with the network: a thread asks it, since what
        torch waits for there has no end of its own. One thread at a time: two that find the same fault would take
        each other's answers from the one connection to the store."""
        with self._store_lock:
            return self._ask_store()

    def _ask_store(self) -> list[int]:
        answers: list[list[int]] = []
        thread = threading.Thread(target=lambda: answers.append(self._unmarked()), name="who-lives", daemon=True)
        thread.start()
        thread.join(ALIVE_SECONDS + ANSWER_SECONDS)
        return answers[0] if answers else self._without_store()

    def _unmarked(self) -> list[int]:
        keys = [f"adaptive/alive/{rank}" for rank in range(self.size)]
        try:
            store = dist.distributed_c10d._get_default_store()
            store.set(keys[self.rank], "1")
            with contextlib.suppress(RuntimeError):  # not all in time
                store.wait(keys, timedelta(seconds=ALIVE_SECONDS))
            return [rank for rank, key in enumerate(keys) if not store.check([key])]
        except Exception:
            return self._without_store()

    def _without_store(self) -> list[int]:
        """Rank 0's process, or the machine it is on, has the store."""
        return [0] if self.rank else []

    def close(self) -> None:
        if not self._closed and self._own_group and dist.is_initialized():
            self._closed = True
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


def _start(timeout: timedelta, backends: str) -> None:
    if missing := [name for name in NEEDED if name not in os.environ]:
        raise ConfigError(
            f"the environment lacks {', '.join(missing)}: start the program by torchrun, or by "
            "adaptive-train run --ranks N"
        )
    _met(lambda: _meet(timeout, backends))


def _meet(timeout: timedelta, backends: str) -> None:
    """torchrun starts again with the store of the attempt before, where addresses of processes that have ended still
    stand: whoever reads one before it is written anew is refused the connection. So each attempt has its own keys."""
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(  # type: ignore[attr-defined]
        f"attempt-{attempt}-of-{size}", store
    )
    dist.init_process_group(backends, store=store, rank=rank, world_size=size, timeout=timeout)


def _met(meet: Callable[[], T]) -> T:
    try:
        return meet()
    except (RuntimeError, ValueError) as error:  # dist.DistError is a RuntimeError
        raise RanksError(
            f"rank {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}: the ranks did not find each "
            f"other at {os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}: {error}"
        ) from error


def sum_in_order(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """The mean over ranks of a bucket of gradients: a hook for DistributedDataParallel, so that sums have an order.

        model = DistributedDataParallel(DLRM(...))
        model.register_comm_hook(None, adaptive.sum_in_order)

    An all-reduce adds in an order that depends on library, algorithm and number of ranks. Here slices cross, are added
    rank after rank, and the sums cross: as many bytes as in a ring. On two ranks the bits are those of any all-reduce.

    Args:
        group: None, or a process group.
        bucket: float tensors on one device.
    """
    group = dist.group.WORLD if group is None else group
    size = dist.get_world_size(group)
    gradients: torch.Tensor = bucket.buffer()
    length = -(-gradients.numel() // size)
    padded = gradients.new_zeros(size * length)
    padded[: gradients.numel()] = gradients
    slices = torch.empty_like(padded)
    dist.all_to_all_single(slices, padded, group=group)
    total = slices[:length].clone()
    for rank in range(1, size):
        total += slices[rank * length : (rank + 1) * length]
    total /= size
    copies, sums = total.repeat(size), torch.empty_like(padded)
    dist.all_to_all_single(sums, copies, group=group)
    mean: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    mean.set_result(sums[: gradients.numel()])
    return mean
