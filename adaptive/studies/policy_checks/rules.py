"""What every skip rule must satisfy, as a list of checks: `adaptive-train policies check` and the tests run them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.policy import Policy, RowStats, SkipRule
from adaptive.studies.policy_checks.checks import train_tables
from adaptive.studies.policy_checks.fixtures import MadeUpView, made_up_batches, made_up_stats, samples_of
from adaptive.studies.policy_checks.policy_under_test import BrokenError

SIZES: Final = (0, 1, 1000)
OPTIMIZERS: Final = ("sgd", "adagrad", "rowwiseadagrad", "adam")

Make = Callable[[], SkipRule]


class _Anywhere(Policy):
    """Rows lie wherever there is room: the placement beside which a rule is checked."""

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access


def _answers(make: Make, optimizer: str = "adagrad") -> list[NDArray[np.int64]]:
    """What a new rule says of made-up rows, checked as in training."""
    policy = _Anywhere()
    policy.rule = make()
    caller = PolicyCaller(policy)
    caller.begin(optimizer)
    return [caller.visits(made_up_stats(size, step)) for size in SIZES for step in (200, 264, 700)]


def _valid(make: Make) -> None:
    for optimizer in OPTIMIZERS:
        _answers(make, optimizer)


def _deterministic(make: Make) -> None:
    for first, second in zip(_answers(make), _answers(make), strict=True):
        if not np.array_equal(first, second):
            raise BrokenError("two rules with the same settings answered the same questions differently")


def _trains(make: Make, timeout_s: float) -> None:
    skip = SkipConfig(interval=2, min_visits=1, hot_rows="50%", min_accesses=1, feedback_delay=4)
    expected: dict[str, NDArray[np.float32]] = {}
    for depth, device_rows in [(0, "100%"), (1, "30%"), (3, "60%")]:
        policy = _Anywhere()
        policy.rule = make()
        _, tables = train_tables(policy, device_rows, depth=depth, skip=skip, timeout=timeout_s)
        for name, table in tables.items():
            if not np.isfinite(table).all():
                raise BrokenError(f"depth {depth}, device rows {device_rows}: table {name} is not finite")
            if not np.array_equal(expected.setdefault(name, table), table):
                raise BrokenError(
                    f"depth {depth}, device rows {device_rows}: table {name} differs from a single tier's"
                )


def _keeps_inputs(make: Make) -> None:
    rule, given = make(), list(made_up_batches(12))
    rule.visits(made_up_stats(1000, 700))
    left = list(rule.arrange(iter(given), MadeUpView()))
    known = {number: sample for batch in given for number, sample in samples_of(batch)}
    seen: set[int] = set()
    for batch in left:
        for number, sample in samples_of(batch):
            if number in seen or known.get(number) != sample:
                raise BrokenError(f"arrange gave sample {number} twice, or changed it")
            seen.add(number)
    if not rule.drops_inputs and len(seen) < len(known):
        raise BrokenError(f"arrange lost {len(known) - len(seen)} samples and drops_inputs is not set")
    if rule.drops_inputs and (rule.seen_inputs, rule.dropped_inputs) != (len(known), len(known) - len(seen)):
        found = f"seen_inputs={rule.seen_inputs}, dropped_inputs={rule.dropped_inputs}"
        raise BrokenError(f"of {len(known)} samples {len(seen)} were left, but the rule counts {found}")


def _restores(make: Make) -> None:
    rule, restored = make(), make()
    for step in (200, 264):
        rule.visits(made_up_stats(1000, step))
    state = rule.state_dict()
    for name, array in state.items():
        if not isinstance(array, np.ndarray) or array.dtype == object:
            raise BrokenError(f"state_dict()[{name!r}] must be an array of numbers, found {type(array).__name__}")
    restored.load_state_dict({name: array.copy() for name, array in state.items()})
    if not all(np.array_equal(array, restored.state_dict()[name], equal_nan=True) for name, array in state.items()):
        raise BrokenError("a rule restored from state_dict() has another state")


def rule_checks(timeout_s: float) -> Mapping[str, Callable[[Make], None]]:
    """The checks by name; each makes rules of its own."""
    return {
        "visits gives one whole number per row, inputs untouched": _valid,
        "same questions, same answers": _deterministic,
        "inputs are left as they are, and those left out counted": _keeps_inputs,
        "state_dict restores": _restores,
        "trained tables do not depend on where rows lie": partial(_trains, timeout_s=timeout_s),
    }
