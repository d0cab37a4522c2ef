"""What exchanges between these ranks cost: latency and bandwidth as training has them, and over which interface.

Measured is the transport of training, on its channel of vectors: a swap of small messages, as headers are, and one of
larger ones, as vectors are. The interface is the one on which bytes were counted meanwhile
(`/proc/net/dev`), not the one that somebody has set.
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

EXCHANGES: Final = 4  # of a step: requests, vectors, gradients; mostly sums of slices of dense ones, from 3 ranks on
SMALL: Final = 64  # bytes, about a header
LARGE: Final = 4 << 20  # bytes to each rank
ROUNDS_SMALL, ROUNDS_LARGE = 60, 8
LOOPBACK: Final = "lo"
SLOW_MS: Final = 1.0  # of an exchange: four of them are a good part of a step
SLOW_RATE: Final = 100e6  # bytes a second: a megabyte takes 10 ms
SHARE: Final = 0.2  # of an interface's own speed


@dataclass(frozen=True)
class RankLink:
    """How one rank exchanges."""

    host: str
    address: str
    set_interface: str | None  # by GLOO_SOCKET_IFNAME
    interface: str
    interface_bytes_per_s: float | None  # None: it does not say
    exchange_ms: float
    bytes_per_s: float


@dataclass(frozen=True)
class RankLinks:
    """How all exchange, equal on all of them; times are the slowest rank's."""

    ranks: int
    hosts: int
    exchange_ms: float
    bytes_per_s: float
    of_each_rank: Mapping[str, RankLink]


def measure(ranks: Ranks, transport: Transport) -> RankLinks:
    """Measure the exchanges of these ranks; all call it together."""
    small_ms = _median_ms(_swap_of(transport, SMALL), ROUNDS_SMALL)
    before = bytes_by_interface()
    large_ms = _median_ms(_swap_of(transport, LARGE), ROUNDS_LARGE)
    interface = busiest(before, bytes_by_interface())
    link = RankLink(
        host=socket.gethostname(),
        address=_own_address(),
        set_interface=os.environ.get("GLOO_SOCKET_IFNAME"),
        interface=interface,
        interface_bytes_per_s=interface_speed(interface),
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
    """One sentence about what a step pays, and what is wrong: each with what to do."""
    latency, rate, several = links.exchange_ms, links.bytes_per_s, links.hosts > 1
    text = (
        f"ranks: an exchange takes {latency:.2f} ms, of which a step has {EXCHANGES}: {EXCHANGES * latency:.1f} ms; "
        f"then a megabyte of rows or gradients {1e9 / rate:.1f} ms ({rate / 1e6:,.0f} MB/s from each rank)"
    )
    problems = []
    for rank, link in links.of_each_rank.items():
        speed = link.interface_bytes_per_s
        if several and (link.interface == LOOPBACK or link.address.startswith("127.")):
            problems.append(
                f"problem: {rank} on {link.host} has the address {link.address} and sends by {link.interface}: "
                "set GLOO_SOCKET_IFNAME to the interface between the hosts, on all of them"
            )
        elif several and speed and link.bytes_per_s < SHARE * speed:
            problems.append(
                f"problem: {rank} sends {link.bytes_per_s / 1e6:,.0f} MB/s by {link.interface}, which could do "
                f"{speed / 1e6:,.0f}: other traffic, or a slow switch or host on the way"
            )
    if several and (latency > SLOW_MS or rate < SLOW_RATE):
        names = ", ".join(sorted({link.interface for link in links.of_each_rank.values()}))
        problems.append(
            f"problem: the network is slow for training on ranks (by {names}): if there is "
            "a faster interface, set GLOO_SOCKET_IFNAME to it on all hosts; larger batches need fewer exchanges"
        )
    elif latency > SLOW_MS or rate < SLOW_RATE:
        problems.append(
            f"problem: slow within one host: {links.ranks} ranks share its cores with other programs; start fewer ranks"
        )
    return text, problems


def _swap_of(transport: Transport, size: int) -> Callable[[], Any]:
    """An exchange of `size` bytes with each rank."""
    parts = [[np.zeros(size, np.uint8)]] * transport.size
    return lambda: transport.swap(ROWS, parts, [size] * transport.size, size)


def _median_ms(exchange: Callable[[], Any], rounds: int) -> float:
    exchange()  # connections are there, memory is touched
    times_ms = []
    for _ in range(rounds):
        started = time.perf_counter()
        exchange()
        times_ms.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times_ms)


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
        megabits = int((folder / name / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


def _own_address() -> str:
    """Of this host, by its name."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)[0][4][0])
    except OSError:
        return "unknown"
