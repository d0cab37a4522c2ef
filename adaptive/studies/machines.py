"""`MachineSpec`: what a machine file says, and reading and writing one.

A file describes a machine by its parts (`[gpu]`, `[host]`, `[network]`, `[watts]`), or holds what was measured on one
(`[measured]`, as `adaptive-train profile --save` writes it), or both. `[assumed]` says which share of a peak is
reached; it is a guess of ours unless the file says otherwise, and so is whatever is modelled with it.
"""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from adaptive.config import Config, parse_size
from adaptive.storage.durable import write_atomic
from adaptive.storage.presets import load_named, names_in

PRESETS: Final = Path(__file__).parent / "machine_presets"
HERE: Final = "here"  # the machine this runs on, measured now


def _bytes(value: Any) -> Any:
    """`32GB` or `900GB/s` as a number."""
    if isinstance(value, str):
        text = value.replace(" ", "").removesuffix("/s")
        if not text.endswith("B"):
            raise ValueError(f"{value!r}: needed bytes with a unit, such as 32GB or 900GB/s")
        return float(parse_size(text, row_bytes=1, num_rows=2**62))
    return value


LEAST, MOST = 1e-6, 1e24  # of any number here: beyond are mistakes, and steps that take no time or no end
Bytes = Annotated[float, BeforeValidator(_bytes), Field(ge=1, le=MOST)]


class Gpus(Config):
    """Accelerators of one machine."""

    count: int = Field(ge=1, le=2**20, description="accelerators")
    memory: Bytes = Field(description="of each")
    bandwidth: Bytes = Field(description="of each one's memory, per second")
    flops: float = Field(ge=1, le=MOST, description="peak of each in float32 (or tf32, if `note` says so), per second")
    link: Bytes | None = Field(
        default=None, description="from one to all others, each way, per second; none: by the host"
    )


class Host(Config):
    """Processors and main memory."""

    memory: Bytes = Field(description="main memory")
    bandwidth: Bytes = Field(description="of main memory, per second")
    flops: float = Field(ge=1, le=MOST, description="peak in float32, per second")
    link: Bytes = Field(default=12e9, description="to each accelerator, each way, per second")


class Network(Config):
    """Servers that could hold tables."""

    rate: Bytes = Field(description="of this machine, each way, per second")
    servers: int = Field(default=1, ge=1, le=2**20, description="remote servers that hold tables")
    bandwidth: Bytes = Field(description="of each server's main memory, per second")


class Assumed(Config):
    """Shares of the peaks that are reached."""

    gpu_bandwidth: float = Field(default=0.6, ge=LEAST, le=1)
    host_bandwidth: float = Field(default=0.6, ge=LEAST, le=1)
    flops: float = Field(default=0.3, ge=LEAST, le=1)
    link: float = Field(default=0.8, ge=LEAST, le=1)


class Measured(Config):
    """What `adaptive-train profile` measured by training; milliseconds are of one step of `batch_size`."""

    device: Bytes = Field(description="pooling and updating rows of the device tier, per second")
    host: Bytes = Field(description="the same of rows that stay on the host, per second")
    move: Bytes = Field(description="copying rows between the tiers, per second, both ways together")
    dense_ms: float = Field(
        ge=LEAST, le=MOST, description="forward, backward and update of the dense part, with what is around it"
    )
    flops_per_sample: float = Field(ge=LEAST, le=MOST, description="of the dense part that was measured")
    batch_size: int = Field(ge=1, le=2**24)
    overlap_staged: float = Field(
        ge=-1, le=1, description="share of the shorter of training and look-ahead that is hidden; below 0: they disturb"
    )
    overlap_host: float = Field(ge=-1, le=1, description="the same for policies that leave misses on the host")
    plan_factor: float = Field(ge=LEAST, le=MOST, description="planning in training over planning in `simulate`")
    vectors_cross: bool = Field(description="whether pooled vectors are copied between host and device")
    depth: int = Field(ge=0, le=2**20, description="look-ahead with which the overlap was measured")
    when: str = Field(default="", description="date of the measurement")
    on: str = Field(default="", description="device, cores and versions")


class MachineSpec(Config):
    """One machine."""

    name: str
    source: str = Field(default="", description="where the numbers come from")
    note: str = ""
    gpu: Gpus | None = None
    host: Host | None = None
    network: Network | None = None
    watts: float | None = Field(default=None, ge=LEAST, le=MOST, description="of the whole machine at work")
    assumed: Assumed = Assumed()
    measured: Measured | None = None


def preset_names() -> list[str]:
    """The machines that come with the package."""
    return names_in(PRESETS)


def load_machine(name: str) -> MachineSpec:
    """A preset by name, or a file by path.

    Raises:
        ConfigError: if there is none, or it does not say what is needed.
    """
    return load_named(MachineSpec, name, PRESETS, "machine file")


def machine_toml(spec: MachineSpec) -> str:
    """The file that reads as this machine."""
    plain = spec.model_dump(exclude_none=True, exclude_defaults=True)
    head = [line for key, value in plain.items() if not isinstance(value, dict) for line in [f"{key} = {_toml(value)}"]]
    parts = [
        "\n".join([f"[{key}]", *(f"{name} = {_toml(one)}" for name, one in value.items())])
        for key, value in plain.items()
        if isinstance(value, dict)
    ]
    return "\n\n".join(["\n".join(head), *parts]) + "\n"


def write_machine(path: Path, spec: MachineSpec) -> None:
    """Write the file whole."""
    write_atomic(path, machine_toml(spec).encode())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)
