"""Acun et al. (HPCA 2021, arXiv 2011.05497): where should tables be, on a CPU server, Big Basin or Zion?

Step times are modeled: bytes over bandwidths and operations over flop/s, times the assumed share of each peak. Letters,
per batch: N lookups, U distinct rows (counted in the built-in stream), V vectors, R bytes of a row's values, s of its
optimizer state, E = V * R, G accelerators.

    rows at a rate    (N*R + 2*E + 2*U*(R+s)) / rate: each lookup reads a row, each vector is written and its gradient
                      read, the update reads and writes each row with its state
    dense             operations / flops, plus the sum of gradients over the accelerators' links
    device            rows/device + dense + exchange of 2*E*(G-1)/G over the accelerators' links (else through the host)
    host              rows/host + 2*E/link + dense
    remote            rows/servers + 2*E/network + dense
    tables            whole tables on the device while they fit, the others on the host

That is enough to order placements on a machine. It does not predict milliseconds.

Run: python examples/papers/zion.py [--quick]        (a minute on two cores)
"""

from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from common import Claim, compare, is_quick, read_rows, show, stream

STATE = 4  # bytes of a row under row-wise Adagrad, which DLRM uses
ROOM = 0.8  # share of memory for tables
FLOPS, LINK = 0.3, 0.8  # shares of peaks that are reached, our guesses; so are 0.6 and 0.7 of memory bandwidths


class Machine(NamedTuple):
    """Rates in bytes and operations per second, sizes in bytes.

    Table I of the paper, and makers' peaks: V100 SXM2 with six NVLinks, PCIe 3.0 x16, two sockets with 6 channels of
    DDR4-2666 each, 20 cores of Skylake each. Ours: watts of the CPU server (Big Basin takes 7.3 times as much, as the
    paper says) and of Zion, the flops of Zion's host, and eight servers for remote tables.
    """

    host: float
    host_memory: float
    flops: float
    watts: float
    network: float
    servers: int  # remote, with tables
    server: float = 256e9 * 0.6  # memory bandwidth of each
    gpus: int = 0
    gpu: float = 900e9 * 0.6
    gpu_memory: float = 32e9
    gpu_flops: float = 15.7e12
    link: float = 16e9  # of each accelerator to the host
    exchange: float = 0  # of each accelerator to the others; 0: through the host


MACHINES = {
    "dual-cpu": Machine(256e9 * 0.6, 256e9, 3e12, 400, 3.1e9, 1),
    "big-basin": Machine(256e9 * 0.6, 256e9, 3e12, 2920, 12.5e9, 8, gpus=8, exchange=150e9),
    "zion": Machine(1000e9 * 0.7, 2000e9, 12e12, 4400, 50e9, 8, 256e9 * 0.7, gpus=8),
}


class Shape(NamedTuple):
    """A model: table II of the paper, and the middle of its sweeps (sections III.A and V).

    Ours: 64 values per row, the bottom MLP's last layer, dot products, tables of 40 and 300 GB, and batch sizes.
    """

    dense: int
    tables: int
    lookups: int
    rows: int  # of a table, in the mean
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int
    width: int = 64


SHAPES = {
    "M1": Shape(800, 30, 28, 5208333, (512,), (512, 512, 512), 12800),
    "M2": Shape(504, 13, 17, 12019230, (1024,), (1024, 1024, 512), 25600),
    "M3": Shape(809, 127, 49, 9227362, (512,), (512, 256, 512, 256, 512), 6400),
    "sweep": Shape(512, 32, 10, 100_000, (512, 512), (512, 512, 512), 1600),
}


def count_distinct(samples):
    """Return batch sizes, and distinct rows over lookups at each, in the built-in stream."""
    rows, _ = read_rows(False, num_train=samples, setting="easy")
    sizes = [size for size in (256, 1024, 4096, 16384) if size <= len(rows)]
    shares = []
    for size in sizes:
        whole = rows[: len(rows) // size * size][: 8 * size].reshape(-1, size * rows.shape[1])
        shares.append(np.mean([len(np.unique(batch)) for batch in whole]) / (size * rows.shape[1]))
    return sizes, shares


class Model:
    """Milliseconds of a step of a shape on a machine, by placement; None if it does not fit."""

    def __init__(self, shape, machine, distinct):
        self.shape, self.machine = shape, machine
        self.values = 4 * shape.width
        self.row = self.values + STATE
        self.vectors = shape.batch * shape.tables
        self.lookups = self.vectors * shape.lookups
        share = np.interp(np.log(shape.batch), np.log(distinct[0]), distinct[1])
        self.rows = min(self.lookups * share, shape.tables * shape.rows)
        bytes_of_tables = shape.tables * shape.rows * self.row
        memory = machine.gpus * machine.gpu_memory or machine.host_memory
        self.on_device = min(ROOM * memory / bytes_of_tables, 1.0)  # share of the rows that fits
        self.fits_host = bytes_of_tables <= ROOM * machine.host_memory
        self.link = machine.gpus * machine.link * LINK or inf

    def rows_ms(self, rate):
        return 1e3 * ((self.lookups + 2 * self.vectors) * self.values + 2 * self.rows * self.row) / rate

    def vectors_ms(self, rate):
        return 1e3 * 2 * self.vectors * self.values / rate

    def dense_ms(self):
        shape, machine, gpus = self.shape, self.machine, self.machine.gpus
        vectors = shape.tables + 1
        pairs = vectors * (vectors - 1) // 2
        towers = (shape.dense, *shape.bottom, shape.width), (pairs + shape.width, *shape.top, 1)
        weights = sum(a * b for sizes in towers for a, b in pairwise(sizes))
        # two operations per weight and product forward, twice that backward
        operations = 6 * (weights + pairs * shape.width) * shape.batch
        flops = FLOPS * (gpus * machine.gpu_flops or machine.flops)
        reduced = 2 * 4 * weights * (gpus - 1) / (gpus * machine.exchange * LINK or self.link) if gpus > 1 else 0.0
        return 1e3 * (operations / flops + reduced)

    def exchange_ms(self):
        gpus = self.machine.gpus
        crossing = self.vectors_ms(1.0) * (gpus - 1) / gpus
        if self.machine.exchange:
            return crossing / (gpus * self.machine.exchange * LINK)
        return 2 * crossing * (1 / self.link + 1 / self.machine.host)  # to the host and back

    def placed(self, placement):
        """Return the milliseconds of a step, or None."""
        machine, gpus = self.machine, self.machine.gpus
        host = self.rows_ms(machine.host) + self.vectors_ms(self.link)
        if placement == "host":
            return host + self.dense_ms() if self.fits_host else None
        if placement == "remote":
            rows, vectors = self.rows_ms(machine.servers * machine.server), self.vectors_ms(machine.network * LINK)
            return rows + vectors + self.dense_ms()
        share = int(self.on_device * self.shape.tables) / self.shape.tables  # all tables of a shape are equal
        if not gpus or (share < 1 and (placement == "device" or not self.fits_host)):
            return None
        device = self.rows_ms(gpus * machine.gpu) + self.exchange_ms()
        return share * device + (1 - share) * host + self.dense_ms()


def figures(speed):
    """Print samples per second by placement and machine, and by the size of a table."""
    print("table III, figures 1 and 14: modeled samples per second (and per watt)")
    for shape in ("M1", "M2", "M3"):
        for machine, spec in MACHINES.items():
            speeds = {name: speed(shape, machine, name) for name in ("device", "host", "remote", "tables")}
            texts = [f"{k} {v:,.0f} ({v / spec.watts:.0f})" if v else f"{k} does not fit" for k, v in speeds.items()]
            print(f"  {shape} {machine:10} {', '.join(texts)}")
    print("figure 12: the same on Big Basin, by the rows of a table")
    for rows in (10_000, 100_000, 10_000_000, 100_000_000):
        speeds = {name: speed("sweep", "big-basin", name, rows=rows) for name in ("device", "host", "tables")}
        print(f"  {rows:11,} {', '.join(f'{k} {v:,.0f}' if v else f'{k} does not fit' for k, v in speeds.items())}")


def modeled(speed):
    """Return the claims on placements and machines."""
    peaks = "peak rates and assumed shares of them order placements, and do not predict ratios"
    through_host = (
        "the exchange through the host takes 3.3 ms at peak rates; the paper's ratio needs over ten times that (copies "
        "in software, several sockets), for which the model has no term"
    )
    m3 = "samples per second of M3"
    claims = [
        Claim(f"{m3} on Big Basin's accelerators, which it does not fit", 1, speed("M3", "big-basin", "device"), "<"),
        Claim(f"{m3} in Zion's main memory, which holds it (figure 14)", 1, speed("M3", "zion", "host"), ">"),
    ]
    for machine, fast, slow, ratio, why in (
        ("big-basin", "device", "host", 4.0, peaks),
        ("big-basin", "remote", "host", 2.3, peaks),
        ("zion", "host", "device", 3.1, through_host),
        ("zion", "host", "remote", 1.15, peaks),
    ):
        here = speed("M2", machine, fast) / speed("M2", machine, slow)
        says = f"M2 on {machine}: {fast} is {ratio:g} times as fast as {slow} (figure 14)"
        claims.append(Claim(says, ratio, here, "modeled", why))
    for dense, tables, ratio in ((64, 4, 1.92), (64, 128, 3.06), (4096, 4, 4.5), (4096, 128, 4.44)):
        fast = speed("sweep", "big-basin", "device", dense=dense, tables=tables)
        slow = speed("sweep", "dual-cpu", "host", dense=dense, tables=tables)
        says = f"{dense} dense, {tables} sparse features: Big Basin is {ratio:g} times the CPU server (figure 10)"
        claims.append(Claim(says, ratio, fast / slow, "modeled", peaks))
    small, large = (speed("sweep", "big-basin", "device", batch=size) for size in (200, 12800))
    claims.append(Claim("larger batches: throughput on GPUs does not fall (figure 11)", 0.9, large / small, ">"))
    narrow, wide = (speed("sweep", "big-basin", "device", bottom=mlp, top=mlp) for mlp in ((64,) * 2, (1024,) * 4))
    return [*claims, Claim("wider MLPs: throughput falls (figure 13)", narrow, wide, "<")]


def trained(quick):
    """Return the claim of figure 15, by training."""
    sizes = (512, 4096) if quick else (1024, 8192)
    one, other = (
        compare(f"--policies hybrid --seeds 1 {stream(quick)} --batch-size {size}")["hybrid"]["auc"] for size in sizes
    )
    return Claim("larger batches learn less from as many samples at the same rate (AUC, figure 15)", one, other, "<")


def main():
    quick = is_quick(__doc__)
    distinct = count_distinct(60_000 if quick else 200_000)

    def speed(shape, machine, placement, **changes):
        """Samples per second; 0 if it does not fit."""
        shape = SHAPES[shape]._replace(**changes)
        ms = Model(shape, MACHINES[machine], distinct).placed(placement)
        return shape.batch / ms * 1e3 if ms else 0.0

    figures(speed)
    not_here = ["the 14 to 36 CPU servers of table III", "EASGD, Hogwild, readers"]
    show("Where tables are: CPU server, Big Basin, Zion", [*modeled(speed), trained(quick)], not_here)


if __name__ == "__main__":
    main()
