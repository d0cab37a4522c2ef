"""`adaptive-train doctor`: what this machine and installation offer, and what is wrong with them."""

import contextlib
import importlib
import os
import platform
import shutil
import stat
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from adaptive.cli.gpu_facts import gpu_facts, gpu_problems
from adaptive.cli.launching import check_number
from adaptive.cli.output import AsJson, key_lines, print_result, size_text
from adaptive.system import usable_cores

TIMEOUT_S: Final = 60.0  # for ranks to find each other, and for an exchange

PACKAGES = ("adaptive-train", "torch", "numpy", "numba", "scipy", "tensorboard", "typer", "pydantic")


def doctor(
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=2,
            help="Start so many processes on this machine and measure what they exchange: interface, latency, "
            "bandwidth. Under torchrun, which starts them itself, leave it out.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report versions, processor, memory, GPU, disk, compiled-kernel cache and policies; of ranks their exchanges."""
    from adaptive.embeddings.ranks.launch import is_rank, launch

    if ranks is not None:
        if is_rank():
            raise typer.BadParameter("--ranks starts processes itself; under torchrun leave it out")
        check_number(ranks, None)
        raise typer.Exit(launch(ranks, ["doctor", *(["--json"] if as_json else [])], None))
    together = _exchanges() if is_rank() else None
    if together is not None and not together.pop("prints"):
        return
    facts: dict[str, Any] = {name: examine() for name, examine in _EXAMINATIONS.items()}
    problems, lines = _problems(facts), []
    if together is not None:
        from adaptive.embeddings.ranks.measure import verdicts

        text, wrong = verdicts(together)
        facts["ranks"], problems, lines = together, [*problems, *wrong], [text]
    table = "\n".join([*key_lines(facts), "", *lines, *(problems or ["no problems found"])])
    print_result({"schema": 1, **facts, "problems": problems, "table": table}, as_json=as_json)


def _exchanges() -> dict[str, Any]:
    """Of the ranks that this process is one of; rank 0 prints."""
    from adaptive.embeddings.ranks import Ranks
    from adaptive.embeddings.ranks.measure import measure
    from adaptive.embeddings.ranks.torch_transport import TorchTransport

    transport = TorchTransport(TIMEOUT_S, "gloo")
    try:
        ranks = Ranks(transport)
        versions = {"adaptive-train": version("adaptive-train"), "torch": version("torch")}
        ranks.require_equal(lambda: {"versions": versions})
        return {**measure(ranks, transport), "prints": ranks.is_first}
    finally:
        transport.close()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _processor() -> dict[str, Any]:
    import torch

    return {
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "numba_threading_layers": _threading_layers(),
    }


def _threading_layers() -> list[str]:
    """The layers that load here, in the order in which numba prefers them: it takes the first."""
    import torch  # noqa: F401 (before numba's threads, see adaptive.kernels.jit)

    layers = []
    for layer, module in (("tbb", "tbbpool"), ("omp", "omppool"), ("workqueue", "workqueue")):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"numba.np.ufunc.{module}")
            layers.append(layer)
    return layers


def _memory() -> dict[str, str]:
    facts = {"total": size_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))}
    # CUDA pins memory whatever `ulimit -l` says, so that what is available is what can be pinned.
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.is_file():
        kib = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        facts["available_or_pinnable"] = size_text(int(kib["MemAvailable"].split()[0]) * 1024)
    if limit.is_file() and limit.read_text().strip().isdigit():
        facts["limit_of_this_container"] = size_text(int(limit.read_text()))
    return facts


def _disk() -> dict[str, str]:
    return {"folder": str(Path.cwd()), "free": size_text(shutil.disk_usage(Path.cwd()).free)}


def _kernel_cache() -> dict[str, Any]:
    from adaptive.kernels import jit

    if jit._CACHE_DIR is None:
        return {"folder": "none", "safe": False}
    found = Path(jit._CACHE_DIR).stat()
    safe = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022
    return {"folder": jit._CACHE_DIR, "safe": safe}


def _policies() -> dict[str, str]:
    """Name -> where from, or why it does not load."""
    from adaptive.plugins import installed_policies, load_policy_class

    found = {}
    for name, place in installed_policies().items():
        try:
            load_policy_class(name)
            found[name] = place
        except Exception as error:  # a policy of somebody else may raise anything when imported
            found[name] = f"does not load: {type(error).__name__}: {error}"
    return found


_EXAMINATIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "versions": _versions,
    "processor": _processor,
    "memory": _memory,
    "gpu": gpu_facts,
    "disk": _disk,
    "kernel_cache": _kernel_cache,
    "policies": _policies,
}


def _problems(facts: dict[str, Any]) -> list[str]:
    problems = [
        f"problem: policy {name} {text}; reinstall or remove its package"
        for name, text in facts["policies"].items()
        if text.startswith("does not load")
    ]
    if not facts["policies"]:
        problems.append("problem: no policies are installed; install the project (pip install -e .)")
    if not facts["kernel_cache"]["safe"]:
        problems.append(
            "problem: compiled kernels are not kept, every start compiles anew (about a minute); "
            "give XDG_CACHE_HOME a folder that only you can write"
        )
    missing = [name for name, found in facts["versions"].items() if found == "not installed"]
    problems += [f"problem: {name} is not installed; pip install {name}" for name in missing]
    return [*problems, *gpu_problems(facts["gpu"])]
