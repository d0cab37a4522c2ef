"""`adaptive-train doctor`: report this machine and installation, and their problems."""

import contextlib
import importlib
import os
import platform
import re
import shutil
import stat
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from adaptive.cli import command_options as options
from adaptive.cli.launching import check_number, refuse_within_ranks
from adaptive.cli.output import key_lines, print_result
from adaptive.system import SPINNING, usable_cores
from adaptive.training.telemetry.formatting import bytes_text

if TYPE_CHECKING:
    from adaptive.embeddings.ranks.measure import RankLinks

TIMEOUT_S: Final = 60.0  # for ranks to connect, and for an exchange

NVIDIA: Final = "0x10de"  # vendor of a PCI device
DRIVERS: Final = {12: "525", 13: "580"}  # the oldest driver for a CUDA version
PACKAGES = ("adaptive-train", "torch", "numpy", "numba", "scipy", "tensorboard", "typer", "pydantic")


def doctor(ranks: options.MeasuredRanks = None, as_json: options.AsJson = False) -> None:
    """Report versions, processor, memory, GPU, disk, kernel cache, policies and problems.

    With --ranks, also measure the exchange between processes.
    """
    from adaptive.embeddings.ranks.launch import is_rank, launch

    if ranks is not None:
        refuse_within_ranks()
        check_number(ranks, None)
        raise typer.Exit(launch(ranks, ["doctor", *(["--json"] if as_json else [])], None))
    links, is_first = _measured_links() if is_rank() else (None, True)
    if not is_first:
        return
    machine = _Machine(_versions(), _processor(), _memory(), gpu_facts(), _disk(), _kernel_cache(), _policies())
    facts, problems, lines = asdict(machine), _problems(machine), []
    if links is not None:
        from adaptive.embeddings.ranks.measure import verdicts

        text, wrong = verdicts(links)
        facts["ranks"], problems, lines = asdict(links), [*problems, *wrong], [text]
    table = "\n".join([*key_lines(facts), "", *lines, *(problems or ["no problems found"])])
    print_result({"schema": 1, **facts, "problems": problems}, table=table, as_json=as_json)


def _measured_links() -> "tuple[RankLinks, bool]":
    """Measure the links between the ranks; also return True on the first rank."""
    from adaptive.embeddings.ranks import Ranks
    from adaptive.embeddings.ranks.measure import measure
    from adaptive.embeddings.ranks.torch_transport import TorchTransport

    transport = TorchTransport(TIMEOUT_S, "gloo")
    try:
        ranks = Ranks(transport)
        versions = {"adaptive-train": version("adaptive-train"), "torch": version("torch")}
        ranks.require_equal(lambda: {"versions": versions})
        return measure(ranks, transport), ranks.is_first
    finally:
        transport.close()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "system": platform.platform()}
    return versions | {name: _version(name) or "not installed" for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class _Processor:
    cores: int | None
    usable_cores: int
    torch_threads: int
    waiting_threads: str
    numba_threading_layers: list[str]


def _processor() -> _Processor:
    import torch

    return _Processor(os.cpu_count(), usable_cores(), torch.get_num_threads(), _waiting_threads(), _threading_layers())


def _waiting_threads() -> str:
    """Return the variables that decide how long waiting threads spin; the command line sets one for itself only."""
    chosen = [f"{name}={os.environ[name]}" for name in SPINNING if name in os.environ]
    return f"{' '.join(chosen)} (export it for your own loops, too)" if chosen else "spin (export GOMP_SPINCOUNT=1000)"


def _threading_layers() -> list[str]:
    """Return the layers that load here; numba uses the first."""
    import torch  # noqa: F401 (before numba's threads, see adaptive.kernels.jit)

    layers = []
    for layer, module in (("tbb", "tbbpool"), ("omp", "omppool"), ("workqueue", "workqueue")):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"numba.np.ufunc.{module}")
            layers.append(layer)
    return layers


def _memory() -> dict[str, str]:
    facts = {"total": bytes_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))}
    # CUDA pins memory regardless of `ulimit -l`, so all available memory can be pinned.
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.is_file():
        kib = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        facts["available_or_pinnable"] = bytes_text(int(kib["MemAvailable"].split()[0]) * 1024)
    if limit.is_file() and limit.read_text().strip().isdigit():
        facts["limit_of_this_container"] = bytes_text(int(limit.read_text()))
    return facts


def _disk() -> dict[str, str]:
    return {"folder": str(Path.cwd()), "free": bytes_text(shutil.disk_usage(Path.cwd()).free)}


@dataclass(frozen=True)
class _KernelCache:
    folder: str
    safe: bool


def _kernel_cache() -> _KernelCache:
    from adaptive.kernels import jit

    if jit._CACHE_DIR is None:
        return _KernelCache("none", safe=False)
    status = Path(jit._CACHE_DIR).stat()
    safe = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o022
    return _KernelCache(str(jit._CACHE_DIR), safe)


def _policies() -> dict[str, str]:
    """Policy -> its origin, or the reason why it does not load."""
    from adaptive.plugins import installed_policies, load_policy_class

    places = {}
    for name, place in installed_policies().items():
        try:
            load_policy_class(name)
            places[name] = place
        except Exception as error:  # third-party policies may raise anything on import
            places[name] = f"does not load: {type(error).__name__}: {error}"
    return places


def gpu_facts() -> dict[str, str]:
    """Return facts about GPUs; if torch sees one, a kernel runs and its bits are checked."""
    import torch

    from adaptive.embeddings.tiers.gpu.build import check_copy

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    facts = {
        "torch_build": build,
        "nvidia_gpus": str(len(_nvidia_devices())),
        "driver": _driver(),
        "triton": _version("triton") or "none",
        "c_compiler": next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), "none"),
        "python_h": "installed" if Path(sysconfig.get_path("include"), "Python.h").is_file() else "none",
    }
    if not torch.cuda.is_available():
        return {**facts, "usable": "none (the device tier is in host memory: --device cpu)"}
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_properties(number).name
        facts[f"cuda:{number}"] = f"{name}, {bytes_text(free)} of {bytes_text(total)} free"
        facts[f"kernel_on_cuda:{number}"] = check_copy(torch.device("cuda", number))
    return facts


def _nvidia_devices() -> list[Path]:
    """Return NVIDIA GPUs on the PCI bus, or their device files in a container."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    displays = [
        file.parent
        for file in vendors
        if file.read_text().strip() == NVIDIA and (file.parent / "class").read_text().startswith("0x03")
    ]
    return displays or sorted(Path("/dev").glob("nvidia[0-9]*"))


def _driver() -> str:
    file = Path("/proc/driver/nvidia/version")
    number = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.read_text()) if file.is_file() else None
    return number[0] if number else "none"


@dataclass(frozen=True)
class _Machine:
    """The facts that `doctor` reports."""

    versions: dict[str, str]
    processor: _Processor
    memory: dict[str, str]
    gpu: dict[str, str]
    disk: dict[str, str]
    kernel_cache: _KernelCache
    policies: dict[str, str]


def _problems(machine: _Machine) -> list[str]:
    problems = [
        f"problem: policy {name} {text}. Reinstall or remove its package"
        for name, text in machine.policies.items()
        if text.startswith("does not load")
    ]
    if not machine.policies:
        problems.append("problem: no policies are installed. Install the project (pip install -e .)")
    if not machine.kernel_cache.safe:
        problems.append(
            "problem: compiled kernels are not cached, so every start compiles them again (about a minute). Set "
            "XDG_CACHE_HOME to a folder that only you can write"
        )
    missing = [name for name, text in machine.versions.items() if text == "not installed"]
    problems += [f"problem: {name} is not installed. Run pip install {name}" for name in missing]
    return [*problems, *gpu_problems(machine.gpu)]


def gpu_problems(facts: Mapping[str, str]) -> list[str]:
    """Return problems that keep training from the GPU, and their fixes; none without a GPU."""
    from adaptive.embeddings.tiers.gpu.build import WORKS

    problems = [
        f"problem: a copy of rows on {name.removeprefix('kernel_on_')} {text}. Please report it"
        for name, text in facts.items()
        if name.startswith("kernel_on_") and text != WORKS
    ]
    if "usable" not in facts:
        return [*_triton_problems(facts), *problems]
    if facts["nvidia_gpus"] == "0":
        return []
    if facts["torch_build"] == "CPU":
        fix = "pip uninstall -y torch && pip install -c constraints.txt torch"
        return [
            f"problem: this machine has an NVIDIA GPU, but torch is a CPU build. Run {fix} (CUDA builds are default)"
        ]
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return ["problem: CUDA_VISIBLE_DEVICES hides the GPU from torch. Unset it"]
    driver = DRIVERS.get(int(facts["torch_build"].removeprefix("CUDA ").partition(".")[0]), "newer")
    return [
        f"problem: torch ({facts['torch_build']}) needs NVIDIA driver {driver} or newer, got {facts['driver']}. Run "
        "sudo ubuntu-drivers install and reboot; in a container: docker run --gpus all"
    ]


def _triton_problems(facts: Mapping[str, str]) -> list[str]:
    if facts["triton"] == "none":
        return ["problem: Triton is not installed, so training uses slower torch operations. Run pip install triton"]
    needs = {"c_compiler": ("a C compiler", "gcc"), "python_h": ("Python.h", "python3-dev")}
    return [
        f"problem: Triton needs {part}. Run sudo apt install {package}"
        for name, (part, package) in needs.items()
        if facts[name] == "none"
    ]
