"""All tests and benchmarks on a GPU. Without a CUDA device the exit code is 1.

    python -m benchmarks.gpu.run_all                             # a quarter of an hour
    python -m benchmarks.gpu.run_all --smoke                     # two minutes: does everything run, is it right?
    python -m benchmarks.gpu.run_all --only probe suite --reports out  # parts of ten minutes, the most useful first
    python -m benchmarks.gpu.run_all --only step --reports out --json results.json
    python -m benchmarks.gpu.run_all --write --reports out       # anywhere: the tables of these reports into the page
    python -m benchmarks.gpu.run_all --smoke --device cpu-torch  # a rehearsal on the CPU; no GPU numbers

Run it in the root of the repository; `docs/benchmarks/gpu.md` lists what is required. The tables go to
`build/benchmarks/gpu.md`.
"""

import argparse
import importlib.util
import json
import shlex
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from benchmarks import ending, harness, run_all
from benchmarks.bars import GPU_BARS, GPU_REQUIRED
from benchmarks.harness import Report

STAGES = ("probe", "suite", "step")
SECONDS: dict[str, dict[str, float]] = {  # of each stage; those that measure in turns end by themselves
    "full": {"probe": 240, "suite": 240, "step": 420},
    "quick": {"probe": 90, "suite": 120, "step": 180},
    "smoke": {"probe": 100, "suite": 200, "step": 30},
}
MOST_SECONDS = 600  # of a stage, including its end: such machines are lent for ten minutes at a time
START_SECONDS = 30  # imports, and kernels to compile, of a stage that ends by itself
MARGIN = 1.25  # measurements that began in time are finished
TINY = {  # sizes of a rehearsal
    "probe": ("rows=2000", "ids=2000", "dims=8", "batches=32", "heavy=16", "copy_megabytes=1", "rounds=1"),
    "step": ("gigabytes=0.0008", "dim=8", "batch=32", "check_samples=16", "rounds=1", "steps=1", "copy_megabytes=1"),
}  # fmt: skip
PACKAGES = ("torch", "numba", "numpy", "scipy", "pydantic", "pytest", "hypothesis")
BEGIN, END = "<!-- results: written by python -m benchmarks.gpu.run_all -->", "<!-- end of results -->"
DOCUMENT = Path(__file__).resolve().parents[2] / "build/benchmarks/gpu.md"


def check_machine(tier: str) -> None:
    """Check packages, device and Triton.

    Raises:
        SystemExit: if packages are missing, there is no CUDA device, or Triton cannot launch kernels.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"missing packages: {', '.join(missing)}. Install them, or put them on PYTHONPATH (docs/benchmarks/gpu.md)"
        )
    from adaptive.errors import ConfigError
    from adaptive.kernels.rows import gpu
    from benchmarks.gpu.accelerator import open_accelerator

    if open_accelerator(tier).is_gpu:
        try:
            gpu.prepare()
        except ConfigError as error:
            raise SystemExit(f"{error} (docs/benchmarks/gpu.md)") from error


def limit_of(seconds: float) -> float:
    """Return the seconds after which a stage of this length gets SIGTERM."""
    return min(seconds * MARGIN + START_SECONDS, MOST_SECONDS - ending.GRACE_SECONDS)


def run_stage(stage: str, size: str, tier: str, seconds: float) -> Report:
    """The report of a stage that takes about `seconds` at most."""
    if stage == "suite":
        from benchmarks.gpu.suite import run_suite

        return run_suite(tier, size, seconds)
    changes = [f"device={tier}", *(TINY[stage] if tier != "cuda" else ()), f"seconds={seconds:.0f}"]
    arguments = [f"--{size}"] if size != "full" else []
    module = f"benchmarks.gpu.bench_gpu_{stage}"
    return ending.run_module(module, *arguments, "--set", *changes, limit=limit_of(seconds))


def gather(folder: Path) -> Report:
    """Return the reports of all stages in the folder, in order."""
    report = Report()
    for stage in STAGES:
        path = folder / f"{stage}.json"
        if path.is_file():
            report.merge(Report.load(path))
    return report


def run(options: argparse.Namespace, folder: Path) -> Report:
    """Run the selected stages; return their reports and those of earlier commands."""
    until = time.monotonic() + options.seconds if options.seconds else float("inf")
    command = shlex.join(["python", "-m", "benchmarks.gpu.run_all", *sys.argv[1:]])
    for stage in [stage for stage in STAGES if stage in options.only]:
        left = until - time.monotonic() - START_SECONDS - ending.GRACE_SECONDS
        seconds = min(SECONDS[options.size][stage], left / MARGIN)
        if seconds < 5:
            report = Report(absent={f"gpu {stage}": f"no time was left of {options.seconds} s"})
        else:
            report = run_stage(stage, options.size, options.device, seconds)
        report.notes.append(f"{stage}: {date.today().isoformat()}, `{command}`.")
        report.save(folder / f"{stage}.json")
        report = gather(folder)
        if options.json is not None:  # after each stage: what was measured survives a later fault
            options.json.write_text(json.dumps(run_all.as_json(report, GPU_REQUIRED), indent=1) + "\n")
    return gather(folder)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, size, text in harness.SIZES:
        parser.add_argument(flag, action="store_const", const=size, dest="size", default="full", help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write ratios, figures and what is absent as JSON")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES, help="run only these")
    parser.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="keep the reports of stages here, and add to them"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="end after about N seconds; the results list what is missing"
    )
    parser.add_argument("--device", choices=("cuda", "cpu-torch"), default="cuda", help="cpu-torch: a rehearsal")
    parser.add_argument("--write", action="store_true", help="run nothing: write the document from --reports")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where the tables go (build/benchmarks/gpu.md)")
    return parser


def write(options: argparse.Namespace, folder: Path) -> Report:
    """Write the document from the reports in the folder; machine and command are the run's.

    Raises:
        SystemExit: if there are none.
    """
    path = folder / "machine.json"
    if not path.is_file():
        raise SystemExit(f"expected {path}, which a run with --reports writes. Run one first, or choose its folder")
    about, report = json.loads(path.read_text()), gather(folder)
    if about["size"] != "full":
        report.notes.append("small sizes: a first impression, no verdict on the bars.")
    section = run_all.markdown(report, about["command"], about["quietness"], machine=about["machine"], bars=GPU_BARS)
    run_all.write_document(options.document, section, begin=BEGIN, end=END)
    return report


def main() -> None:
    options = arguments().parse_args()
    if options.write:
        if options.reports is None:
            raise SystemExit("--write: expected --reports FOLDER with the reports of an earlier run. Add it")
        write(options, options.reports)
        return
    check_machine(options.device)
    from benchmarks.gpu.accelerator import describe

    machine, quietness = describe(options.device), harness.quietness()
    print(machine, quietness, sep="\n", flush=True)
    command = shlex.join(["python", "-m", "benchmarks.gpu.run_all", *sys.argv[1:]])
    about = {"machine": machine, "quietness": quietness, "command": command, "size": options.size}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.reports or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "machine.json").write_text(json.dumps(about, indent=1) + "\n")
        report = run(options, folder)
        if options.device == "cuda":
            report = write(options, folder)
    print(run_all.bars_table(report, GPU_BARS).plain())
    failed = [name for name in report.absent if name.startswith("bench_")]
    failed += ["tests"] if report.ratios.get("gpu_tests_failed") else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
