"""How far the step that `simulate` expects from this machine's rates is from the step of a real run.

    python -m benchmarks.bench_expected [--quick] [--set sizes=5%,10%,20% rounds=3]

Each round measures the rates as `profile --save` does, has `simulate` expect a step from them for every policy and size
of the device tier, and then trains each of these: the run's step is the median of its record's intervals, the first
left out, which compiles and fills the tier. The error is expected over measured, less 1, within a round. All runs
train the same batches, so they must have learnt the same, bit for bit, wherever their rows lay.

By itself, not of `run_all`: on two cores a round takes 20 seconds, and other programs on the machine spoil it.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptive.compare.contenders import contenders
from adaptive.config import TrainConfig
from adaptive.machines.spec import MachineSpec
from adaptive.profile.profile import Question, profile
from adaptive.profile.step import StepLength
from adaptive.runs.training import train_run
from adaptive.settings import load_settings
from adaptive.simulate.machine import Machine, described
from adaptive.simulate.simulation import simulate
from adaptive.telemetry.jsonl import read_metrics
from adaptive.telemetry.record import IntervalRecord
from benchmarks import harness
from benchmarks.harness import NotEqual, Report

Case = tuple[str, str]  # policy and size of the device tier


@dataclass(frozen=True)
class Settings:
    policies: tuple[str, ...] = ("hybrid", "lru", "lfu")
    sizes: tuple[str, ...] = ("5%", "10%", "20%")
    rows: int = 1_100_000
    batch: int = 2048
    steps: int = 120  # of a run
    log_every: int = 20
    time_steps: int = 50  # of each half of `profile --what step`
    rounds: int = 2


SETTINGS = {
    "full": Settings(),
    "quick": Settings(sizes=("10%",), rounds=1),
    "smoke": Settings(rows=100_000, batch=64, steps=12, log_every=4, time_steps=5, rounds=1, sizes=("20%",)),
}


def run(settings: Settings) -> Report:
    expected: dict[Case, list[float]] = {}
    measured: dict[Case, list[float]] = {}
    for number in range(settings.rounds):
        found = expect(settings, rates(settings))
        cases = list(found)
        first, learnt = number % len(cases), set()
        for case in cases[first:] + cases[:first]:
            ms, loss = train(settings, *case)
            expected.setdefault(case, []).append(found[case])
            measured.setdefault(case, []).append(ms)
            learnt.add(loss)
        if len(learnt) > 1:
            raise NotEqual(f"runs of the same batches learnt differently: log loss {sorted(learnt)}")
    return report(expected, measured)


def report(expected: dict[Case, list[float]], measured: dict[Case, list[float]]) -> Report:
    """Errors by case, medians over rounds, and the median of their sizes over all cases."""
    made, errors = Report(), []
    table = made.table("a step, ms, medians", "policy", "device rows", "expected", "measured", "error (%)")
    for (policy, size), steps in expected.items():
        error = harness.paired(steps, measured[policy, size]) - 1
        errors.append(abs(error))
        medians = (statistics.median(steps), statistics.median(measured[policy, size]))
        table.add(policy, size, *medians, f"{100 * error:+.1f}")
        made.ratios[f"expected_step_{policy}_{size.rstrip('%')}"] = 1 + error
    made.figures["expected_step_error_median"] = statistics.median(errors)
    return made


def configs(settings: Settings, policies: Sequence[str], **more: str) -> list[tuple[str, TrainConfig]]:
    """Each policy as written, with its settings."""
    sets = [
        f"data.synthetic.rows={settings.rows}",
        f"data.synthetic.num_train={settings.batch * settings.steps}",
        f"data.synthetic.num_eval={4 * settings.batch}",
        f"batch_size={settings.batch}",
        f"log_every={settings.log_every}",
        *(f"{key}={value}" for key, value in more.items()),
    ]

    def load(label: str, spec: str, options: Mapping[str, str], sets: Sequence[str]) -> TrainConfig:
        return load_settings(sets=sets, flags={"policy": spec})[0]

    return [(one.label, one.config) for one in contenders(",".join(policies), sets, load)]


def rates(settings: Settings) -> MachineSpec:
    """As `profile --what step --save` keeps them; the device tier has 10 % of the rows, as there."""
    length = StepLength(steps=settings.time_steps)
    cases = configs(settings, settings.policies, **{"tier.device_rows": "10%"})
    _, machine = profile(cases, Question(parts=("step",), step=length, with_rates=True))
    assert machine is not None, "nobody stops it"
    return machine


def expect(settings: Settings, spec: MachineSpec) -> dict[Case, float]:
    """Milliseconds of a step as `simulate --machine FILE` expects them."""

    def machine(flops: float, batch_size: int) -> Machine:
        return described(spec, flops_per_sample=flops, batch_size=batch_size)

    found = simulate(configs(settings, settings.policies), settings.sizes, machine)
    return {(one["policy"], one["size"]): one["expected_ms"] for one in found["runs"] if one["error"] is None}


def train(settings: Settings, policy: str, size: str) -> tuple[float, float]:
    """Milliseconds of a step of a run, and the log loss that it came to."""
    ((_, config),) = configs(settings, [policy], **{"tier.device_rows": size})
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        summary = train_run(config.model_copy(update={"out": str(where)}))
        intervals = [one for one in read_metrics(where / "metrics.jsonl") if isinstance(one, IntervalRecord)]
    steps = [1e3 * settings.batch / one.samples_per_s for one in intervals[1:] if one.samples_per_s]
    return statistics.median(steps), summary["log_loss"]


if __name__ == "__main__":
    harness.main(__doc__, run, SETTINGS)
