"""`profile`: run the requested sections one after another and return one record."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from adaptive.config import parse_size
from adaptive.data.dataset import Dataset
from adaptive.data.key_numbers import number_keys
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
from adaptive.training.components import open_data, study_tables
from adaptive.training.telemetry.progress import Countdown

PARTS: Final = ("data", "step", "movement")
SIMULATED: Final = 30  # batches for which planning in a simulation is timed


@dataclass(frozen=True)
class Question:
    """Options of `profile`.

    Attributes:
        parts: some of PARTS.
        data: options of the data section; its budgets follow from `memory`.
        memory: budgets for hot rows, as in `--device-rows`.
        step, movement: lengths of the trainings.
        with_rates: also measure this machine's rates.
    """

    parts: tuple[str, ...] = ("data", "step")
    data: DataQuestion = field(default_factory=DataQuestion)
    memory: tuple[str, ...] = ("1%", "5%", "10%", "20%")
    step: StepLength = field(default_factory=StepLength)
    movement: MovementLength = field(default_factory=MovementLength)
    with_rates: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ConfigError: for unknown parts, too many budgets, or rates without the step.
        """
        if not self.parts or set(self.parts) - set(PARTS):
            raise ConfigError(f"--sections: expected some of {', '.join(PARTS)}, got {','.join(self.parts)!r}")
        if self.with_rates and "step" not in self.parts:
            raise ConfigError("--save: expected the section that measures rates. Add step to --sections")
        if "data" in self.parts and not self.memory:
            raise ConfigError("--memory: expected sizes such as 1%,5% or 512MiB, got none")
        if len(self.memory) > MOST_BUDGETS:
            raise ConfigError(f"--memory: expected at most {MOST_BUDGETS} sizes, got {len(self.memory)}")


def profile(
    cases: Sequence[Case],
    question: Question,
    *,
    dataset: Dataset | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> tuple[Profile, MachineSpec | None]:
    """Profile the requested sections. Keys of the data count as rows, one for each; the step trains them as keys.

    Args:
        cases: policies as the user wrote them, with their settings, for the step; data and movement use the first.
        question: options.
        dataset: that of the settings, if it is open already: opening may read all files and cannot be stopped.
        is_stopped: after it returns True, the remaining sections are left out.
        on_progress: called with lines of progress.

    Returns:
        The record, and this machine's rates if they were requested and measured.

    Raises:
        AdaptiveError: for settings or data that cannot be profiled.
    """
    config = cases[0][1]
    dataset = open_data(config) if dataset is None else dataset
    width = int(config.model_options.get("embedding_dim", 16))
    numbered = number_keys(dataset, question.data.samples)
    (group,) = make_groups(study_tables(config, numbered, width), config.seed)
    size = row_bytes(group, row_optimizer(config.optimizer))
    result, machine = Profile(config.data), None
    if "data" in question.parts:
        budgets = _budgets(question.memory, group, size)
        options = replace(question.data, budgets=budgets, batch_size=config.batch_size, depth=config.depth)
        samples = [number for number in (dataset.num_train_samples(), options.samples) if number is not None]
        progress = Countdown(on_progress, "samples read", min(samples, default=None))
        data = profile_data(numbered, group, size, options, is_stopped=is_stopped, on_progress=progress)
        result = replace(result, data=data)
    if "step" in question.parts and not is_stopped():
        progress = Countdown(
            on_progress, "steps trained", 2 * (question.step.warmup + question.step.steps) * len(cases)
        )
        steps = profile_step(cases, question.step, dataset=dataset, is_stopped=is_stopped, on_progress=progress)
        result = replace(result, step=steps)
        if question.with_rates and not is_stopped():
            machine = measured_machine(
                steps,
                value_bytes=group.vector_bytes,
                row_bytes=size,
                plan_factor=_plan_factor(cases, steps, numbered, group),
            )
            result = replace(result, machine=machine.model_dump(exclude_none=True))
    if "movement" in question.parts and not is_stopped():
        progress = Countdown(on_progress, "steps trained", question.movement.steps)
        moving = config.model_copy(update={"policy": "lru", "policy_options": {}, "skip": None})
        moved = profile_movement(
            moving, question.movement, dataset=dataset, is_stopped=is_stopped, on_progress=progress
        )
        result = replace(result, movement=moved)
    return result, machine


def _budgets(memory: Sequence[str], group: Group, size: int) -> tuple[tuple[str, int], ...]:
    try:
        budgets = tuple((text, parse_size(text, row_bytes=size, num_rows=group.num_rows)) for text in memory)
    except ValueError as error:
        raise ConfigError(f"--memory: {error}, got {', '.join(memory)}") from error
    for text, rows in budgets:
        if not rows:
            raise ConfigError(f"--memory: expected at least one row ({size} bytes with its state), got {text}")
    return budgets


def _plan_factor(cases: Sequence[Case], steps: Sequence[StepProfile], dataset: Dataset, group: Group) -> float:
    """Time of planning in training over that of planning the same policies in a simulation."""
    factors = []
    machine = Machine(link=1e9, device=1e9, host=1e9, dense_ms=1.0)
    for (label, config), step in zip(cases, steps, strict=True):
        size = str(step.device_rows)
        short = config.model_copy(update={"steps": SIMULATED, "epochs": 1})
        runs = simulate_group([(label, short)], [size], machine, (dataset, group)).runs
        factors += [step.look_ahead_ms["plan"] / run.plan_ms for run in runs if run.plan_ms]
    return statistics.median(factors) if factors else 1.0
