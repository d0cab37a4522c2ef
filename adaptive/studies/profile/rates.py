"""`measured_rates`: what profiling a step found out about this machine, as `simulate` and `placements` take it.

Rates come from the halves without look-ahead, in which stages do not disturb each other; what look-ahead hides from
both halves. With letters as in `adaptive.studies.simulate.machine`: bytes that embeddings touch are N*R + 2*E +
2*U*(R+s).
"""

import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import torch

from adaptive.config import TrainConfig, parse_size
from adaptive.errors import ConfigError
from adaptive.plugins import make_policy
from adaptive.studies.machines.spec import HERE, MachineSpec, Measured
from adaptive.system import usable_cores

Found = Mapping[str, Any]


def measured_machine(
    policies: Sequence[Found], *, value_bytes: int, row_bytes: int, features: int, plan_factor: float
) -> MachineSpec:
    """The machine file.

    Args:
        policies: what `profile_step` found, at least one policy that leaves misses on the host and has nothing on the
            device (`hybrid`), and one that fetches them.
        value_bytes, row_bytes: of a row's values, and with its optimizer state.
        features: of a sample, each of which gives one vector.
        plan_factor: planning in training over planning in a simulation.

    Raises:
        ConfigError: if one of the two kinds is missing.
    """
    served = [one for one in policies if one["misses"] == "host" and not one["device_rows"]]
    staged = [one for one in policies if one["misses"] == "prefetch"]
    _need_both(served=bool(served), staged=bool(staged))
    first = policies[0]
    moving = [one for one in staged if one["beside_ms"]["move"] > 0 and _moved(one)]
    host = statistics.median(_rate(one, value_bytes, row_bytes, features) for one in served)
    device = statistics.median(_rate(one, value_bytes, row_bytes, features) for one in staged)
    move = (
        statistics.median(1e3 * _moved(one) * row_bytes / one["beside_ms"]["move"] for one in moving)
        if moving
        else host
    )
    return MachineSpec(
        name=HERE,
        source="measured by adaptive-train profile",
        measured=Measured(
            device=device,
            host=host,
            move=move,
            dense_ms=statistics.median(map(_dense_ms, policies)),
            flops_per_sample=first["flops_per_sample"],
            batch_size=first["batch_size"],
            overlap_staged=statistics.median(map(hidden_share, moving or staged)),
            overlap_host=statistics.median(map(hidden_share, served)),
            plan_factor=plan_factor,
            vectors_cross=first["device"] != "cpu",
            depth=first["depth"],
            when=date.today().isoformat(),
            on=f"{first['device']}, {usable_cores()} cores, torch {torch.__version__}, {platform.processor() or 'CPU'}",
        ),
    )


def check_measurable(cases: Sequence[tuple[str, TrainConfig]]) -> None:
    """Whether trainings of these policies, as written and with their settings, would give the rates of a machine: told
    before they begin.

    Raises:
        ConfigError: if one of the two kinds that `measured_machine` needs is missing.
    """
    policies = [(make_policy(config.policy, config.policy_options), config.tier.device_rows) for _, config in cases]
    _need_both(
        served=any(one.misses == "host" and _is_nothing(one.device_rows or rows) for one, rows in policies),
        staged=any(one.misses == "prefetch" for one, _ in policies),
    )


def _is_nothing(size: str) -> bool:
    return size != "auto" and parse_size(size, row_bytes=1, num_rows=1) == 0


def _need_both(*, served: bool, staged: bool) -> None:
    if not (served and staged):
        raise ConfigError(
            "--save needs rates of both tiers: give --policies at least hybrid and one that fetches rows, such as lfu"
        )


def hidden_share(one: Found) -> float:
    """How much of the shorter of training and look-ahead is hidden behind the longer, at most 1; below 0 where they
    disturb each other more than they overlap, as on few cores."""
    train = sum(one["training_ms"].values()) + one["other_ms"]
    beside = sum(one["beside_ms"].values())
    shorter = min(train, beside)
    return min(max((one["serial_ms"] - one["step_ms"]) / shorter, -1.0), 1.0) if shorter else 0.0


def _dense_ms(one: Found) -> float:
    stages = one["training_ms"]
    return float(stages["mlp_forward"] + stages["mlp_backward"] + stages["dense_update"] + one["other_ms"])


def _moved(one: Found) -> float:
    return float(one["counts"]["fetched"] + one["counts"]["written_back"])


def _rate(one: Found, value_bytes: int, row_bytes: int, features: int) -> float:
    """Bytes a second of pooling and updating rows."""
    counts, stages = one["counts"], one["training_ms"]
    vectors = features * one["batch_size"]
    touched = (counts["lookups"] + 2 * vectors) * value_bytes + 2 * counts["unique_rows"] * row_bytes
    return float(1e3 * touched / (stages["embedding"] + stages["row_update"]))
