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

XDL: FAE's section 5.2.3 says that all dense weights cross as well. Its tables 6 and 7 do not: on Criteo Kaggle XDL
moves 23 GB where DLRM moves 61, and its dense weights alone would be more than DLRM's vectors. A row sent once per
batch fits these tables. A simulation has one device tier, so it treats several accelerators as one with their total
bandwidth. Peaks are multiplied by the machine's assumed shares.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaptive.config import TableConfig
from adaptive.errors import ConfigError
from adaptive.studies.machines import MachineSpec, Measured


@dataclass(frozen=True)
class Machine:
    """Rates and sizes of a whole machine.

    Attributes:
        link, device, host: bytes per second between the tiers (per direction; infinity if nothing crosses), of device
            memory and of host memory.
        dense_ms: milliseconds of the dense part of a step.
        measured: needed for the expected step.
        flops: operations per second.
    """

    link: float
    device: float
    host: float
    dense_ms: float = 0.0
    measured: Measured | None = None
    flops: float = math.inf


def rates_of(spec: MachineSpec) -> Machine:
    """Return a file's machine without a dense part: measured rates, or shares of peaks.

    Raises:
        ConfigError: if the file has neither.
    """
    if (measured := spec.measured) is not None:
        flops = measured.flops_per_sample * measured.batch_size / (measured.dense_ms / 1e3)
        link = measured.move if measured.vectors_cross else math.inf
        return Machine(link, measured.device, measured.host, measured=measured, flops=flops)
    share, host, gpu = spec.assumed, spec.host, spec.gpu
    if host is None:
        raise ConfigError(f"machine {spec.name!r}: expected [measured] or [host], got neither")
    host_rate = host.bandwidth * share.host_bandwidth
    return Machine(
        link=gpu.count * host.link * share.link if gpu else math.inf,
        device=gpu.count * gpu.bandwidth * share.gpu_bandwidth if gpu else host_rate,
        host=host_rate,
        flops=(gpu.count * gpu.flops if gpu else host.flops) * share.flops,
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
