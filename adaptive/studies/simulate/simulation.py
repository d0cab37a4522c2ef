"""`simulate`: policies and device sizes side by side over the ids of a data set.

The data are read once for all policies that take batches as they come; a policy that arranges its inputs has a
stream of its own. What is in memory at a time: a chunk of batches, the records and slots of every run, and the trace
for Belady's bound.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from pydantic import ValidationError

from adaptive.config import TierConfig, TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.embeddings.planning.sizing import held_rows
from adaptive.errors import ConfigError, DeviceMemoryError
from adaptive.optim import row_optimizer
from adaptive.plugins import make_policy, with_rule
from adaptive.studies.simulate.machine import Machine
from adaptive.studies.simulate.result import simulation_result
from adaptive.studies.simulate.run import Setup, SimulatedRun
from adaptive.studies.simulate.stream import SharedTrace, Told, least_device_rows
from adaptive.system import StopRequest, stop_request
from adaptive.training.build import build_tables, dense_flops, first_batches, open_data, prepare

MachineOf = Callable[[float, int], Machine]
Case = tuple[str, TrainConfig]  # the policy as the user wrote it, and the settings with that policy


def simulate(
    cases: Sequence[Case],
    sizes: Sequence[str],
    machine: Machine | MachineOf,
    *,
    embedding_dim: int = 16,
    told: Told | None = None,
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """Hit rates, moved bytes, Belady's bound and modelled step times of every policy at every device size.

    Args:
        cases: settings that differ in the policy only.
        sizes: device rows, as in `tier.device_rows`; a policy that fixes its size is run at that one.
        machine: for the modelled times; or a function that gives it, of the operations of the model's dense part for a
            sample and the batch size.
        embedding_dim: width of a row.
        told: called now and then.
        stop: signals set it while batches are planned. What is read by then is planned; policies that arrange their
            inputs, and so have batches of their own, are among the runs only if they saw all of these.

    Returns:
        What `adaptive-train simulate --json` prints.

    Raises:
        AdaptiveError: for bad settings or data, or if no run came to its end. What stops one run is told as its
            `error`.
    """
    _check(cases, sizes)
    config = cases[0][1]
    dataset = open_data(config)
    (group,) = make_groups(build_tables(dataset, embedding_dim), config.seed)
    known = machine if isinstance(machine, Machine) else machine(dense_flops(config, dataset), config.batch_size)
    return simulate_group(cases, sizes, known, dataset, group, told=told, stop=stop)


def simulate_group(
    cases: Sequence[Case],
    sizes: Sequence[str],
    machine: Machine,
    dataset: Dataset,
    group: Group,
    *,
    told: Told | None = None,
    stop: StopRequest | None = None,
) -> dict[str, Any]:
    """`simulate` over data that are open, for the tables of `group`, in whose features' order batches come."""
    _check(cases, sizes)
    config = cases[0][1]
    first = first_batches(config, dataset)
    held = config.tier.held_rows or held_rows(first, config.depth)
    tier = config.tier.model_copy(update={"held_rows": held})
    setup = Setup(group, row_optimizer(config.optimizer), tier, config.depth)
    streams = _streams(setup, cases, sizes)
    sample = prepare([run.policy for stream in streams for _, _, run in stream.runs], config, dataset)
    with nullcontext(StopRequest()) if stop is None else stop_request(stop) as stopped:
        for stream in streams:
            if stopped and streams[0].batches:
                break
            with ExitStack() as listening:
                for _, _, run in stream.runs:
                    run.calibrate(sample)
                    if run.error is None:
                        listening.enter_context(run.policy_caller.listening())
                stream.read(dataset, config, told or (lambda batches, total: None), stopped)
    # A later stream that was cut short would stand beside numbers of other batches
    kept = [streams[0], *(stream for stream in streams[1:] if stream.is_done)]
    _refuse_failure(kept)
    return simulation_result(setup, kept, machine, missing=[stream for stream in streams[1:] if not stream.is_done])


def _check(cases: Sequence[Case], sizes: Sequence[str]) -> None:
    if not cases or not sizes:
        raise ConfigError("simulate: needed at least one policy and one device size")
    for size in sizes:
        try:
            TierConfig.model_validate({"device_rows": size})
        except ValidationError as error:
            raise ConfigError(f"device rows: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _streams(setup: Setup, cases: Sequence[Case], sizes: Sequence[str]) -> list[SharedTrace]:
    runs = [(label, size, _run(setup, config, size)) for label, config in cases for size in _sizes_for(config, sizes)]
    shared = [entry for entry in runs if not entry[2].arranges]
    own = [SharedTrace([entry], setup) for entry in runs if entry[2].arranges]
    return [SharedTrace(shared, setup), *own] if shared else own


def _run(setup: Setup, config: TrainConfig, size: str) -> SimulatedRun:
    policy = make_policy(config.policy, config.policy_options)
    skip = with_rule(policy, config.skip)
    return SimulatedRun(setup, policy, size, skip)


def _sizes_for(config: TrainConfig, sizes: Sequence[str]) -> Sequence[str]:
    fixed = make_policy(config.policy, config.policy_options).device_rows
    return sizes if fixed is None else [fixed]


def _refuse_failure(streams: Sequence[SharedTrace]) -> None:
    entries = [entry for stream in streams for entry in stream.runs]
    if any(run.error is None for _, _, run in entries):
        return
    label, size, largest = max(entries, key=lambda entry: entry[2].num_slots)
    assert largest.error is not None
    text = str(largest.error).rstrip(".") if isinstance(largest.error, DeviceMemoryError) else str(largest.error)
    least = least_device_rows(streams)
    enough = "" if least is None else f"; {least:,} device rows are enough for all batches"
    if len(entries) == 1:
        raise type(largest.error)(f"{text}{enough}") from largest.error
    raise type(largest.error)(
        f"none of the {len(entries)} runs came to its end; the one with the most device rows, {label} with {size}: "
        f"{text}{enough}"
    ) from largest.error
