"""What every skip rule must satisfy, as a list of checks: `adaptive-train policies check` and the tests run them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.contract.asked import BrokenError
from adaptive.contract.checks import train_tables
from adaptive.contract.made_up import made_up_stats
from adaptive.planning.policy_calls import PolicyCaller
from adaptive.policy import Policy, RowStats, SkipRule

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
    skip = SkipConfig(interval=2, min_visits=1, hot_rows="50%", min_accesses=1, lag=4)
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


def rule_checks(timeout_s: float) -> Mapping[str, Callable[[Make], None]]:
    """The checks by name; each makes rules of its own."""
    return {
        "visits gives one whole number per row, inputs untouched": _valid,
        "same questions, same answers": _deterministic,
        "trained tables do not depend on where rows lie": partial(_trains, timeout_s=timeout_s),
    }
