"""What `doctor` says of the GPU: torch's build, the driver, Triton and what it needs, and whether a kernel works."""

import os
import re
import shutil
import sysconfig
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from adaptive.cli.output import size_text

NVIDIA: Final = "0x10de"  # vendor of a PCI device
DRIVERS: Final = {12: "525", 13: "580"}  # the oldest driver for a CUDA version


def gpu_facts() -> dict[str, str]:
    """What is there, each as a text. Where torch sees a GPU, a kernel is launched, and its bits are checked."""
    import torch

    from adaptive.embeddings.tiers.gpu.launch_check import launched

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    facts = {
        "torch_build": build,
        "nvidia_gpus": str(len(_nvidia_devices())),
        "driver": _driver(),
        "triton": _triton(),
        "c_compiler": next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), "none"),
        "python_h": "found" if Path(sysconfig.get_path("include"), "Python.h").is_file() else "none",
    }
    if not torch.cuda.is_available():
        return {**facts, "found": "none (the device tier is in memory: --device cpu)"}
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_properties(number).name
        facts[f"cuda:{number}"] = f"{name}, {size_text(free)} of {size_text(total)} free"
        facts[f"kernel_on_cuda:{number}"] = launched(torch.device("cuda", number))
    return facts


def _nvidia_devices() -> list[Path]:
    """NVIDIA's GPUs on the PCI bus or, in a container that hides the bus, by their device files."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    displays = [
        file.parent
        for file in vendors
        if file.read_text().strip() == NVIDIA and (file.parent / "class").read_text().startswith("0x03")
    ]
    return displays or sorted(Path("/dev").glob("nvidia[0-9]*"))


def _driver() -> str:
    file = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", file.read_text()) if file.is_file() else None
    return found[0] if found else "none"


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


def gpu_problems(facts: Mapping[str, str]) -> list[str]:
    """What keeps training from the GPU, with what mends it; nothing on a machine without one."""
    from adaptive.embeddings.tiers.gpu.launch_check import WORKS

    problems = [
        f"problem: a copy of rows on {name.removeprefix('kernel_on_')} {text}; send this with a report"
        for name, text in facts.items()
        if name.startswith("kernel_on_") and text != WORKS
    ]
    if "found" not in facts:
        return [*_triton_problems(facts), *problems]
    if facts["nvidia_gpus"] == "0":
        return []
    if facts["torch_build"] == "CPU":
        mend = "pip uninstall -y torch && pip install -c constraints.txt torch (the index has CUDA builds)"
        return [f"problem: this machine has an NVIDIA GPU, and torch is a CPU build; {mend}"]
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return ["problem: CUDA_VISIBLE_DEVICES hides the GPU from torch; unset CUDA_VISIBLE_DEVICES"]
    needed = DRIVERS.get(int(facts["torch_build"].removeprefix("CUDA ").partition(".")[0]), "newer")
    return [
        f"problem: torch ({facts['torch_build']}) cannot use the NVIDIA GPU of this machine with driver "
        f"{facts['driver']}; it needs driver {needed} or newer: sudo ubuntu-drivers install, and reboot; in a "
        "container: docker run --gpus all"
    ]


def _triton_problems(facts: Mapping[str, str]) -> list[str]:
    if facts["triton"] == "none":
        return ["problem: Triton is not installed, so torch operations train rows, more slowly; pip install triton"]
    needs = {"c_compiler": "a C compiler; sudo apt install gcc", "python_h": "Python.h; sudo apt install python3-dev"}
    return [f"problem: Triton needs {what}" for name, what in needs.items() if facts[name] == "none"]
