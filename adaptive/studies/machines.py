"""Machine files: `MachineSpec`, reading and writing.

A file describes a machine by its parts (`[gpu]`, `[host]`, `[network]`, `[watts]`), or holds rates measured on it
(`[measured]`, written by `adaptive-train profile --save`), or both. `[assumed]` has the share of each peak that is
reached. The defaults are our guesses, and so is everything modeled with them.
"""

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from adaptive.config import Config, parse_size
from adaptive.storage.presets import load_named

PRESETS: Final = Path(__file__).parent / "machine_presets"
HERE: Final = "here"  # this machine, measured on the spot


def _bytes(value: Any) -> Any:
    """Parse `32GB` or `900GB/s`; other values are returned as they are."""
    if isinstance(value, str):
        text = value.replace(" ", "").removesuffix("/s")
        if not text.endswith("B"):
            raise ValueError(f"expected bytes with a unit, such as 32GB or 900GB/s, got {value!r}")
        return float(parse_size(text, row_bytes=1, num_rows=2**62))
    return value


LEAST, MOST = 1e-6, 1e24  # bounds of every number: anything beyond is a mistake
Bytes = Annotated[float, BeforeValidator(_bytes), Field(ge=1, le=MOST)]


class Gpus(Config):
    """The accelerators of a machine."""

    count: int = Field(ge=1, le=2**20, description="number of accelerators")
    memory: Bytes = Field(description="memory of each")
    bandwidth: Bytes = Field(description="memory bandwidth of each, per second")
    flops: float = Field(ge=1, le=MOST, description="peak FLOPS of each in float32 (or tf32, if `note` says so)")
    link: Bytes | None = Field(
        default=None, description="from each to all others, per second and direction; null: through the host"
    )


class Host(Config):
    """The processors and main memory of a machine."""

    memory: Bytes = Field(description="main memory")
    bandwidth: Bytes = Field(description="main memory bandwidth, per second")
    flops: float = Field(ge=1, le=MOST, description="peak FLOPS in float32")
    link: Bytes = Field(default=12e9, description="to each accelerator, per second and direction")


class Network(Config):
    """Remote servers that can hold tables."""

    rate: Bytes = Field(description="network bandwidth of this machine, per second and direction")
    servers: int = Field(default=1, ge=1, le=2**20, description="number of remote servers with tables")
    bandwidth: Bytes = Field(description="main memory bandwidth of each server, per second")


class Assumed(Config):
    """Share of each peak that is reached."""

    gpu_bandwidth: float = Field(default=0.6, ge=LEAST, le=1)
    host_bandwidth: float = Field(default=0.6, ge=LEAST, le=1)
    flops: float = Field(default=0.3, ge=LEAST, le=1)
    link: float = Field(default=0.8, ge=LEAST, le=1)


class Measured(Config):
    """Rates from `adaptive-train profile`; milliseconds are per step of `batch_size`."""

    device: Bytes = Field(description="bytes per second for pooling and updating rows of the device tier")
    host: Bytes = Field(description="the same for rows that stay on the host")
    move: Bytes = Field(description="bytes per second for copying rows between the tiers, both directions together")
    dense_ms: float = Field(
        ge=LEAST, le=MOST, description="forward, backward and update of the dense part, and overhead"
    )
    flops_per_sample: float = Field(ge=LEAST, le=MOST, description="of the measured dense part")
    batch_size: int = Field(ge=1, le=2**24)
    overlap_staged: float = Field(
        ge=-1,
        le=1,
        description="hidden share of the shorter of training and look-ahead; negative if they slow each other",
    )
    overlap_host: float = Field(ge=-1, le=1, description="the same for policies that leave misses on the host")
    plan_factor: float = Field(ge=LEAST, le=MOST, description="planning time in training over that in `simulate`")
    vectors_cross: bool = Field(description="true if pooled vectors are copied between host and device")
    depth: int = Field(ge=0, le=2**20, description="look-ahead depth at which the overlap was measured")
    when: str = Field(default="", description="date of the measurement")
    on: str = Field(default="", description="device, cores and versions")


class MachineSpec(Config):
    """One machine."""

    name: str
    source: str = Field(default="", description="source of the numbers")
    note: str = ""
    gpu: Gpus | None = None
    host: Host | None = None
    network: Network | None = None
    watts: float | None = Field(default=None, ge=LEAST, le=MOST, description="power of the whole machine under load")
    assumed: Assumed = Assumed()
    measured: Measured | None = None


def load_machine(name: str) -> MachineSpec:
    """Load a preset by name, or a file by path.

    Raises:
        ConfigError: if there is no such preset or file, or it is incomplete.
    """
    return load_named(MachineSpec, name, PRESETS, "machine file")


def machine_toml(spec: MachineSpec) -> str:
    """Return the machine as the text of a TOML file."""
    plain = spec.model_dump(exclude_none=True, exclude_defaults=True)
    head = [line for key, value in plain.items() if not isinstance(value, dict) for line in [f"{key} = {_toml(value)}"]]
    parts = [
        "\n".join([f"[{key}]", *(f"{name} = {_toml(number)}" for name, number in value.items())])
        for key, value in plain.items()
        if isinstance(value, dict)
    ]
    return "\n\n".join(["\n".join(head), *parts]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)
