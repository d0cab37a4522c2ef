"""Measures exchanges between ranks: latency, bandwidth, and the network interface.

This measures the transport of training on its channel of vectors: exchanges of small messages, like headers, and of
large ones, like vectors. The interface is the one that sent the bytes according to `/proc/net/dev`, which may differ
from the one that is configured.
"""

import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from adaptive.embeddings.ranks.ranks import Ranks
from adaptive.embeddings.ranks.transport import ROWS, Transport

EXCHANGES: Final = 4  # of a step: requests, vectors, gradients; with 3 ranks or more usually dense sums, too
SMALL: Final = 64  # bytes, about a header
LARGE: Final = 4 << 20  # bytes to each rank
ROUNDS_SMALL, ROUNDS_LARGE = 60, 8
LOOPBACK: Final = "lo"
SLOW_MS: Final = 1.0  # of an exchange: four of them are a large part of a step
SLOW_RATE: Final = 100e6  # bytes per second: a megabyte takes 10 ms
SHARE: Final = 0.2  # of an interface's speed, below which a rank is reported as slow


@dataclass(frozen=True)
class RankLink:
    """Connection of one rank."""

    host: str
    address: str
    set_interface: str | None  # GLOO_SOCKET_IFNAME
    interface: str  # that sent most bytes
    interface_bytes_per_s: float | None  # speed of the interface; None if unknown
    exchange_ms: float
    bytes_per_s: float


@dataclass(frozen=True)
class RankLinks:
    """Connections of all ranks, equal on all of them; times are those of the slowest rank."""

    ranks: int
    hosts: int
    exchange_ms: float
    bytes_per_s: float
    of_each_rank: Mapping[str, RankLink]


def measure(ranks: Ranks, transport: Transport) -> RankLinks:
    """Measure the exchanges of these ranks; all ranks call it together."""
    small_ms = _measure_ms(_make_exchange(transport, SMALL), ROUNDS_SMALL)
    bytes_at_start = read_interface_bytes()
    large_ms = _measure_ms(_make_exchange(transport, LARGE), ROUNDS_LARGE)
    interface = busiest(bytes_at_start, read_interface_bytes())
    link = RankLink(
        host=socket.gethostname(),
        address=_own_address(),
        set_interface=os.environ.get("GLOO_SOCKET_IFNAME"),
        interface=interface,
        interface_bytes_per_s=read_interface_speed(interface),
        exchange_ms=small_ms,
        bytes_per_s=1e3 * LARGE * (transport.size - 1) / large_ms,
    )
    links = [RankLink(**facts) for facts in ranks.gather_facts(asdict(link))]
    return RankLinks(
        ranks=ranks.size,
        hosts=len({link.host for link in links}),
        exchange_ms=max(link.exchange_ms for link in links),
        bytes_per_s=min(link.bytes_per_s for link in links),
        of_each_rank={f"rank {rank}": link for rank, link in enumerate(links)},
    )


def verdicts(links: RankLinks) -> tuple[str, list[str]]:
    """Return one sentence about the cost of a step, and the problems, each with its fix."""
    latency, rate, several = links.exchange_ms, links.bytes_per_s, links.hosts > 1
    text = (
        f"ranks: an exchange takes {latency:.2f} ms, so the {EXCHANGES} exchanges of a step take "
        f"{EXCHANGES * latency:.1f} ms; each megabyte of rows or gradients adds {1e9 / rate:.1f} ms "
        f"({rate / 1e6:,.0f} MB/s from each rank)"
    )
    problems = []
    for rank, link in links.of_each_rank.items():
        speed = link.interface_bytes_per_s
        if several and (link.interface == LOOPBACK or link.address.startswith("127.")):
            problems.append(
                f"problem: {rank} on {link.host} has the address {link.address} and sends by {link.interface}. "
                "Set GLOO_SOCKET_IFNAME to the interface between the hosts, on all hosts."
            )
        elif several and speed and link.bytes_per_s < SHARE * speed:
            problems.append(
                f"problem: {rank} sends {link.bytes_per_s / 1e6:,.0f} MB/s by {link.interface}, which supports "
                f"{speed / 1e6:,.0f} MB/s. Look for other traffic, or a slow switch or host."
            )
    if several and (latency > SLOW_MS or rate < SLOW_RATE):
        names = ", ".join(sorted({link.interface for link in links.of_each_rank.values()}))
        problems.append(
            f"problem: the network is slow for training on ranks (by {names}). If there is a faster interface, set "
            "GLOO_SOCKET_IFNAME to it on all hosts. Use larger batches for fewer exchanges."
        )
    elif latency > SLOW_MS or rate < SLOW_RATE:
        problems.append(
            f"problem: exchanges within one host are slow, because {links.ranks} ranks share its cores with other "
            "programs. Start fewer ranks."
        )
    return text, problems


def _make_exchange(transport: Transport, size: int) -> Callable[[], Any]:
    """Return a function that exchanges `size` bytes with each rank."""
    parts = [[np.zeros(size, np.uint8)]] * transport.size
    return lambda: transport.swap(ROWS, parts, [size] * transport.size, size)


def _measure_ms(exchange: Callable[[], Any], rounds: int) -> float:
    exchange()  # warm-up: opens connections and touches memory
    times_ms = []
    for _ in range(rounds):
        started = time.perf_counter()
        exchange()
        times_ms.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times_ms)


def read_interface_bytes(file: Path = Path("/proc/net/dev")) -> dict[str, int]:
    """Return the bytes sent so far by each interface; empty if that is unknown."""
    if not file.is_file():
        return {}
    lines = [line.partition(":") for line in file.read_text().splitlines() if ":" in line]
    return {name.strip(): int(rest.split()[8]) for name, _, rest in lines}


def busiest(start: Mapping[str, int], end: Mapping[str, int]) -> str:
    """Return the interface that sent most between two calls of `read_interface_bytes`."""
    sent = {name: size - start.get(name, 0) for name, size in end.items()}
    return max(sent, key=lambda name: sent[name], default="unknown")


def read_interface_speed(name: str, folder: Path = Path("/sys/class/net")) -> float | None:
    """Return the speed of an interface in bytes per second; None if it does not report any."""
    try:
        megabits = int((folder / name / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


def _own_address() -> str:
    """Return the address to which this host's name resolves."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)[0][4][0])
    except OSError:
        return "unknown"
