"""`Peers`: the processes that train together, on torch.distributed.

There are two gloo groups of our own: `ahead` for the look-ahead thread, `rows` for the training thread, so that their
messages never mix. If every rank has its own GPU, vectors and gradients of rows cross by NCCL, from device to device.

A rank that fails leaves a note in the store. A rank that waits looks for notes every second, so it ends with the error
that came first, and not with the broken connection that follows. Ranks that leave no sign of life are named.
"""

import contextlib
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from adaptive import errors
from adaptive.errors import AdaptiveError, ConfigError, RanksError
from adaptive.system import OF_A_RANK

T = TypeVar("T")
Backend = Literal["auto", "gloo", "nccl"]
MOST: Final = 64 << 20  # bytes of one message: larger uneven ones have aborted processes (pytorch/gloo#334)
GLANCE: Final = timedelta(seconds=0.5)  # between two looks for notes of other ranks
ALIVE_SECONDS: Final = 2.0  # for ranks to leave a sign of life in the store
_numbers: Final = count()  # of `Peers` in this process


class Channel:
    """Messages of one thread, over a gloo group of its own.

    Attributes:
        abandoned: True if this rank's loop has failed, so that nothing is worth waiting for; any thread may set it.
    """

    def __init__(self, peers: "Peers", group: Any) -> None:
        self._peers, self._group = peers, group
        self.abandoned = False

    def swap(self, sent: Tensor, sizes: Sequence[int], lengths: Sequence[int], largest: int, what: str) -> Tensor:
        """Send `sizes[r]` numbers of `sent` (n,), on the host, to each rank; return those received, `lengths[r]` each.

        Args:
            largest: bytes of the largest message between any two ranks, equal on all ranks.
            what: name of the exchange and its step, for errors.
        """
        if self._peers.size == 1:
            return sent
        received = sent.new_empty(sum(lengths))
        rounds = -(-largest // MOST)  # equal on all ranks, also on those that send little: each round is a collective
        if rounds <= 1:
            self._wait(dist.all_to_all_single(received, sent, list(lengths), list(sizes), self._group, True), what)
            return received
        most = MOST // sent.element_size()
        out, into = torch.split(sent, list(sizes)), torch.split(received, list(lengths))
        for first in range(0, rounds * most, most):
            pieces, places = ([part[first : first + most] for part in parts] for parts in (out, into))
            piece = sent.new_empty(sum(map(len, places)))
            counts = list(map(len, places)), list(map(len, pieces))
            self._wait(dist.all_to_all_single(piece, torch.cat(pieces), *counts, self._group, True), what)
            for place, values in zip(places, torch.split(piece, counts[0]), strict=True):
                place.copy_(values)
        return received

    def swap_rows(self, row: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        """Send row r of (W, n) to rank r; return (W, n) the rows from all ranks."""
        if self._peers.size == 1:
            return row
        received = torch.empty(row.shape, dtype=torch.int64)
        self._wait(dist.all_to_all_single(received, torch.from_numpy(row), group=self._group, async_op=True), what)
        return received.numpy()

    def sum(self, values: Tensor, what: str) -> None:
        """Replace the values by the sums over ranks, which have the same bits on all."""
        self._wait(dist.all_reduce(values, group=self._group, async_op=True), what)

    def gather(self, array: NDArray[Any], what: str) -> list[NDArray[Any]]:
        """Return every rank's array (n,), each of any length and all of one dtype."""
        peers, raw = self._peers, torch.from_numpy(np.array(array).reshape(-1).view(np.uint8))
        # The name of the call travels along: ranks that make different calls would else exchange nonsense.
        header = len(raw), peers.heard, zlib.crc32(what.encode())
        lengths = self.swap_rows(np.full((peers.size, 3), header), what)
        if len(other := np.flatnonzero(lengths[:, 2] != header[2])):
            raise RanksError(
                f"ranks are out of step: expected {what} as on {peers.name}, got something else on "
                f"{peers.names[other[0]]}. Make the same calls in the same order on all ranks."
            )
        peers.agreed = peers.agreed or int(lengths[:, 1].max())
        sizes, most = lengths[:, 0].tolist(), int(lengths[:, 0].max())
        whole = self.swap(raw.repeat(peers.size), [len(raw)] * peers.size, sizes, most, what)
        return [part.numpy().view(array.dtype) for part in torch.split(whole, sizes)]

    def gather_facts(self, facts: Any, what: str = "facts") -> list[Any]:
        """Return every rank's facts, which are JSON values."""
        raw = np.frombuffer(json.dumps(facts, sort_keys=True).encode(), np.uint8)
        return [json.loads(part.tobytes()) for part in self.gather(raw, what)]

    def _wait(self, work: Any, what: str) -> None:
        """Wait for a collective.

        Raises:
            AdaptiveError: of the class with which another rank has failed.
            RanksError: if ranks are gone, or late.
        """
        until = time.monotonic() + self._peers.timeout_s
        while True:
            try:
                work.wait(GLANCE)  # not the whole timeout: a rank that has failed may never answer, but leaves a note
                return
            except RuntimeError as error:
                trouble = str(error).splitlines()[0][:300] if work.is_completed() else ""
            if self.abandoned:
                raise RanksError(f"{self._peers.name}: its loop has ended with an error, so {what} is not exchanged.")
            if (failure := self._peers.failure()) is not None:
                raise failure
            if trouble or time.monotonic() > until:
                raise self._peers.explain(what, trouble or f"no answer in {self._peers.timeout_s:g} s")


class Peers:
    """The processes that train together, as this one sees them. Starts the process group if there is none.

    Args:
        process_group: its ranks take part; None for all.
        timeout_s: seconds that a rank waits for the others.
        backend: how vectors and gradients on GPUs cross: `nccl` from device to device, with one GPU per rank; `gloo`
            through the host, where ranks may share a GPU; `auto` takes nccl where it can be used.

    Attributes:
        ahead, rows: channels of the look-ahead thread and of the training thread.
        heard: number of a signal that this rank has received, 0 for none.
        agreed: number of a signal that some rank had received; all ranks learn of it at the same point.
        gpu: number of this rank's GPU; None for the current one, or if there is none.

    Raises:
        ConfigError: if the environment names no rank, or nccl cannot be used.
        RanksError: if the ranks do not find each other.
    """

    def __init__(self, process_group: Any = None, *, timeout_s: float = 600.0, backend: Backend = "auto") -> None:
        self.timeout_s, self._timeout, self.backend = timeout_s, timedelta(seconds=timeout_s), backend
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        has_nccl = gpus > 0 and dist.is_nccl_available()
        if backend == "nccl" and not has_nccl:
            raise ConfigError(
                "ranks.backend=nccl: expected a CUDA device and torch with NCCL, got none. Use gloo or auto."
            )
        self._owns_group = not dist.is_initialized()
        if self._owns_group:
            _start_process_group(self._timeout, "cpu:gloo,cuda:nccl" if has_nccl and backend != "gloo" else "gloo")
        group = dist.group.WORLD if process_group is None else process_group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        local = os.environ.get("LOCAL_RANK")
        self.gpu = int(local) % gpus if gpus and local is not None else None
        self._values_group, self.uses_nccl = group, False
        self.heard = self.agreed = 0
        number = next(_numbers)
        self._prefix = "adaptive"
        self._store_lock = threading.Lock()
        self.names = [f"rank {rank}" for rank in range(self.size)]
        members = dist.get_process_group_ranks(group)
        self.ahead, self.rows = (
            Channel(self, _meet(lambda: dist.new_group(members, self._timeout, "gloo"))) for _ in ("ahead", "rows")
        )
        place = f"{socket.gethostname()}, process {os.getpid()}"
        facts = [place, self._gpu_name(gpus), "cuda:nccl" in dist.get_backend_config(group), number]
        places, self._gpu_names, has_group, numbers = zip(*self.rows.gather_facts(facts, "names"), strict=True)
        self._prefix = f"adaptive/{numbers[0]}"  # of notes in the store, which other `Peers` use, too
        self.places: list[str] = list(places)
        self.names = [f"rank {rank} of {self.size} ({place})" for rank, place in enumerate(places)]
        self._all_have_nccl = all(has_group)

    def _gpu_name(self, gpus: int) -> str:
        if not gpus:
            return ""
        number = torch.cuda.current_device() if self.gpu is None else self.gpu
        return f"{socket.gethostname()} {getattr(torch.cuda.get_device_properties(number), 'uuid', number)}"

    @property
    def name(self) -> str:
        return self.names[self.rank]

    @property
    def is_first(self) -> bool:
        """True for the rank that writes files which are written once."""
        return self.rank == 0

    def use_device(self, kind: str) -> None:
        """Choose how values cross between device tiers of this kind, "cpu" or "cuda", and try it.

        Raises:
            ConfigError: on every rank, if NCCL is wanted and cannot be used, or ranks would share a GPU by accident.
            RanksError: if numbers do not arrive as they were sent.
        """
        names, trouble = self._gpu_names, ""
        if shared := sorted({name for name in names if not name or names.count(name) > 1}):
            trouble = f"a rank has no GPU, or ranks share one ({', '.join(filter(None, shared))})"
        if kind == "cuda" and self.backend != "gloo" and trouble:
            raise ConfigError(
                f"ranks.backend={self.backend}: expected one GPU for each rank, got another number: {trouble}. Start "
                "as many ranks as there are GPUs, set tier.device=cpu, or set ranks.backend=gloo to share GPUs."
            )
        if self.backend == "nccl" and not (kind == "cuda" and self._all_have_nccl):
            raise ConfigError(
                "ranks.backend=nccl: expected rows on GPUs and a process group with NCCL, got tier.device="
                f"{kind}. Use gloo or auto, or start the group by init_process_group('cpu:gloo,cuda:nccl')."
            )
        self.uses_nccl = kind == "cuda" and self.backend != "gloo" and self._all_have_nccl
        if kind == "cuda" and self.gpu is not None:
            torch.cuda.set_device(self.gpu)
        pattern = torch.arange(self.size, dtype=torch.float32, device=kind) + self.rank * self.size
        expected = torch.arange(self.size, dtype=torch.float32) * self.size + self.rank
        ones = [1] * self.size
        if not torch.equal(self.swap_values(pattern, ones, ones, 4, "a pattern").cpu(), expected):
            raise RanksError(
                f"{self.name}: expected the numbers that were sent, got others. Check the network or NCCL."
            )

    def swap_values(
        self, values: Tensor, sizes: Sequence[int], lengths: Sequence[int], largest: int, what: str
    ) -> Tensor:
        """`Channel.swap` of the training thread, for numbers on the device tier. By NCCL, the host does not wait."""
        if not self.uses_nccl:
            return self.rows.swap(values.cpu(), sizes, lengths, largest, what).to(values.device)
        received = values.new_empty(sum(lengths))
        dist.all_to_all_single(received, values, list(lengths), list(sizes), self._values_group)
        return received

    def sum_values(self, values: Tensor, what: str) -> None:
        """`Channel.sum` of the training thread, for numbers on the device tier."""
        if self.uses_nccl:
            dist.all_reduce(values, group=self._values_group)
        elif self.size > 1:
            on_host = values.cpu()  # the tensor itself on a CPU
            self.rows.sum(on_host, what)
            values.copy_(on_host)

    def require_equal(self, facts: Mapping[str, object]) -> None:
        """Check that all ranks have the same facts, JSON values by name.

        Raises:
            ConfigError: on every rank, with the first fact that differs, the ranks and their values.
        """
        of_ranks = [_flat(of_rank) for of_rank in self.rows.gather_facts(facts)]
        for name in dict.fromkeys(name for of_rank in of_ranks for name in of_rank):
            values = [of_rank.get(name) for of_rank in of_ranks]
            for rank, value in enumerate(values):
                if value != values[0]:
                    first, other = (repr(number)[:200] for number in (values[0], value))
                    raise ConfigError(
                        f"ranks differ: expected {name} = {first} as on {self.names[0]}, got {other} on "
                        f"{self.names[rank]}. Start all ranks with the same settings, data and versions."
                    )

    # --- errors ----------------------------------------------------------------------------------------------

    def report(self, error: BaseException) -> None:
        """Leave a note about an error that ends this rank, and wait for nothing any more."""
        self.rows.abandoned = self.ahead.abandoned = True
        self.note(error)

    def note(self, error: BaseException) -> None:
        """Leave a note about an error of this rank, unless another rank has left one."""
        code = error.exit_code if isinstance(error, AdaptiveError) else RanksError.exit_code
        text = str(error) if isinstance(error, AdaptiveError) else f"{type(error).__name__}: {error}"
        note = json.dumps([self.rank, code, text[:4000]])
        # Only the first note counts: the others fail because that rank has.
        self._ask_store(lambda store: store.compare_set(f"{self._prefix}/failed", "", note), None)

    @contextlib.contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Report an error inside to the other ranks, which raise it, too."""
        try:
            yield
        except Exception as error:
            self.report(error)
            raise

    def failure(self) -> AdaptiveError | None:
        """Return the error that a rank has noted, if any."""
        key = f"{self._prefix}/failed"
        note = self._ask_store(lambda store: store.get(key).decode() if store.check([key]) else "", "")
        if not note:
            return None
        rank, code, text = json.loads(note)
        # Its own, too: the others may have left before its training thread sees the look-ahead thread's error.
        return _error_class(code)(text if rank == self.rank else f"{self.names[rank]}: {text}")

    def explain(self, what: str, trouble: str) -> AdaptiveError:
        """Return the error for an exchange that failed: that of another rank, or one that names the silent ranks."""
        keys = [f"{self._prefix}/alive/{rank}" for rank in range(self.size)]

        def find_silent(store: Any) -> list[int]:
            store.set(keys[self.rank], "1")
            with contextlib.suppress(RuntimeError):  # not all in time
                store.wait(keys, timedelta(seconds=ALIVE_SECONDS))
            return [rank for rank, key in enumerate(keys) if not store.check([key])]

        silent = self._ask_store(find_silent, [0] if self.rank else [])  # without a store, its host is gone
        if (failure := self.failure()) is not None:
            return failure
        if silent:
            advice = f"No response from {', '.join(self.names[rank] for rank in silent)}. Look for its own error first"
        else:
            advice = "All ranks respond now: one was late, or left its loop. Raise ranks.timeout_s if that is normal"
        return RanksError(
            f"{self.name}: expected {what} from all ranks, got an error: {trouble}. {advice}, then resume from the "
            "latest checkpoint."
        )

    def _ask_store(self, question: Callable[[Any], T], otherwise: T) -> T:
        """Return the store's answer, or `otherwise` if it gives none in time: torch's calls may never return."""
        answers: list[T] = []

        def ask() -> None:
            with contextlib.suppress(Exception):
                answers.append(question(dist.distributed_c10d._get_default_store()))

        with self._store_lock:  # two threads would receive each other's answers
            thread = threading.Thread(target=ask, name="adaptive-store", daemon=True)
            thread.start()
            thread.join(2 * ALIVE_SECONDS)
        return answers[0] if answers else otherwise

    def close(self) -> None:
        """End the process group, if `Peers` has started it."""
        if self._owns_group and dist.is_initialized():
            self._owns_group = False
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


def _start_process_group(timeout: timedelta, backends: str) -> None:
    """Start it with separate keys in the store for each attempt of torchrun, which restarts with the same store."""
    if missing := [name for name in OF_A_RANK if name not in os.environ]:
        raise ConfigError(
            f"environment: expected {', '.join(OF_A_RANK)}, got no {', '.join(missing)}. Start the program with "
            "torchrun, or with adaptive-train run --ranks N."
        )

    def meet() -> None:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        attempt = f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-of-{size}"
        store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
        dist.init_process_group(backends, store=store, rank=rank, world_size=size, timeout=timeout)

    _meet(meet)


def _meet(meet: Callable[[], T]) -> T:
    try:
        return meet()
    except (RuntimeError, ValueError) as error:  # dist.DistError is a RuntimeError
        place = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        raise RanksError(
            f"rank {os.environ.get('RANK', '?')} of {os.environ.get('WORLD_SIZE', '?')}: expected to find all ranks at "
            f"{place}, got an error: {error}. Check that all ranks have started with the same address, and that their "
            "hosts can reach it."
        ) from error


def _error_class(code: int) -> type[AdaptiveError]:
    """Return the class of errors with this exit code; `RanksError` for any other code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdaptiveError)]
    return {kind.exit_code: kind for kind in kinds if kind is not AdaptiveError}.get(code, RanksError)


def _flat(facts: Any, path: str = "") -> dict[str, object]:
    """Return the values of nested dicts by their paths, such as `settings.optimizer.lr`."""
    if not isinstance(facts, dict):
        return {path: facts}
    inner = [_flat(value, f"{path}.{name}".removeprefix(".")) for name, value in facts.items()]
    return {name: value for values in inner for name, value in values.items()}
