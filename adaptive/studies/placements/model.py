"""Milliseconds of a step by placement, modelled: what each part of a machine would have to do, and what overlaps.

Letters, per step on all G accelerators together: B samples, N look-ups, U distinct rows, v bytes of a row's values, r
with its optimizer state, E = B * tables * v bytes of all pooled vectors, W bytes of the dense weights, h hot inputs
(share), q look-ups of rows on the device (share).

    rows(share)   share * (N*v + 2*E + 2*U*r): read at each look-up, vectors written, gradients read, rows updated
    dense         operations / (G * flops), plus 2*W over the accelerators' links for the sum of gradients

    device        rows/device + exchange 2*E*(G-1)/G over the accelerators' links (else over the host) + dense
    host          rows/host + 2*E/links + dense
    remote        rows/servers + 2*E/network + dense
    tables        whole tables on the device while they fit, those of most look-ups a byte first; device and host parts
    lfu           the q most frequent; misses fetched on demand: device + missed rows over link and host
    scratchpipe   the same rows, but fetched ahead: max(device, link, host)
    fae           h * device + (1 - h) * host + 4 copies of the hot rows an epoch of 45 million samples
    hotline       max(h * device, gathering the rest) + (1 - h) * device

FAE's and Hotline's formulas are this project's reading of the papers (PVLDB 15(1), 2022; arXiv 2204.05436v1). Peaks are
multiplied by the machine's assumed shares. What comes out orders placements; it does not predict milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from adaptive.errors import ConfigError
from adaptive.studies.machines import MachineSpec
from adaptive.studies.placements.locality import Locality
from adaptive.studies.placements.shape import Shape

EPOCH: Final = 45_000_000  # samples between which FAE's hot rows are copied SWAPS times
SWAPS: Final = 4
ROOM: Final = 0.8  # of the accelerators' memory for tables


@dataclass(frozen=True)
class Rates:
    """Bytes and operations per second of a machine as a whole."""

    devices: int  # 0: there is no accelerator, only a host
    device: float
    host: float
    link: float
    flops: float
    exchange: float | None  # between accelerators, all together; None: by way of the host
    network: float | None
    servers: float | None
    device_bytes: float | None  # memory for tables; None: not known, so everything fits
    host_bytes: float | None


@dataclass(frozen=True)
class Placed:
    """One placement: its parts in milliseconds, of which `limit` is the largest; none if it cannot be."""

    fits: bool
    ms: float | None = None
    parts: dict[str, float] | None = None
    note: str = ""

    @property
    def limit(self) -> str:
        return max(self.parts, key=self.parts.__getitem__) if self.parts else "-"


def rates_of(spec: MachineSpec) -> Rates:
    """Of a file: measured, or peaks with the shares it assumes.

    Raises:
        ConfigError: if it holds neither.
    """
    if (found := spec.measured) is not None:
        flops = found.flops_per_sample * found.batch_size / (found.dense_ms / 1e3)
        link = found.move if found.vectors_cross else float("inf")
        return Rates(1, found.device, found.host, link, flops, None, None, None, None, None)
    share, host, gpu, network = spec.assumed, spec.host, spec.gpu, spec.network
    if host is None:
        raise ConfigError(f"machine {spec.name!r} has neither [measured] nor [host]: needed one of them")
    return Rates(
        devices=gpu.count if gpu else 0,
        device=gpu.count * gpu.bandwidth * share.gpu_bandwidth if gpu else host.bandwidth * share.host_bandwidth,
        host=host.bandwidth * share.host_bandwidth,
        link=gpu.count * host.link * share.link if gpu else float("inf"),
        flops=(gpu.count * gpu.flops if gpu else host.flops) * share.flops,
        exchange=gpu.count * gpu.link * share.link if gpu and gpu.link else None,
        network=network.rate * share.link if network else None,
        servers=network.servers * network.bandwidth * share.host_bandwidth if network else None,
        device_bytes=ROOM * gpu.count * gpu.memory if gpu else ROOM * host.memory,
        host_bytes=ROOM * host.memory,
    )


class StepModel:
    """Times of one shape on one machine, with the locality of some data."""

    def __init__(self, shape: Shape, rates: Rates, locality: Locality, *, device_share: float | None = None) -> None:
        """
        Args:
            device_share: of the rows that the device holds; None: as many as its memory takes.
        """
        self.shape, self.rates = shape, rates
        self.lookups = float(shape.batch_size * shape.num_sparse * shape.lookups)
        self.distinct = min(
            self.lookups * locality.distinct_share(shape.batch_size), shape.num_sparse * shape.hash_size
        )
        self.vectors = float(shape.batch_size * shape.num_sparse * shape.value_bytes)
        room = 1.0 if rates.device_bytes is None else min(rates.device_bytes / shape.table_bytes, 1.0)
        self.share = room if device_share is None else device_share
        self.fits_device = self.share >= 1
        self.fits_host = rates.host_bytes is None or shape.table_bytes <= rates.host_bytes
        self.covered, self.hot = locality.lookup_share(self.share), locality.hot_inputs(self.share)

    def placed(self, placement: str) -> Placed:
        """
        Raises:
            ConfigError: for a placement that nobody knows.
        """
        if placement not in PLACEMENTS:
            raise ConfigError(f"--placements {placement!r}: needed some of {', '.join(PLACEMENTS)}")
        if not self.rates.devices and placement not in ("host", "remote"):
            return Placed(False, note="no accelerator")
        return PLACEMENTS[placement](self)

    def rows_ms(self, rate: float, share: float = 1.0) -> float:
        touched = self.lookups * self.shape.value_bytes + 2 * self.vectors + 2 * self.distinct * self.shape.row_bytes
        return 1e3 * share * touched / rate

    def dense_ms(self) -> float:
        flops = self.shape.flops_per_sample * self.shape.batch_size
        each = self.rates.devices
        reduced = (
            2 * self.shape.dense_bytes * (each - 1) / (self.rates.exchange or self.rates.link) if each > 1 else 0.0
        )
        return 1e3 * (flops / self.rates.flops + reduced)

    def exchange_ms(self, share: float = 1.0) -> float:
        """Vectors and their gradients between accelerators, by their own links or up to the host and down again."""
        each = self.rates.devices  # at least 1 where vectors are on an accelerator
        crossing = share * 2 * self.vectors * (each - 1) / each
        if self.rates.exchange is not None:
            return 1e3 * crossing / self.rates.exchange
        return 1e3 * 2 * crossing * (1 / self.rates.link + 1 / self.rates.host) if each > 1 else 0.0

    def on_device(self) -> dict[str, float]:
        parts = {"device memory": self.rows_ms(self.rates.device), "exchange": self.exchange_ms()}
        return parts | {"dense": self.dense_ms()}

    def on_host(self, share: float = 1.0) -> dict[str, float]:
        vectors = 1e3 * share * 2 * self.vectors / self.rates.link
        return {"host memory": self.rows_ms(self.rates.host, share), "link": vectors}

    def misses(self) -> dict[str, float]:
        """Rows that come and go: what is looked up and not on the device, both ways at once over the link."""
        moved = (1 - self.covered) * self.lookups
        size = min(moved, self.distinct) * self.shape.row_bytes
        link = 0.0 if self.rates.link == float("inf") else 1e3 * size / self.rates.link
        return {"link": link, "host memory": 1e3 * 2 * size / self.rates.host}


def _device(model: StepModel) -> Placed:
    if not model.fits_device:
        return Placed(False, note="tables do not fit the device")
    return _sum(model.on_device())


def _host(model: StepModel) -> Placed:
    if not model.fits_host:
        return Placed(False, note="tables do not fit the host")
    return _sum(model.on_host() | {"dense": model.dense_ms()})


def _remote(model: StepModel) -> Placed:
    if model.rates.network is None or model.rates.servers is None:
        return Placed(False, note="the machine file has no [network]")
    parts = {
        "remote memory": model.rows_ms(model.rates.servers),
        "network": 1e3 * 2 * model.vectors / model.rates.network,
    }
    return _sum(parts | {"dense": model.dense_ms()})


def _tables(model: StepModel) -> Placed:
    if not model.fits_host and not model.fits_device:
        return Placed(False, note="tables do not fit the host")
    number = int(model.share * model.shape.num_sparse)  # tables of a shape are alike
    share = number / model.shape.num_sparse
    parts = model.on_host(1 - share) | {
        "device memory": model.rows_ms(model.rates.device, share),
        "exchange": model.exchange_ms(share),
        "dense": model.dense_ms(),
    }
    return Placed(
        True,
        sum(parts.values()),
        parts,
        "" if share == 1 else f"{number} of {model.shape.num_sparse} tables on the device",
    )


def _lfu(model: StepModel) -> Placed:
    return _cached(model, sum)


def _scratchpipe(model: StepModel) -> Placed:
    return _cached(model, max)


def _cached(model: StepModel, together: Callable[[list[float]], float]) -> Placed:
    if not model.fits_host and not model.fits_device:
        return Placed(False, note="tables do not fit the host")
    device, misses = model.on_device(), model.misses()
    ms = together([sum(device.values()), *misses.values()])
    return Placed(True, ms, device | misses, _share_note(model, model.covered, "look-ups on the device"))


def _fae(model: StepModel) -> Placed:
    if not model.fits_host and not model.fits_device:
        return Placed(False, note="tables do not fit the host")
    device = sum(model.on_device().values())
    cold = {name: (1 - model.hot) * ms for name, ms in (model.on_host() | {"dense": model.dense_ms()}).items()}
    hot_bytes = min(model.share, 1.0) * model.shape.table_bytes
    copies = 0.0 if model.rates.link == float("inf") else 1e3 * SWAPS * hot_bytes / model.rates.link
    parts = {"hot inputs": model.hot * device, **cold, "copies of hot rows": copies * model.shape.batch_size / EPOCH}
    return Placed(True, sum(parts.values()), parts, _share_note(model, model.hot, "inputs hot"))


def _hotline(model: StepModel) -> Placed:
    if not model.fits_host and not model.fits_device:
        return Placed(False, note="tables do not fit the host")
    device = sum(model.on_device().values())
    gather = sum(model.misses().values())
    popular = model.hot * device
    parts = {"popular inputs": popular, "gathering": gather, "other inputs": (1 - model.hot) * device}
    ms = max(popular, gather) + (1 - model.hot) * device
    return Placed(True, ms, parts, _share_note(model, model.hot, "inputs popular"))


def _share_note(model: StepModel, share: float, what: str) -> str:
    return "" if model.fits_device else f"{100 * share:.1f} % of the {what}"


def _sum(parts: dict[str, float]) -> Placed:
    return Placed(True, sum(parts.values()), parts)


PLACEMENTS: Final[dict[str, Callable[[StepModel], Placed]]] = {
    "device": _device,
    "host": _host,
    "remote": _remote,
    "tables": _tables,
    "lfu": _lfu,
    "scratchpipe": _scratchpipe,
    "fae": _fae,
    "hotline": _hotline,
}
POLICIES: Final = {"device": "device", "host": "hybrid"} | {
    name: name for name in ("tables", "lfu", "scratchpipe", "fae", "hotline")
}
"""The placements that exist here, and the policy of each."""
