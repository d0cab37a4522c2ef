"""`adaptive-train doctor`: report this machine and installation, or some data, and their problems."""

import os
import platform
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adaptive.cli import options
from adaptive.cli.data_commands import data_settings
from adaptive.cli.output import key_lines, own_stdout, print_result
from adaptive.errors import NO_TORCH, printable
from adaptive.system import available_bytes, usable_cores
from adaptive.training.telemetry.formatting import bytes_text

if TYPE_CHECKING:
    from adaptive.data.findings import Finding

PACKAGES = ("adaptive-train", "torch", "numpy", "numba", "scipy", "tensorboard", "typer", "pydantic")


def doctor(
    data: options.ExaminedData = None,
    schema: options.Schema = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
) -> None:
    """Report versions, processor, memory, GPU, kernel cache and problems; with --data, faults of the data.

    With --data, the first million rows are read as `run` reads them. It prints for each finding what it is, where,
    why it hurts and the setting that mends it, the worst first. The exit code is then 1 if there is a finding.
    """
    if data is not None:
        _examine(data, schema, config, sets, as_json=as_json)
        return
    if schema or config or sets:
        raise typer.BadParameter("expected --data SPEC with --schema, --config and --set, got none")
    versions = {"python": platform.python_version(), "system": platform.platform()}
    versions |= {name: _version(name) or "not installed" for name in PACKAGES}
    facts: dict[str, Any] = {"versions": versions}
    problems = [f"problem: {name} is not installed. Run pip install {name}"
                for name, text in versions.items() if text == "not installed" and name != "torch"]  # fmt: skip
    if find_spec("torch") is None:
        problems.append(f"problem: {NO_TORCH}")
    else:
        facts |= {"processor": _processor(), "gpu": gpu_facts(), "kernel_cache": _kernel_cache()}
        problems += _problems(facts)
    table = "\n".join([*key_lines(facts), "", *(problems or ["no problems found"])])
    print_result({"schema": 1, **facts, "problems": problems}, table=table, as_json=as_json)


def _examine(data: str, schema: Path | None, config: Path | None, sets: Sequence[str] | None, *, as_json: bool) -> None:
    """Print what is wrong with some data; exit with 1 if anything is."""
    from adaptive.studies.data_doctor import examine_data

    with own_stdout():
        rows, findings = examine_data(*data_settings(data, schema, config, sets))
    head = f"{len(findings) or 'no'} finding{'s' * (len(findings) != 1)} in {rows:,} rows"
    result = {"schema": 1, "rows": rows, "findings": [asdict(finding) for finding in findings]}
    print_result(result, table="\n".join([head, *map(_finding_text, findings)]), as_json=as_json)
    if findings:
        raise typer.Exit(1)


def _finding_text(finding: "Finding") -> str:
    return printable(f"{finding.what} ({finding.where}): {finding.why}. {finding.mend}.")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> dict[str, object]:
    import torch

    memory = bytes_text(available_bytes())
    return {"usable_cores": usable_cores(), "torch_threads": torch.get_num_threads(), "available_memory": memory}


def _kernel_cache() -> str:
    from adaptive.kernels import jit

    return str(jit._CACHE_DIR or "none")


def gpu_facts() -> dict[str, str]:
    """Return facts about GPUs; if torch sees one, a kernel runs and its bits are checked."""
    import torch

    from adaptive.embeddings.tiers.gpu.build import check_copy

    driver = Path("/proc/driver/nvidia/version")
    facts = {
        "torch_build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU",
        "nvidia_devices": str(len(list(Path("/dev").glob("nvidia[0-9]*")))),
        "driver": driver.read_text().splitlines()[0] if driver.is_file() else "none",
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


def _problems(facts: Mapping[str, Any]) -> list[str]:
    problems = gpu_problems(facts["gpu"])
    if facts["kernel_cache"] == "none":
        problems.append(
            "problem: compiled kernels are not cached, so every start compiles them again. Set XDG_CACHE_HOME to a "
            "folder that only you can write"
        )
    return problems


def gpu_problems(facts: Mapping[str, str]) -> list[str]:
    """Return problems that keep training from the GPU, and their fixes; none without a GPU."""
    from adaptive.embeddings.tiers.gpu.build import WORKS

    if "usable" not in facts:
        needs = {"triton": ("Triton", "pip install triton"), "c_compiler": ("a C compiler", "sudo apt install gcc"),
                 "python_h": ("Python.h", "sudo apt install python3-dev")}  # fmt: skip
        missing = [need for name, need in needs.items() if facts[name] == "none"]
        kernels = {name.removeprefix("kernel_on_"): text for name, text in facts.items() if name.startswith("kernel_")}
        return [
            *(f"problem: expected {part} for fast kernels on the GPU, got none. Run {fix}" for part, fix in missing),
            *(f"problem: a copy of rows on {name} {text}. Please report it" for name, text in kernels.items()
              if text != WORKS),
        ]  # fmt: skip
    if facts["nvidia_devices"] == "0":
        return []
    if facts["torch_build"] == "CPU":
        fix = "pip uninstall -y torch && pip install -c constraints.txt torch"
        return [f"problem: this machine has an NVIDIA GPU, but torch is a CPU build. Run {fix} (CUDA is the default)"]
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return ["problem: CUDA_VISIBLE_DEVICES hides the GPU from torch. Unset it"]
    return [
        f"problem: torch ({facts['torch_build']}) cannot use the GPU with driver {facts['driver']}. Install a newer "
        "driver; in a container: docker run --gpus all"
    ]
