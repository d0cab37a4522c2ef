"""Model the milliseconds of a training step by where its rows are.

Letters, per batch: N lookups, U distinct rows, V vectors (one per bag, or per lookup without pooling), R bytes of a
row's values, s bytes of its optimizer state, E = V * R bytes of all vectors, F rows fetched, W rows written back.

    rows at a rate    (N*R + 2*E + 2*U*(R+s)) / rate: each lookup reads a row, each vector is written and its gradient
                      read, the update reads and writes each row with its state
    device only       rows/device + dense
    hybrid            rows/host + 2*E/link + dense
    link              max(F, W)*(R+s)/link: both directions at the same time
    moves             (F + W)*(R+s)/host: both directions use the host's memory
    serial            plan + device only + link + moves
    look-ahead        max(plan, device only, link, moves)
    XDL               hybrid, with 2*U*R over the link instead of 2*E: a parameter server sends a distinct row once

`step_ms` returns these for the traffic of a simulation; *plan* is the time that planning a batch took there. Without
overlap (serial: rows cached on demand), a step waits for everything. With perfect overlap (look-ahead), it waits only
for the longest part. A real step is in between. The floor is a device that holds all rows, which needs no planning.

If a policy leaves misses on the host (`misses = "host"`), their share of the work stays there and cannot be hidden:
device only becomes hits at the device's bandwidth plus misses as under hybrid, and look-ahead hides either the planning
or everything else. With no rows on the device, serial is plan + hybrid.

For a measured machine (`adaptive-train profile --save`), `expected_ms` predicts the step with the measured overlap:

    expected          train + look - overlap * min(train, look)
    train             device only, or rows served where they are; vectors cross the link only if they do in training
    look              reading + planning * factor + (F+W)*(R+s)/move

`StepModel` models placements of a shape on G accelerators, with traffic from the locality of some data (h: share of hot
inputs, q: share of lookups on the device). Dense work takes operations / (G * flops), plus the sum of gradients over
the accelerators' links, 2 * bytes of the dense weights:

    device            device only + exchange of 2*E*(G-1)/G over the accelerators' links (else through the host)
    host              hybrid
    remote            rows/servers + 2*E/network + dense
    tables            whole tables on the device while they fit, most lookups per byte first; the others hybrid
    lfu               serial without planning: F = W = misses of the q most frequent rows, fetched on demand
    scratchpipe       the same rows, prefetched: look-ahead without planning
    fae               h * device + (1 - h) * host + 4 copies of the hot rows per epoch of 45 million samples
    hotline           max(h * device, gathering the rest) + (1 - h) * device

XDL: FAE's section 5.2.3 says that all dense weights cross as well. Its tables 6 and 7 do not: on Criteo Kaggle XDL
moves 23 GB where DLRM moves 61, and its dense weights alone would be more than DLRM's vectors. A row sent once per
batch fits these tables. The formulas for FAE and Hotline are our reading of the papers (PVLDB 15(1), 2022; arXiv
2204.05436v1). A simulation has one device tier, so it treats several accelerators as one with their total bandwidth,
without exchange or gradient sums. Peaks are multiplied by the machine's assumed shares. Rely on the order of
placements, not on the milliseconds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import TableConfig
from adaptive.errors import ConfigError
from adaptive.studies.machines import MachineSpec, Measured
from adaptive.studies.placements.shape import Shape

EPOCH: Final = 45_000_000  # samples, in which FAE copies its hot rows SWAPS times
SWAPS: Final = 4
ROOM: Final = 0.8  # share of memory for tables


@dataclass(frozen=True)
class Machine:
    """Rates and sizes of a whole machine.

    Attributes:
        link, device, host: bytes per second between the tiers (per direction; infinity if nothing crosses), of device
            memory and of host memory.
        dense_ms: milliseconds of the dense part of a step.
        measured: needed for the expected step.
        flops: operations per second.
        devices: number of accelerators; 0 for a host alone.
        exchange: bytes per second between all accelerators together; None: through the host.
        network, servers: bytes per second of the network, and of the memory of remote servers.
        device_bytes, host_bytes: memory for tables; None if unknown, so that everything fits.
    """

    link: float
    device: float
    host: float
    dense_ms: float = 0.0
    measured: Measured | None = None
    flops: float = math.inf
    devices: int = 1
    exchange: float | None = None
    network: float | None = None
    servers: float | None = None
    device_bytes: float | None = None
    host_bytes: float | None = None


def rates_of(spec: MachineSpec) -> Machine:
    """Return a file's machine without a dense part: measured rates, or shares of peaks.

    Raises:
        ConfigError: if the file has neither.
    """
    if (measured := spec.measured) is not None:
        flops = measured.flops_per_sample * measured.batch_size / (measured.dense_ms / 1e3)
        link = measured.move if measured.vectors_cross else math.inf
        return Machine(link, measured.device, measured.host, measured=measured, flops=flops)
    share, host, gpu, network = spec.assumed, spec.host, spec.gpu, spec.network
    if host is None:
        raise ConfigError(f"machine {spec.name!r}: expected [measured] or [host], got neither")
    host_rate = host.bandwidth * share.host_bandwidth
    return Machine(
        link=gpu.count * host.link * share.link if gpu else math.inf,
        device=gpu.count * gpu.bandwidth * share.gpu_bandwidth if gpu else host_rate,
        host=host_rate,
        flops=(gpu.count * gpu.flops if gpu else host.flops) * share.flops,
        devices=gpu.count if gpu else 0,
        exchange=gpu.count * gpu.link * share.link if gpu and gpu.link else None,
        network=network.rate * share.link if network else None,
        servers=network.servers * network.bandwidth * share.host_bandwidth if network else None,
        device_bytes=ROOM * gpu.count * gpu.memory if gpu else ROOM * host.memory,
        host_bytes=ROOM * host.memory,
    )


def described(spec: MachineSpec, *, flops_per_sample: float, batch_size: int) -> Machine:
    """Return a file's machine with a dense part of `flops_per_sample`.

    Raises:
        ConfigError: from `rates_of`.
    """
    machine = rates_of(spec)
    return replace(machine, dense_ms=1e3 * flops_per_sample * batch_size / machine.flops)


def vectors_of_tables(tables: Sequence[TableConfig], samples: int, lookups: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the vectors of a batch: one per bag, or per lookup without pooling.

    Args:
        lookups: (T,) of each table.
    """
    sizes = zip(tables, lookups, strict=True)
    return sum(int(n) if table.pooling == "none" else samples * len(table.feature_names) for table, n in sizes)


@dataclass(frozen=True)
class Traffic:
    """Lookups and moved rows of an average batch."""

    lookups: float
    rows: float
    vectors: float
    value_bytes: int
    row_bytes: int  # with optimizer state
    lookup_hits: float = 0.0
    row_hits: float = 0.0
    host_vectors: float = 0.0  # pooled fully or partly on the host
    fetched: float = 0.0
    written_back: float = 0.0

    def rows_ms(self, rate: float) -> float:
        """Milliseconds for pooling and updating all rows, at `rate` bytes per second."""
        return 1e3 * self._touched(self.lookups, self.vectors, self.rows) / rate

    def vectors_ms(self, rate: float) -> float:
        """Milliseconds for sending all vectors one way and their gradients the other."""
        return 1e3 * 2 * self.vectors * self.value_bytes / rate

    def distinct_ms(self, rate: float) -> float:
        """Milliseconds for sending each distinct row one way and its gradient the other."""
        return 1e3 * 2 * self.rows * self.value_bytes / rate

    def link_ms(self, rate: float) -> float:
        """Milliseconds for moved rows over a link that works in both directions at once."""
        return 1e3 * max(self.fetched, self.written_back) * self.row_bytes / rate

    def moves_ms(self, rate: float) -> float:
        """Milliseconds for moved rows, one after another."""
        return 1e3 * (self.fetched + self.written_back) * self.row_bytes / rate

    def served_ms(self, machine: Machine) -> float:
        """Milliseconds for pooling and updating rows in the tier that has them."""
        missed = self.lookups - self.lookup_hits, self.host_vectors, self.rows - self.row_hits
        hit = self.lookup_hits, self.vectors - self.host_vectors, self.row_hits
        across = 2 * self.host_vectors * self.value_bytes
        touched = self._touched(*hit) / machine.device + self._touched(*missed) / machine.host
        return 1e3 * (touched + across / machine.link)

    def _touched(self, lookups: float, vectors: float, rows: float) -> float:
        """Bytes that pooling and updating read and write."""
        return (lookups + 2 * vectors) * self.value_bytes + 2 * rows * self.row_bytes


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of a step, see the module docstring."""

    look_ahead: float
    serial: float
    hybrid: float
    device_only: float
    xdl: float


def step_ms(traffic: Traffic, machine: Machine, *, staged: bool, plan_ms: float) -> StepTimes:
    """Model a step with the traffic of an average batch.

    Args:
        traffic: of an average batch.
        machine: runs the step.
        staged: misses are prefetched, not served on the host.
        plan_ms: milliseconds for planning the batch.
    """
    device_only = traffic.rows_ms(machine.device) + machine.dense_ms
    link, moves = traffic.link_ms(machine.link), traffic.moves_ms(machine.host)
    served = device_only if staged else traffic.served_ms(machine) + machine.dense_ms
    hybrid = traffic.rows_ms(machine.host) + traffic.vectors_ms(machine.link) + machine.dense_ms
    return StepTimes(
        look_ahead=max(plan_ms, device_only, link, moves) if staged else max(plan_ms, served + link + moves),
        serial=plan_ms + served + link + moves,
        hybrid=hybrid,
        device_only=device_only,
        xdl=hybrid - traffic.vectors_ms(machine.link) + traffic.distinct_ms(machine.link),
    )


def expected_ms(
    traffic: Traffic, machine: Machine, *, staged: bool, plan_ms: float, read_ms: float, depth: int
) -> float | None:
    """Return the expected milliseconds of a step; None without a measured machine."""
    measured = machine.measured
    if measured is None:
        return None
    train = (traffic.rows_ms(machine.device) if staged else traffic.served_ms(machine)) + machine.dense_ms
    look = read_ms + plan_ms * measured.plan_factor + traffic.moves_ms(measured.move)
    overlap = (measured.overlap_staged if staged else measured.overlap_host) if depth else 0.0
    return train + look - overlap * min(train, look)


def hidden_share(*, train_ms: float, look_ms: float, hidden_ms: float) -> float:
    """Return the hidden share of the shorter of training and look-ahead, at most 1.

    Negative if they slow each other down more than they overlap, as on few cores.
    """
    shorter = min(train_ms, look_ms)
    return min(max(hidden_ms / shorter, -1.0), 1.0) if shorter else 0.0


@dataclass(frozen=True)
class Locality:
    """Locality of the lookups in some data, interpolated between the counted points.

    Attributes:
        shares: shares of the rows that are on the device.
        lookups: share of the lookups that go to these rows.
        inputs: share of the inputs that look up these rows only.
        sizes: batch sizes.
        distinct: distinct rows over lookups of such batches.
    """

    source: str
    shares: tuple[float, ...]
    lookups: tuple[float, ...]
    inputs: tuple[float, ...]
    sizes: tuple[float, ...]
    distinct: tuple[float, ...]

    def lookup_share(self, share: float) -> float:
        return float(np.interp(share, (0.0, *self.shares, 1.0), (0.0, *self.lookups, 1.0)))

    def hot_inputs(self, share: float) -> float:
        return float(np.interp(share, (0.0, *self.shares, 1.0), (0.0, *self.inputs, 1.0)))

    def distinct_share(self, batch_size: int) -> float:
        """Distinct rows over lookups; beyond the counted sizes, that of the nearest."""
        return float(np.interp(np.log(batch_size), np.log(self.sizes), self.distinct))


@dataclass(frozen=True)
class Placed:
    """One placement: milliseconds of a step and of its parts; None if it does not fit."""

    step_ms: float | None = None
    parts_ms: dict[str, float] | None = None
    note: str = ""

    @property
    def fits(self) -> bool:
        return self.step_ms is not None

    @property
    def limit(self) -> str:
        return max(self.parts_ms, key=self.parts_ms.__getitem__) if self.parts_ms else "-"


class StepModel:
    """Step times of one shape on one machine, with the locality of some data.

    Args:
        shape: of the model.
        rates: of the machine.
        locality: of the data.
        device_share: share of the rows on the device; None for as many as its memory holds.
    """

    def __init__(self, shape: Shape, rates: Machine, locality: Locality, *, device_share: float | None = None) -> None:
        self.shape, self.rates = shape, rates
        room = 1.0 if rates.device_bytes is None else min(rates.device_bytes / shape.table_bytes, 1.0)
        self.share = room if device_share is None else device_share
        self.fits_device = self.share >= 1
        self.fits_host = rates.host_bytes is None or shape.table_bytes <= rates.host_bytes
        self.covered, self.hot = locality.lookup_share(self.share), locality.hot_inputs(self.share)
        vectors = shape.batch_size * shape.num_sparse
        lookups = float(vectors * shape.lookups)
        rows = min(lookups * locality.distinct_share(shape.batch_size), shape.num_sparse * shape.hash_size)
        moved = min((1 - self.covered) * lookups, rows)
        self.traffic = Traffic(
            lookups, rows, vectors, shape.value_bytes, shape.row_bytes, fetched=moved, written_back=moved
        )

    def placed(self, placement: str) -> Placed:
        """Model one placement of `PLACEMENTS`."""
        obstacle = self._obstacle(placement)
        return Placed(note=obstacle) if obstacle else PLACEMENTS[placement](self)

    def _obstacle(self, placement: str) -> str:
        """The reason why a placement does not fit; empty if it does."""
        if not self.rates.devices and placement not in ("host", "remote"):
            return "no accelerator"
        if placement == "remote":
            has_network = self.rates.network is not None and self.rates.servers is not None
            return "" if has_network else "the machine file has no [network]"
        if placement == "device":
            return "" if self.fits_device else "tables do not fit on the device"
        fits = self.fits_host or (self.fits_device and placement != "host")
        return "" if fits else "tables do not fit on the host"

    def dense_ms(self) -> float:
        flops = self.shape.flops_per_sample * self.shape.batch_size
        each = self.rates.devices
        links = self.rates.exchange or self.rates.link
        reduced = 2 * self.shape.dense_bytes * (each - 1) / links if each > 1 else 0.0
        return 1e3 * (flops / self.rates.flops + reduced)

    def exchange_ms(self) -> float:
        """Vectors and gradients between accelerators, over their own links or through the host."""
        each = self.rates.devices
        if each <= 1:
            return 0.0
        crossing = self.traffic.vectors_ms(1.0) * (each - 1) / each
        if self.rates.exchange is not None:
            return crossing / self.rates.exchange
        return 2 * crossing * (1 / self.rates.link + 1 / self.rates.host)

    def on_device(self) -> dict[str, float]:
        """Milliseconds of each part of a step with all rows on the device."""
        rows = self.traffic.rows_ms(self.rates.device)
        return {"device memory": rows, "exchange": self.exchange_ms(), "dense": self.dense_ms()}

    def on_host(self) -> dict[str, float]:
        """Milliseconds of each part with all rows on the host, without the dense part."""
        return {
            "host memory": self.traffic.rows_ms(self.rates.host),
            "link": self.traffic.vectors_ms(self.rates.link),
        }

    def misses(self) -> dict[str, float]:
        """Milliseconds for moving the rows that are looked up and not on the device."""
        return {
            "link": self.traffic.link_ms(self.rates.link),
            "host memory": self.traffic.moves_ms(self.rates.host),
        }

    def share_note(self, share: float, noun: str) -> str:
        return "" if self.fits_device else f"{100 * share:.1f}% of the {noun}"


def _sum(parts_ms: dict[str, float], note: str = "") -> Placed:
    return Placed(sum(parts_ms.values()), parts_ms, note)


def _host(model: StepModel) -> Placed:
    return _sum(model.on_host() | {"dense": model.dense_ms()})


def _remote(model: StepModel) -> Placed:
    network, servers = model.rates.network, model.rates.servers
    assert network is not None and servers is not None  # or `_obstacle`
    parts = {"remote memory": model.traffic.rows_ms(servers), "network": model.traffic.vectors_ms(network)}
    return _sum(parts | {"dense": model.dense_ms()})


def _tables(model: StepModel) -> Placed:
    number = int(model.share * model.shape.num_sparse)  # all tables of a shape are equal
    share = number / model.shape.num_sparse
    host = {name: (1 - share) * ms for name, ms in model.on_host().items()}
    device = {name: ms if name == "dense" else share * ms for name, ms in model.on_device().items()}
    return _sum(host | device, "" if share == 1 else f"{number} of {model.shape.num_sparse} tables on the device")


def _cached(overlap: Callable[[list[float]], float], model: StepModel) -> Placed:
    device, misses = model.on_device(), model.misses()
    ms = overlap([sum(device.values()), *misses.values()])
    return Placed(ms, device | misses, model.share_note(model.covered, "lookups on the device"))


def _fae(model: StepModel) -> Placed:
    cold = {name: (1 - model.hot) * ms for name, ms in (model.on_host() | {"dense": model.dense_ms()}).items()}
    copies = 1e3 * SWAPS * min(model.share, 1.0) * model.shape.table_bytes / model.rates.link
    hot = model.hot * sum(model.on_device().values())
    parts = {"hot inputs": hot, **cold, "copies of hot rows": copies * model.shape.batch_size / EPOCH}
    return _sum(parts, model.share_note(model.hot, "inputs hot"))


def _hotline(model: StepModel) -> Placed:
    device, gathering = sum(model.on_device().values()), sum(model.misses().values())
    popular, others = model.hot * device, (1 - model.hot) * device
    parts = {"popular inputs": popular, "gathering": gathering, "other inputs": others}
    return Placed(max(popular, gathering) + others, parts, model.share_note(model.hot, "inputs popular"))


PLACEMENTS: Final[dict[str, Callable[[StepModel], Placed]]] = {
    "device": lambda model: _sum(model.on_device()),
    "host": _host,
    "remote": _remote,
    "tables": _tables,
    "lfu": lambda model: _cached(sum, model),
    "scratchpipe": lambda model: _cached(max, model),
    "fae": _fae,
    "hotline": _hotline,
}
POLICIES: Final = {"device": "device", "host": "hybrid"} | {
    name: name for name in ("tables", "lfu", "scratchpipe", "fae", "hotline")
}
"""Placements that can be trained here -> their policies."""
