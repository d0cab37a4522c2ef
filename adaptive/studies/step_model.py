"""`Machine`: bandwidths of a machine that need not exist, and how long a step would take on it.

Letters, per batch: N look-ups, U distinct rows, V vectors (one a bag), R bytes of a row's values, s bytes of its
optimizer state, E = V * R bytes of all vectors, F rows fetched, W rows written back.

    device only       (N*R + 2*E + 2*U*(R+s)) / device + dense
    hybrid            (N*R + 2*E + 2*U*(R+s)) / host + 2*E / link + dense
    serial            plan + device only + max(F, W)*(R+s) / link + (F + W)*(R+s) / host
    look-ahead        max(plan, device only, max(F, W)*(R+s) / link, (F + W)*(R+s) / host)
    XDL               hybrid + 2 * bytes of all dense weights / link

A row is read for pooling at each look-up, its vector written and its gradient read, and the row with its state read
and written by the update. The link carries F rows one way and W the other at the same time; the host's memory sees
both. *plan* is what planning a batch took here, in the simulation. Without overlap (serial, rows cached on demand) all
is waited for; look-ahead hides whatever is not the longest, if overlap is perfect. A real step lies between the two.
The floor is a device that holds everything, for which nothing need be planned.

Where a policy leaves misses on the host (`misses = "host"`) their share of the work stays there and cannot be hidden:
in place of device only stand hits at the device's bandwidth, plus misses as under hybrid, and look-ahead hides only the
planning or else everything but it. With nothing on the device serial is plan + hybrid.

Where a machine was measured (`adaptive-train profile --save`), there is also the step that it is expected to take, with
what overlap hides there in place of all or nothing:

    expected        train + look - overlap * min(train, look)
    train           device only, or served where they lie; vectors cross the link only where they do so in training
    look            reading + planning * factor + (F+W)*(R+s) / move

XDL, a parameter server, sends all dense weights both ways at each step (FAE, PVLDB 15(1), 5.2.3). It is modelled where
their size is told.
"""

import math
import re
from dataclasses import dataclass

from adaptive.config import parse_size
from adaptive.errors import ConfigError
from adaptive.studies.machines import MachineSpec, Measured

_RATE = re.compile(r"(\S+B)/s")


@dataclass(frozen=True)
class Machine:
    """Bytes per second of the link between the tiers (each way), of device and host memory; the dense part's cost."""

    link: float
    device: float
    host: float
    dense_ms: float
    dense_bytes: int = 0  # of all dense weights; 0: not known
    measured: Measured | None = None  # with it the expected step is told


@dataclass(frozen=True)
class Traffic:
    """What a mean batch looks up and moves; counts are means, so not whole."""

    lookups: float
    lookup_hits: float
    rows: float
    row_hits: float
    vectors: float
    host_vectors: float  # pooled at least in part on the host
    fetched: float
    written_back: float
    value_bytes: int
    row_bytes: int  # with optimizer state


def parse_rate(text: str, *, name: str) -> float:
    """Bytes per second of `50GB/s`.

    Raises:
        ConfigError: if it is no rate above 0; `name` is what it is the rate of.
    """
    match = _RATE.fullmatch(text.replace(" ", ""))
    try:
        rate = parse_size(match[1], row_bytes=1, num_rows=2**62) if match else 0
    except ValueError:
        rate = 0
    if rate <= 0:
        raise ConfigError(f"{name} {text!r}: needed a rate above 0, such as 50GB/s or 900MB/s")
    return float(rate)


def described(spec: MachineSpec, *, flops_per_sample: float, batch_size: int) -> Machine:
    """A machine of a file: its measured rates, or else those of its parts with the shares of the peaks it assumes.

    The dense part's time goes by its operations: those that were measured, or the accelerators' (else processors').

    Raises:
        ConfigError: if the file holds neither.
    """
    flops = flops_per_sample * batch_size
    if (found := spec.measured) is not None:
        dense_ms = found.dense_ms * flops / (found.flops_per_sample * found.batch_size)
        link = found.move if found.vectors_cross else math.inf
        return Machine(link, found.device, found.host, dense_ms, measured=found)
    if spec.host is None:
        raise ConfigError(f"machine {spec.name!r} has neither [measured] nor [host]: needed one of them")
    share, host = spec.assumed, spec.host
    gpu = spec.gpu
    device = gpu.bandwidth * share.gpu_bandwidth * gpu.count if gpu else host.bandwidth * share.host_bandwidth
    speed = (gpu.flops * gpu.count if gpu else host.flops) * share.flops
    link = host.link * share.link * gpu.count if gpu else math.inf
    return Machine(link, device, host.bandwidth * share.host_bandwidth, 1e3 * flops / speed)


def expected_ms(
    traffic: Traffic, machine: Machine, *, staged: bool, plan_ms: float, read_ms: float, depth: int
) -> float | None:
    """Milliseconds of a step as a measured machine would take them; None for one that was not measured."""
    found = machine.measured
    if found is None:
        return None
    work = _bytes(traffic, traffic.lookups, traffic.vectors, traffic.rows)
    train = 1e3 * work / machine.device + machine.dense_ms if staged else _served_where_they_lie(traffic, machine)
    moved = 1e3 * (traffic.fetched + traffic.written_back) * traffic.row_bytes / found.move
    look = read_ms + plan_ms * found.plan_factor + moved
    overlap = (found.overlap_staged if staged else found.overlap_host) if depth else 0.0
    return train + look - overlap * min(train, look)


def step_ms(traffic: Traffic, machine: Machine, *, staged: bool, plan_ms: float) -> dict[str, float]:
    """Milliseconds of a step by where rows live, as the module says.

    `xdl` is among them only if the machine says how large the dense part is.

    Args:
        traffic: of a mean batch.
        machine: on which it would run.
        staged: misses are fetched (or else served on the host).
        plan_ms: milliseconds that planning the batch takes.
    """
    work = _bytes(traffic, traffic.lookups, traffic.vectors, traffic.rows)
    vectors = 2 * traffic.vectors * traffic.value_bytes
    device_only = 1e3 * work / machine.device + machine.dense_ms
    link = 1e3 * max(traffic.fetched, traffic.written_back) * traffic.row_bytes / machine.link
    host = 1e3 * (traffic.fetched + traffic.written_back) * traffic.row_bytes / machine.host
    served = device_only if staged else _served_where_they_lie(traffic, machine)
    hybrid = 1e3 * (work / machine.host + vectors / machine.link) + machine.dense_ms
    times = {
        "look_ahead": max(plan_ms, device_only, link, host) if staged else max(plan_ms, served + link + host),
        "serial": plan_ms + served + link + host,
        "hybrid": hybrid,
        "device_only": device_only,
    }
    return times | ({"xdl": hybrid + 1e3 * 2 * machine.dense_bytes / machine.link} if machine.dense_bytes else {})


def _served_where_they_lie(traffic: Traffic, machine: Machine) -> float:
    missed = traffic.lookups - traffic.lookup_hits, traffic.rows - traffic.row_hits
    on_host = _bytes(traffic, missed[0], traffic.host_vectors, missed[1])
    vectors = traffic.vectors - traffic.host_vectors
    on_device = _bytes(traffic, traffic.lookup_hits, vectors, traffic.row_hits)
    across = 2 * traffic.host_vectors * traffic.value_bytes
    return 1e3 * (on_device / machine.device + on_host / machine.host + across / machine.link) + machine.dense_ms


def _bytes(traffic: Traffic, lookups: float, vectors: float, rows: float) -> float:
    """Bytes of memory that pooling and updating touch."""
    return (lookups + 2 * vectors) * traffic.value_bytes + 2 * rows * traffic.row_bytes
