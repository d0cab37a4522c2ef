"""`profile`: the parts that were asked for, one after another, as one record."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from adaptive.config import parse_size
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.embeddings.planning.sizing import row_bytes
from adaptive.errors import ConfigError
from adaptive.optim import row_optimizer
from adaptive.studies.machines import MachineSpec
from adaptive.studies.profile import Profile, StepProfile
from adaptive.studies.profile.data_profile import MOST_BUDGETS, DataQuestion, profile_data
from adaptive.studies.profile.movement import MovementLength, profile_movement
from adaptive.studies.profile.step_profile import Case, StepLength, measured_machine, profile_step
from adaptive.studies.simulate.simulation import simulate_group
from adaptive.studies.step_model import Machine
from adaptive.training.components import build_tables, open_data
from adaptive.training.telemetry.progress import Countdown

PARTS: Final = ("data", "step", "movement")
SIMULATED: Final = 30  # batches from which planning in a simulation is timed


@dataclass(frozen=True)
class Question:
    """What is to be profiled.

    Attributes:
        parts: of PARTS.
        data: what is asked of the data; its budgets follow from `memory`.
        memory: budgets for hot rows, as in `--device-rows`.
        step, movement: how long is trained.
        with_rates: this machine's rates are wanted, too.
    """

    parts: tuple[str, ...] = ("data", "step")
    data: DataQuestion = field(default_factory=DataQuestion)
    memory: tuple[str, ...] = ("1%", "5%", "10%", "20%")
    step: StepLength = field(default_factory=StepLength)
    movement: MovementLength = field(default_factory=MovementLength)
    with_rates: bool = False

    def __post_init__(self) -> None:
        """
        Raises:
            ConfigError: for parts that there are not, too many budgets, or rates without the step.
        """
        if not self.parts or set(self.parts) - set(PARTS):
            raise ConfigError(f"--sections {','.join(self.parts)!r}: needed some of {', '.join(PARTS)}")
        if self.with_rates and "step" not in self.parts:
            raise ConfigError("--save needs the step, from which rates are measured: --sections step")
        if "data" in self.parts and not self.memory:
            raise ConfigError("--memory: expected one or several sizes, such as 1%,5% or 512MiB, got none")
        if len(self.memory) > MOST_BUDGETS:
            raise ConfigError(f"--memory: expected at most {MOST_BUDGETS} sizes, got {len(self.memory)}")


def profile(
    cases: Sequence[Case],
    question: Question,
    *,
    dataset: Dataset | None = None,
    stopped: Callable[[], bool] = lambda: False,
    told: Callable[[str], None] = lambda line: None,
) -> tuple[Profile, MachineSpec | None]:
    """The record, and this machine's rates if they were asked for and measured.

    Args:
        cases: policies for the step, as written, with the settings; data and movement take the first one's settings.
        question: see there.
        dataset: that of the settings, if it is open: opening may read all files, and cannot be stopped on the way.
        stopped: what is done by the time it says yes is kept; the rest is left out.
        told: called with lines of progress.

    Raises:
        AdaptiveError: for settings or data that cannot be profiled.
    """
    config = cases[0][1]
    dataset = open_data(config) if dataset is None else dataset
    width = int(config.model_options.get("embedding_dim", 16))
    (group,) = make_groups(build_tables(dataset, width), config.seed)
    size = row_bytes(group, row_optimizer(config.optimizer))
    result, machine = Profile(config.data), None
    if "data" in question.parts:
        budgets = _budgets(question.memory, group, size)
        asked = replace(question.data, budgets=budgets, batch_size=config.batch_size, depth=config.depth)
        samples = [number for number in (dataset.num_train_samples(), asked.samples) if number is not None]
        progress = Countdown(told, "samples read", min(samples, default=None))
        data = profile_data(dataset, group, size, asked, stopped=stopped, told=progress)
        result = replace(result, data=data)
    if "step" in question.parts and not stopped():
        progress = Countdown(told, "steps trained", 2 * (question.step.warmup + question.step.steps) * len(cases))
        steps = profile_step(cases, question.step, dataset=dataset, stopped=stopped, told=progress)
        result = replace(result, step=steps)
        if question.with_rates and not stopped():
            machine = measured_machine(
                steps,
                value_bytes=4 * width,
                row_bytes=size,
                features=len(dataset.features),
                plan_factor=_plan_factor(cases, steps, dataset, group),
            )
            result = replace(result, machine=machine.model_dump(exclude_none=True))
    if "movement" in question.parts and not stopped():
        progress = Countdown(told, "steps trained", question.movement.steps)
        moving = config.model_copy(update={"policy": "lru", "policy_options": {}, "skip": None})
        moved = profile_movement(moving, question.movement, dataset=dataset, stopped=stopped, told=progress)
        result = replace(result, movement=moved)
    return result, machine


def _budgets(memory: Sequence[str], group: Group, size: int) -> tuple[tuple[str, int], ...]:
    try:
        budgets = tuple((text, parse_size(text, row_bytes=size, num_rows=group.num_rows)) for text in memory)
    except ValueError as error:
        raise ConfigError(f"--memory: {error}") from error
    for text, rows in budgets:
        if not rows:
            raise ConfigError(
                f"--memory {text}: needed room for one row at least, which takes {size} bytes with its state"
            )
    return budgets


def _plan_factor(cases: Sequence[Case], steps: Sequence[StepProfile], dataset: Dataset, group: Group) -> float:
    """Planning in training over planning the same policies in a simulation."""
    factors = []
    machine = Machine(link=1e9, device=1e9, host=1e9, dense_ms=1.0)
    for (label, config), step in zip(cases, steps, strict=True):
        size = str(step.device_rows)
        short = config.model_copy(update={"steps": SIMULATED, "epochs": 1})
        runs = simulate_group([(label, short)], [size], machine, (dataset, group)).runs
        factors += [step.beside_ms["plan"] / run.plan_ms for run in runs if run.plan_ms]
    return statistics.median(factors) if factors else 1.0
