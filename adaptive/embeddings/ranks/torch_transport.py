"""`TorchRanks`: ranks on torch.distributed. No other file uses it.

There are two gloo groups, one for each channel, so that messages of the look-ahead thread and of the training thread
never mix. They send host memory. If every rank has its own GPU, the training thread sends rows and gradients by NCCL,
from device to device, in the default process group. The look-ahead thread does not, because NCCL forbids two
communicators of one device in two threads. No collective here adds numbers or pickles objects.

    ranks.backend = auto   NCCL if the process group has it and every rank has its own GPU; otherwise gloo
                    gloo   through host memory; ranks may share a GPU, for experiments
                    nccl   an error if NCCL cannot be used

A rank uses the GPU with the number LOCAL_RANK, which torchrun and `--ranks` set, of those that its process sees.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final, Literal, TypeVar, get_args

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
NAME: Final = 128  # bytes for the names of a host and process
ALIVE_SECONDS: Final = 2.0  # for ranks to leave a mark in the store
ANSWER_SECONDS: Final = 2.0  # for the store to respond
Backend = Literal["auto", "gloo", "nccl"]
BACKENDS: Final = get_args(Backend)


@dataclass(frozen=True)
class Gpus:
    """GPUs that this process sees."""

    count: int
    has_nccl: bool  # torch was built with it
    local_rank: int | None  # among the ranks of this host; None if LOCAL_RANK is not set

    @property
    def number(self) -> int | None:
        """Number of this rank's GPU; None for the current one, or if there is none."""
        return None if self.local_rank is None or not self.count else self.local_rank % self.count


def find_gpus() -> Gpus:
    """Return the GPUs that this process sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    local = os.environ.get("LOCAL_RANK")
    return Gpus(count, dist.is_nccl_available(), None if local is None else int(local))


def is_nccl_wanted(backend: Backend, gpus: Gpus) -> bool:
    """True if the process group shall start with NCCL for tensors on GPUs.

    Raises:
        ConfigError: for an unknown backend, or for `nccl` where it cannot be used.
    """
    if backend not in BACKENDS:
        raise ConfigError(
            f"ranks.backend: expected one of {', '.join(BACKENDS)}, got {backend!r}. auto is the default."
        )
    if backend == "nccl" and not gpus.count:
        raise ConfigError("ranks.backend=nccl: expected a CUDA device, got none from torch. Use gloo or auto.")
    if backend == "nccl" and not gpus.has_nccl:
        raise ConfigError("ranks.backend=nccl: expected torch with NCCL, got a build without it. Use gloo or auto.")
    return backend != "gloo" and gpus.count > 0 and gpus.has_nccl


def name_gpu(host: str, gpus: Gpus) -> str:
    """Return a name that differs for any two GPUs; empty if there is no GPU."""
    if not gpus.count:
        return ""
    number = torch.cuda.current_device() if gpus.number is None else gpus.number
    properties = torch.cuda.get_device_properties(number)
    return f"{host} {getattr(properties, 'uuid', number)}"


@dataclass(frozen=True)
class Agreement:
    """GPUs of all ranks, equal on all of them.

    Attributes:
        backend: `ranks.backend`.
        names: name of each rank's GPU, from `name_gpu`.
        groups: for each rank, True if its process group has NCCL.
    """

    backend: Backend
    names: Sequence[str]
    groups: Sequence[bool]

    @property
    def is_nccl(self) -> bool:
        """True if rows and gradients on GPUs are sent by NCCL."""
        return self.backend != "gloo" and all(self.groups) and not self._trouble

    @property
    def _trouble(self) -> str:
        """Problem of the GPUs that prevents NCCL; empty if there is none."""
        for rank, name in enumerate(self.names):
            if not name:
                return f"rank {rank} has no GPU"
            if (first := list(self.names).index(name)) != rank:
                return f"ranks {first} and {rank} share one GPU ({name})"
        return ""

    def check(self, kind: str) -> None:
        """Check that the device tier may be on devices of this kind, "cpu" or "cuda".

        Raises:
            ConfigError: on every rank, for `nccl` where it cannot be used, or if ranks would share GPUs by accident.
        """
        if self.backend == "nccl" and kind != "cuda":
            raise ConfigError(f"ranks.backend=nccl: expected rows on GPUs, got tier.device={kind}. Use gloo or auto.")
        if self.backend == "nccl" and not all(self.groups):
            raise ConfigError(
                "ranks.backend=nccl: expected a process group with NCCL for GPUs, got one without. Start it by "
                'init_process_group("cpu:gloo,cuda:nccl"), or let TorchRanks start it.'
            )
        if self.backend != "gloo" and kind == "cuda" and self._trouble:
            raise ConfigError(
                f"ranks.backend={self.backend}: expected one GPU for each rank, but {self._trouble}. Start as many "
                "ranks as there are GPUs, set tier.device=cpu, or set ranks.backend=gloo to share GPUs."
            )


class TorchRanks(Ranks):
    """The ranks of `torch.distributed`; starts its process group if there is none.

    Args:
        blocks, gradients, wire: see `Ranks`.
        timeout_s: seconds that a rank waits for the others.
        backend: for rows and gradients on GPUs; see `adaptive.embeddings.ranks.torch_transport`.

    Raises:
        ConfigError: if the environment does not define the rank, or for `nccl` where it cannot be used.
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
    """The transport of `TorchRanks`; see the module."""

    def __init__(self, timeout_s: float, backend: Backend = "auto") -> None:
        timeout, gpus = timedelta(seconds=timeout_s), find_gpus()
        nccl = is_nccl_wanted(backend, gpus)
        self._own_group = not dist.is_initialized()
        if self._own_group:
            _start_process_group(timeout, "cpu:gloo,cuda:nccl" if nccl else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._names = [f"process {os.getpid()}"] * self.size
        self._groups: list[Any] = [
            _rendezvous(lambda: dist.new_group(backend="gloo", timeout=timeout)) for _ in CHANNELS
        ]
        self._alone = self.size == 1
        self._names = self._gather_texts(f"{socket.gethostname()}, process {os.getpid()}")
        self.gpu = gpus.number
        names = self._gather_texts(name_gpu(socket.gethostname(), gpus))
        has_nccl = self._gather_texts("nccl" if "cuda:nccl" in dist.get_backend_config() else "")
        self._gpus = Agreement(backend, names, list(map(bool, has_nccl)))
        self.values_on = "cuda" if self._gpus.is_nccl else None
        self._closed = False
        self._store_lock = threading.Lock()

    def _gather_texts(self, text: str) -> list[str]:
        """Return the text of each rank."""
        message = np.frombuffer(text.encode()[:NAME].ljust(NAME), np.uint8)
        texts = self.swap(ROWS, [[message]] * self.size, [NAME] * self.size, NAME)
        return [text.tobytes().decode(errors="replace").strip() for text in texts]

    def check_device(self, kind: str) -> None:
        self._gpus.check(kind)

    def swap_values(self, values: torch.Tensor, sizes: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """See `Transport`. On a GPU the host does not wait: the current stream does."""
        received = values.new_empty(sum(lengths))
        self._do(lambda: dist.all_to_all_single(received, values, list(lengths), list(sizes)))
        return received

    def swap(self, channel: int, parts: Sequence[Sequence[Bytes]], sizes: Sequence[int], largest: int) -> list[Bytes]:
        """See `Transport`; parts of more than `MOST` bytes are sent in several messages."""
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
        """See `Transport`. Every rank with an error leaves a mark in the store.

        If the store does not respond, its process or the network is gone. A separate thread reads the store, because
        torch's call may never return. The lock is needed because two threads would receive each other's responses on
        the only connection to the store.
        """
        silent: list[list[int]] = []
        with self._store_lock:
            thread = threading.Thread(target=lambda: silent.append(self._unmarked()), name="who-lives", daemon=True)
            thread.start()
            thread.join(ALIVE_SECONDS + ANSWER_SECONDS)
        return silent[0] if silent else self._without_store()

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
        """Return the ranks that are silent if the store is gone: rank 0, which hosts it."""
        return [0] if self.rank else []

    def close(self) -> None:
        if not self._closed and self._own_group and dist.is_initialized():
            self._closed = True
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


def _start_process_group(timeout: timedelta, backends: str) -> None:
    if missing := [name for name in NEEDED if name not in os.environ]:
        raise ConfigError(
            f"environment: expected {', '.join(NEEDED)}, got no {', '.join(missing)}. Start the program with torchrun, "
            "or with adaptive-train run --ranks N."
        )
    _rendezvous(lambda: _init_process_group(timeout, backends))


def _init_process_group(timeout: timedelta, backends: str) -> None:
    """Start the process group, with separate keys in the store for each attempt of torchrun.

    torchrun restarts with the store of the previous attempt, which still contains addresses of processes that have
    ended. A rank that reads one before it is overwritten fails to connect.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(  # type: ignore[attr-defined]
        f"attempt-{attempt}-of-{size}", store
    )
    dist.init_process_group(backends, store=store, rank=rank, world_size=size, timeout=timeout)


def _rendezvous(meet: Callable[[], T]) -> T:
    try:
        return meet()
    except (RuntimeError, ValueError) as error:  # dist.DistError is a RuntimeError
        raise RanksError(
            f"rank {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}: expected to find all ranks at "
            f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}, got an error: {error}. Check "
            "that all ranks have started with the same address, and that their hosts can reach it."
        ) from error


def sum_in_order(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average gradients over ranks in a fixed order: a DistributedDataParallel hook.

        model = DistributedDataParallel(DLRM(...))
        model.register_comm_hook(None, adaptive.sum_in_order)

    An all-reduce adds in an order that depends on library, algorithm and number of ranks. Here ranks exchange slices,
    add them rank by rank, and exchange the sums: as many bytes as a ring all-reduce. On two ranks, the bits are those
    of any all-reduce.

    Args:
        group: a process group; None for the default one.
        bucket: float tensors on one device.

    Returns:
        future of the averaged gradients.
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
