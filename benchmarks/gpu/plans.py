"""What to do with a quarter of an hour on a GPU: a plan is one command, and answers one question.

    python -m benchmarks.gpu.plans smoke                               # two minutes: does everything run, is it right?
    python -m benchmarks.gpu.plans limits --seconds 600 --out results  # which part of a step is too slow?
    python -m benchmarks.gpu.plans flag-and-graph --seconds 600        # the step without a wait, models as graphs
    python -m benchmarks.gpu.plans new-items --seconds 600             # what has never run on a GPU
    python -m benchmarks.gpu.plans peers --seconds 600                 # FBGEMM and torch beside us
    python -m benchmarks.gpu.plans everything                          # all tests and tables, a quarter of an hour
    python -m benchmarks.gpu.plans limits --device cpu-torch           # a rehearsal on the CPU; no GPU numbers

Run it in the root of the repository; `docs/benchmarks/gpu.md` lists what is required. Each stage is a separate process
with a limit. What it measured is written at once to `--out`, where later commands with `--only` add to it; the tables
come last. Without a CUDA device the exit code is 1, as if a test failed.
"""

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks import ending, harness, run_all
from benchmarks.bars import GPU_BARS, GPU_REQUIRED
from benchmarks.gpu.suite import run_suite, run_tests
from benchmarks.harness import Report

MOST_SECONDS = 600  # of a stage, including its end: such machines are lent for ten minutes at a time
START_SECONDS = 30  # imports, and kernels to compile, of a stage that ends by itself
REHEARSAL = 4  # times as long as on a GPU, where kernels are interpreted
MARGIN = 1.25  # measurements that began in time are finished
PACKAGES = ("torch", "numba", "numpy", "scipy", "pydantic", "pytest", "hypothesis")
BEGIN, END = "<!-- results: written by python -m benchmarks.gpu.plans -->", "<!-- end of results -->"
BUILD = ending.ROOT / "build/benchmarks"
TINY = {  # sizes of a rehearsal, after those of the plan
    "probe": (
        "rows=2000", "ids=2000", "dims=8", "batches=32", "heavy=16", "copy_megabytes=1", "rounds=1", "gigabytes=0.0008",
    ),
    "step": (
        "gigabytes=0.002", "dim=8", "batch=32", "batches=32", "check_samples=16", "rounds=1", "steps=1",
        "copy_megabytes=1",
    ),
}  # fmt: skip
COUNTS = {"gpu_tests_passed", "gpu_tests_failed"}
Run = Callable[[str, float], Report]  # of a device and seconds


@dataclass(frozen=True)
class Stage:
    name: str
    seconds: float
    run: Run


def bench(name: str, *changes: str, size: str = "full") -> Run:
    """`bench_gpu_<name>` with these settings."""

    def run(tier: str, seconds: float) -> Report:
        last = [f"device={tier}", *(TINY[name] if tier != "cuda" else ()), f"seconds={seconds:.0f}"]
        arguments = [f"--{size}"] if size != "full" else []
        module = f"benchmarks.gpu.bench_gpu_{name}"
        return ending.run_module(module, *arguments, "--set", *changes, *last, limit=limit_of(seconds))

    return run


def pytest(*arguments: str, **environment: str) -> Run:
    """Tests in one process."""
    return lambda tier, seconds: run_tests([list(arguments)], tier, seconds, environment)


def commands(**settings: str) -> Run:
    """`adaptive-train run` on 10 GB of tables, for 400 batches, once for each of the settings."""

    def run(tier: str, seconds: float) -> Report:
        report, until = Report(), time.monotonic() + seconds
        for name, text in settings.items():
            _train(report, name.replace("_", " "), shlex.split(text), tier, until - time.monotonic())
        return report

    return run


def _train(report: Report, name: str, settings: list[str], tier: str, seconds: float) -> None:
    rows, batch, steps = (39_062_500, 16_384, 400) if tier == "cuda" else (100_000, 32, 40)
    shape = (
        "model.embedding_dim=64 model.bottom_mlp=512-256-64 model.top_mlp=1024-1024-512-256-1 "
        f"data.synthetic.rows={rows} data.synthetic.num_train={batch * steps} data.synthetic.num_eval=1000"
    ).split()
    changes = [f"--set={one}" for one in (*shape, f"tier.device={tier}", *settings)]
    size = ["--device-rows=10%", f"--batch-size={batch}", f"--steps={steps}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "adaptive", "run", "--json", "--policy=lru", f"--out={folder}/run", *size]
        print(f"\n=== {shlex.join([*command[1:], *changes])}", flush=True)
        try:
            done = subprocess.run([*command, *changes], cwd=ending.ROOT, stdout=-1, timeout=max(seconds, 1), check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            report.absent[f"bench_run {name}"] = f"{error}"
            return
    result = json.loads(done.stdout)
    ms = {stage: float(value) for stage, value in result["time_ms"].items()}
    if not report.tables:
        report.table(f"adaptive-train run, batch size {batch}", "settings", "stage", "ms a step")
    for stage, value in {"step, from samples a second": 1e3 * batch / result["samples_per_s"], **ms}.items():
        report.tables[0].add(name, stage, value)


def tool(program: str, *command: str) -> Run:
    """A program of CUDA's toolkit around Python, whose output is printed; left out where it is not installed."""

    def run(tier: str, seconds: float) -> Report:
        if tier != "cuda" or shutil.which(program) is None:
            return Report(absent={program: "it needs a GPU" if tier != "cuda" else "not installed"})
        words = [program, *command[:-1], sys.executable, "-m", *shlex.split(command[-1])]
        print(f"\n=== {shlex.join(words)}", flush=True)
        environment = os.environ | {"GPU_SUITE_DEVICE": tier}
        try:
            subprocess.run(words, cwd=ending.ROOT, env=environment, timeout=seconds, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            return Report(absent={f"bench_{program}": f"{error}"})
        return Report(notes=[f"{program}: its output is above."])

    return run


SMOKE = Stage("smoke", 60, pytest("tests/gpu", "tests/kernels/rows", "-m", "smoke", GPU_SUITE_EXAMPLES="3"))
RUN = Stage("run", 80, commands(float32="tf32=false", TF32="tf32=true"))
FLOAT32, ALL_PRECISIONS = "precisions=float32", "precisions=float32,tf32,bf16"
ALL_BATCHES = "batches=2048,16384,65536"
PEERS = (
    "variants=device,device:graph=1,lru:10,lru:10:graph=1,lru:10:trainer=1,fbgemm,fbgemm:graph=1,fbgemm_cached:10,"
    "fbgemm_cached:10:graph=1,torchrec:10"
)
COPIES = ("programs=64", "programs=1000000", "transfer=staged")  # as usual, one tile each, through buffers
PLANS: dict[str, tuple[Stage, ...]] = {
    "smoke": (
        SMOKE,
        Stage("probe", 40, bench("probe", size="smoke")),
        Stage("step", 40, bench("step", size="smoke")),
    ),
    "limits": (
        SMOKE,
        Stage("dense", 60, bench("probe", "parts=dense", ALL_BATCHES)),
        Stage("tf32", 220, bench(
            "step", "precisions=tf32", "batches=16384", "variants=device,lru:10,lru:10:trainer=1,lru:10:plan_threads=6,"
            "lru:10:tracker_threads=4,lru:10:lookups=device",
        )),
        Stage("copies", 120, bench(
            "step", FLOAT32, "batches=16384", "rounds=5",
            f"variants={','.join(f'lru:{share}:{way}' for share in (10, 1) for way in COPIES)}",
        )),
        RUN,
    ),
    "flag-and-graph": (
        Stage("tests", 90, pytest("tests/gpu/test_gpu_waits.py", "tests/gpu/test_gpu_determinism.py", "-m", "gpu")),
        Stage("steps", 300, bench(
            "step", ALL_PRECISIONS, "batches=16384,2048", "rounds=5",
            "variants=device,device:graph=1,device:trainer=1,lru:10,lru:10:graph=1,lru:10:trainer=1,"
            "lru:10:trainer=1:eager=1",
        )),
        Stage("large", 60, bench(
            "step", "precisions=tf32", "batches=65536", "rounds=5",
            "variants=device,lru:10:trainer=1,lru:1:trainer=1",
        )),
        RUN,
        Stage("ncu", 40, tool(
            "ncu", "-k", "regex:update_kernel|hot_kernel", "-c", "4",
            "benchmarks.gpu.bench_gpu_probe --set parts=kernels dims=64 batches=16384 heavy=0 rounds=1",
        )),
    ),
    "new-items": (
        Stage("invariance", 150, pytest(
            "tests/gpu/test_gpu_invariance.py", "-m", "gpu", "-k", "keys or any_width or ten_thousand",
            CUDA_LAUNCH_BLOCKING="1",
        )),
        Stage("bfloat16", 70, pytest("tests/kernels/rows", "-k", "triton and bfloat16")),
        Stage("lookups", 150, bench(
            "step", FLOAT32, ALL_BATCHES, "ids=1,4,10", "rounds=3",
            "variants=lru:10:lookups=host,lru:10:lookups=device",
        )),
        Stage("rows", 60, bench(
            "step", FLOAT32, "dtype=bfloat16", "batches=16384", "rounds=5", "variants=device,lru:10",
        )),
        Stage("keys", 90, commands(
            rows="data.synthetic.new_ids=0.0", keys="data.synthetic.new_ids=0.1 data.keys.capacity=5000000",
        )),
        Stage("ranks", 35, pytest("tests/gpu/test_gpu_ranks.py", "-m", "gpu")),
        Stage("races", 60, tool(
            "compute-sanitizer", "--tool", "racecheck", "--target-processes", "all",
            "pytest tests/kernels/rows/test_triton_update.py -q -k 'every_width and 64 and RowwiseAdagrad'",
        )),
    ),
    "peers": (
        Stage("rowwise", 260, bench("step", FLOAT32, "batches=16384", "rounds=5", PEERS)),
        Stage("sgd", 260, bench(
            "step", FLOAT32, "batches=16384", "rounds=5", "optimizer=sgd", f"{PEERS},torch,torch:graph=1",
        )),
    ),
    "everything": (
        Stage("probe", 240, bench("probe")),
        Stage("suite", 240, run_suite),
        Stage("step", 420, bench("step")),
    ),
}  # fmt: skip


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


def gather(plan: str, folder: Path) -> Report:
    """Return the reports of the plan's stages in the folder, in order. Numbers of tests are added up."""
    report, paths = Report(), {stage.name: folder / f"{stage.name}.json" for stage in PLANS[plan]}
    for name, path in paths.items():
        if path.is_file():
            part = Report.load(path)
            for all_numbers, numbers in ((report.ratios, part.ratios), (report.figures, part.figures)):
                for count in COUNTS & numbers.keys() & all_numbers.keys():
                    numbers[count] += all_numbers[count]
            part.absent = {f"{what} ({name})": reason for what, reason in part.absent.items()}
            report.merge(part)
    return report


def run(plan: str, only: list[str], device: str, seconds: float, folder: Path) -> Report:
    """Run the stages, or those of `only`; return their reports and those of earlier commands."""
    until = time.monotonic() + seconds
    for stage in [stage for stage in PLANS[plan] if stage.name in only or not only]:
        left = until - time.monotonic() - START_SECONDS - ending.GRACE_SECONDS
        usual = stage.seconds if device == "cuda" else REHEARSAL * stage.seconds
        limit = min(usual, left / MARGIN)
        if limit < 5:
            report = Report(absent={"everything": f"no time was left of {seconds:.0f} s"})
        else:
            report = stage.run(device, limit)
        report.notes.append(f"{stage.name}: {date.today().isoformat()}, `{_command()}`.")
        report.save(folder / f"{stage.name}.json")
        values = run_all.as_json(gather(plan, folder), GPU_REQUIRED if plan == "everything" else ())
        # After each stage: what was measured survives a later fault.
        (folder / "results.json").write_text(json.dumps(values, indent=1) + "\n")
    return gather(plan, folder)


def _command() -> str:
    return shlex.join(["python", "-m", "benchmarks.gpu.plans", *sys.argv[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after about so many seconds")
    parser.add_argument("--only", nargs="+", default=[], metavar="STAGE", help="run only these")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of the results (build/benchmarks/gpu-PLAN)")
    parser.add_argument("--device", choices=("cuda", "cpu-torch"), default="cuda", help="cpu-torch: a rehearsal")
    options = parser.parse_args()
    names = [stage.name for stage in PLANS[options.plan]]
    if unknown := set(options.only) - set(names):
        parser.error(f"--only: expected stages among {', '.join(names)}, got {', '.join(sorted(unknown))}")
    check_machine(options.device)
    from benchmarks.gpu.accelerator import describe

    folder: Path = options.out or BUILD / f"gpu-{options.plan}"
    folder.mkdir(parents=True, exist_ok=True)
    machine, quietness = describe(options.device), harness.quietness()
    print(machine, quietness, sep="\n", flush=True)
    report = run(options.plan, options.only, options.device, options.seconds, folder)
    section = run_all.markdown(report, _command(), quietness, machine=machine, bars=GPU_BARS)
    run_all.write_document(folder / "tables.md", section, begin=BEGIN, end=END)
    report.show()
    print(run_all.bars_table(report, GPU_BARS).plain())
    failed = [name for name in report.absent if name.startswith("bench_")]
    failed += ["tests"] if report.ratios.get("gpu_tests_failed") else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
