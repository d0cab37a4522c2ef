"""What exchanges between these ranks cost: latency and bandwidth as training has them, and over which interface.

Measured is the transport of training, on its channel of vectors: a swap of small messages, as headers are, and one of
larger ones, as vectors are. The interface is the one on which bytes were counted meanwhile
(`/proc/net/dev`), not the one that somebody has set.
"""

import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from adaptive.embeddings.ranks.ranks import Ranks
from adaptive.embeddings.ranks.transport import ROWS, Transport

EXCHANGES: Final = 4  # of a step: requests, vectors, gradients; mostly sums of slices of dense ones, from 3 ranks on
SMALL: Final = 64  # bytes, about a header
LARGE: Final = 4 << 20  # bytes to each rank
ROUNDS_SMALL, ROUNDS_LARGE = 60, 8
LOOPBACK: Final = "lo"
SLOW_MS: Final = 1.0  # of an exchange: four of them are a good part of a step
SLOW_RATE: Final = 100e6  # bytes a second: a megabyte takes 10 ms
SHARE: Final = 0.2  # of an interface's own speed


def measure(ranks: Ranks, transport: Transport) -> dict[str, Any]:
    """Facts about the exchanges of these ranks, equal on all of them; all call it together.

    Times are the slowest rank's.
    """
    small = _median_ms(_swap_of(transport, SMALL), ROUNDS_SMALL)
    before = bytes_by_interface()
    large = _median_ms(_swap_of(transport, LARGE), ROUNDS_LARGE)
    interface = busiest(before, bytes_by_interface())
    found = {
        "host": socket.gethostname(),
        "address": _own_address(),
        "set_interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "interface": interface,
        "interface_bytes_per_s": interface_speed(interface),
        "exchange_ms": small,
        "bytes_per_s": 1e3 * LARGE * (transport.size - 1) / large,
    }
    everyones = ranks.gather_facts(found)
    return {
        "ranks": ranks.size,
        "hosts": len({one["host"] for one in everyones}),
        "exchange_ms": max(one["exchange_ms"] for one in everyones),
        "bytes_per_s": min(one["bytes_per_s"] for one in everyones),
        "of_each_rank": {f"rank {rank}": one for rank, one in enumerate(everyones)},
    }


def verdicts(found: Mapping[str, Any]) -> tuple[str, list[str]]:
    """One sentence about what a step pays, and what is wrong: each with what to do."""
    latency, rate, several = found["exchange_ms"], found["bytes_per_s"], found["hosts"] > 1
    text = (
        f"ranks: an exchange takes {latency:.2f} ms, of which a step has {EXCHANGES}: {EXCHANGES * latency:.1f} ms; "
        f"then a megabyte of rows or gradients {1e9 / rate:.1f} ms ({rate / 1e6:,.0f} MB/s from each rank)"
    )
    problems = []
    for rank, one in found["of_each_rank"].items():
        speed = one["interface_bytes_per_s"]
        if several and (one["interface"] == LOOPBACK or one["address"].startswith("127.")):
            problems.append(
                f"problem: {rank} on {one['host']} has the address {one['address']} and sends by {one['interface']}: "
                "set GLOO_SOCKET_IFNAME to the interface between the hosts, on all of them"
            )
        elif several and speed and one["bytes_per_s"] < SHARE * speed:
            problems.append(
                f"problem: {rank} sends {one['bytes_per_s'] / 1e6:,.0f} MB/s by {one['interface']}, which could do "
                f"{speed / 1e6:,.0f}: other traffic, or a slow switch or host on the way"
            )
    names = ", ".join(sorted({one["interface"] for one in found["of_each_rank"].values()}))
    if several and (latency > SLOW_MS or rate < SLOW_RATE):
        problems.append(
            f"problem: the network is slow for training on ranks (by {names}): if there is "
            "a faster interface, set GLOO_SOCKET_IFNAME to it on all hosts; larger batches need fewer exchanges"
        )
    elif not several and (latency > SLOW_MS or rate < SLOW_RATE):
        problems.append(
            f"problem: slow within one host: {found['ranks']} ranks share its cores with other programs; start "
            "fewer ranks"
        )
    return text, problems


def _swap_of(transport: Transport, size: int) -> Callable[[], Any]:
    """An exchange of `size` bytes with each rank."""
    parts = [[np.zeros(size, np.uint8)]] * transport.size
    return lambda: transport.swap(ROWS, parts, [size] * transport.size, size)


def _median_ms(exchange: Callable[[], Any], rounds: int) -> float:
    exchange()  # connections are there, memory is touched
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        exchange()
        found.append(1e3 * (time.perf_counter() - started))
    return statistics.median(found)


def bytes_by_interface(file: Path = Path("/proc/net/dev")) -> dict[str, int]:
    """Bytes sent so far by each interface; nothing where the system does not tell."""
    if not file.is_file():
        return {}
    lines = [line.partition(":") for line in file.read_text().splitlines() if ":" in line]
    return {name.strip(): int(rest.split()[8]) for name, _, rest in lines}


def busiest(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """The interface that sent most between two looks."""
    grown = {name: size - before.get(name, 0) for name, size in after.items()}
    return max(grown, key=lambda name: grown[name], default="unknown")


def interface_speed(name: str, folder: Path = Path("/sys/class/net")) -> float | None:
    """Bytes a second that an interface says it can do; None: it does not say."""
    try:
        found = int((folder / name / "speed").read_text())
    except (OSError, ValueError):
        return None
    return found * 1e6 / 8 if found > 0 else None


def _own_address() -> str:
    """Of this host, by its name."""
    try:
        found: Sequence[Any] = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return "unknown"
    return str(found[0][4][0])
