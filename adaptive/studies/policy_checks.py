"""Checks that every policy and every skip rule must pass, for `adaptive-train policies check` and tests.

Each is a function of `make`, which creates the policy under test; a skip rule is checked in a policy that carries it.
They call the policy as the planner does, whose `PolicyCaller` checks the answers, with made-up rows and batches. Then a
tiny model is trained under it, and its tables must equal, bit for bit, those of a single tier.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from inspect import Parameter, isfunction
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.planning.policy_calls import CHECK, PolicyCaller
from adaptive.errors import AdaptiveError, PolicyError
from adaptive.plugins import (
    Options,
    is_rule,
    load_policy_class,
    make_policy,
    make_rule,
    parse_policy,
    parse_rule,
    policy_parameters,
)
from adaptive.policy import NEVER, Calibrates, Follows, InputPolicy, InputRule, Policy, RowStats, SkipRule
from adaptive.studies.policy_fixtures import (
    BATCH_SIZE,
    TABLE_ROWS,
    MadeUpView,
    follow,
    made_up_batches,
    made_up_stats,
    samples_of,
)

_SIZES: Final = (0, 1, 2, 1000)  # candidates in one call
_MAX_READ: Final = 1000  # batches that `arrange` may read before it yields its first
_PLACEMENTS: Final = ((0, "15%"), (1, "30%"), (3, "60%"), (4, "100%"))  # depth and device rows
_SKIP: Final = SkipConfig(interval=2, hot_rows="50%", min_accesses=1, feedback_delay=4)

Make = Callable[[], Policy]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise PolicyError(message)


def _owners(policy: Policy) -> list[Policy | SkipRule]:
    """Return the policy and the skip rule that it carries."""
    return [policy] if policy.rule is None else [policy, policy.rule]


def _calibrated(make: Make) -> PolicyCaller:
    caller = PolicyCaller(make())
    caller.calibrate(list(made_up_batches(6)), MadeUpView())
    return caller


def _parameters(make: Make) -> None:
    policy = make()
    subject = policy.rule if isinstance(policy, Anywhere) and policy.rule else policy
    for name, parameter in policy_parameters(type(subject)).items():
        _require(parameter.default is not Parameter.empty, f"parameter {name} has no default")
        _require(parameter.annotation is not Parameter.empty, f"parameter {name} has no annotation")


def _declares(make: Make) -> None:
    cls = type(make())
    for kind in (Follows, Calibrates, InputPolicy):
        methods = [name for name, member in vars(kind).items() if isfunction(member) and hasattr(cls, name)]
        if methods and not issubclass(cls, kind):
            raise PolicyError(f"{methods[0]} is never called: derive from adaptive.{kind.__name__} to implement it")


def _answers_are_valid(make: Make) -> None:
    PolicyCaller(make()).calibrate([], MadeUpView())  # a sample may be empty
    for optimizer in ("sgd", "adagrad", "rowwiseadagrad", "adam"):
        caller = _calibrated(make)
        caller.begin(optimizer)
        for size in _SIZES:
            caller.score(made_up_stats(size))
            if caller.skips:
                caller.visits(made_up_stats(size))


def _ordered(make: Make) -> None:
    caller = _calibrated(make)
    columns = caller.order or ()
    for size in _SIZES if columns else ():
        stats = made_up_stats(size)
        by_score = np.argsort(caller.score(stats), kind="stable")
        by_order = np.lexsort([getattr(stats, name) for name in reversed(columns)])
        _require(
            np.array_equal(by_score, by_order),
            f"score does not order {size} rows by {' and '.join(columns)}, as order says",
        )


def _has_window(make: Make) -> None:
    caller, stats = _calibrated(make), made_up_stats(100)
    unknown = replace(stats, next_access=np.full(100, NEVER))
    _require(
        caller.policy.window > 0 or np.array_equal(caller.score(stats), _calibrated(make).score(unknown)),
        "score reads next_access, which is NEVER for every row because no batch is read ahead for it. Set window = 16, "
        "or to as many batches as the policy needs",
    )


def _deterministic(make: Make) -> None:
    same = _answers(_calibrated(make)) == _answers(_calibrated(make))
    _require(same, "two policies with the same inputs returned different answers")


def _answers(caller: PolicyCaller) -> list[bytes]:
    """Return batches, scores and visits of a short run, in a comparable form."""
    view = MadeUpView()
    arranged = caller.arrange(made_up_batches(12), view, view.rows)
    answers = [batch.ids.tobytes() for batch in islice(arranged, 12 * BATCH_SIZE)]  # which may never end
    view = MadeUpView.empty()
    for step in (0, 200, 264, 10_000):
        if isinstance(caller.policy, Follows):
            follow(caller, step, np.arange(step % 7, 900, 7), view)
        answers.append(caller.score(made_up_stats(200, step)).tobytes())
        if caller.skips:
            answers.append(caller.visits(made_up_stats(200, step)).tobytes())
    return answers


def _restores(make: Make) -> None:
    caller, restored = _calibrated(make), PolicyCaller(make())
    _answers(caller)
    for owner, other in zip(_owners(caller.policy), _owners(restored.policy), strict=True):
        _restore(other, owner.state_dict())
        if isinstance(owner, InputRule):
            for name in ("rest", "seen_inputs", "dropped_inputs", "weight_sums"):  # which the runtime restores
                setattr(other, name, getattr(owner, name))
    _require(_answers(caller) == _answers(restored), "restored from its state_dict(), it returns other answers")
    for owner, other in zip(_owners(caller.policy), _owners(restored.policy), strict=True):
        same = _same(owner.state_dict(), other.state_dict())
        _require(same, "restored from its state_dict(), it has another state a few batches later")


def _restore(owner: Policy | SkipRule, state: Mapping[str, Any]) -> None:
    """Load a state, whose arrays must be numbers or text, and check that it is there."""
    for name, value in state.items():
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        plain = isinstance(value, np.ndarray) and value.dtype.kind in "biufSU"
        _require(plain, f"state_dict()[{name!r}]: expected an array of numbers or text, got {kind}")
    owner.load_state_dict({name: value.copy() for name, value in state.items()})
    _require(_same(state, owner.state_dict()), "restored from its state_dict(), it has another state")


def _same(state: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if the arrays of two states are equal; NaN equals NaN."""
    return state.keys() == other.keys() and all(
        np.array_equal(value, other[name], equal_nan=value.dtype.kind == "f") for name, value in state.items()
    )


def _arranges(make: Make) -> None:
    """Its batches have every sample, once and unchanged; `PolicyCaller` counts them."""
    caller, view, batches = _calibrated(make), MadeUpView(), list(made_up_batches(12))
    caller.policy.rule = None  # which may drop samples
    samples = {number: sample for batch in batches for number, sample in samples_of(batch)}
    returned: set[int] = set()
    for position, batch in enumerate(caller.arrange(iter(batches), view, view.rows)):  # which may never end
        _require(batch.num_samples > 0, f"arrange: expected samples in the batch at position {position}, got none")
        for number, sample in samples_of(batch):
            _require(number not in returned, f"arrange yielded sample {number} twice")
            _require(samples.get(number) == sample, f"arrange changed sample {number}")
            returned.add(number)


def _arranges_lazily(make: Make) -> None:
    caller, view = _calibrated(make), MadeUpView()
    _require(
        next(caller.arrange(_endless(), view, view.rows), None) is not None,
        "arrange: expected batches of an endless stream, got none",
    )


def _endless() -> Iterator[Batch]:
    for read, batch in enumerate(made_up_batches(None)):
        _require(read < _MAX_READ, f"arrange read {read} batches before it yielded one; the data may be endless")
        yield batch


def _trains(make: Make) -> None:
    for depth, device_rows in _PLACEMENTS:
        policy = make()
        trained, tables = train_tables(policy, device_rows, depth=depth)
        alone = OneTier(make().rule)
        if isinstance(policy, InputPolicy) and isinstance(alone.rule, InputRule):
            alone.rule = None  # the trained batches lack the samples that it dropped
        _, expected = train_tables(alone, "100%", batches=trained if isinstance(policy, InputPolicy) else None)
        for name, table in tables.items():
            differing = np.flatnonzero((table != expected[name]).any(axis=1))
            _require(
                not len(differing),
                f"depth {depth}, device rows {device_rows}: {len(differing)} rows of table {name} differ from "
                f"those of a single tier, first {differing[:1]}",
            )


class OneTier(Policy):
    """All rows on the device: the reference for all other policies."""

    device_rows = "100%"

    def __init__(self, rule: SkipRule | None) -> None:
        self.rule = rule

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))


class Anywhere(Policy):
    """Carries a skip rule under test; rows are wherever there is room."""

    def __init__(self, rule: SkipRule) -> None:
        self.rule = rule

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access


def train_tables(
    policy: Policy, device_rows: str, *, depth: int = 0, batches: Sequence[Batch] | None = None
) -> tuple[list[Batch], dict[str, NDArray[np.float32]]]:
    """Train, and return the batches in training order and the trained tables."""
    from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag  # loads torch

    tables = [
        TableConfig(name=f"t{table}", num_embeddings=rows, embedding_dim=4) for table, rows in enumerate(TABLE_ROWS)
    ]
    tier = TierConfig(
        device_rows=policy.device_rows or device_rows,
        device="cpu",
        when_full="reduce_lookahead",
        poison=True,
    )
    inputs, trained = batches or list(made_up_batches(24)), list[Batch]()
    at_most = sum(batch.num_samples for batch in inputs)  # batches, as no sample may come twice
    with TieredEmbeddingBag(tables, tier, policy=policy, skip=_SKIP) as embeddings:
        embeddings.calibrate(list(made_up_batches(6)))
        with closing(embeddings.look_ahead(iter(inputs), depth=depth)) as planned_batches:
            for planned in planned_batches:
                _require(len(trained) < at_most, f"arrange yielded more batches than the {at_most} samples it got")
                embeddings.stack(planned).square().sum().backward()  # type: ignore[no-untyped-call]
                embeddings.step()
                trained.append(planned.batch)
        return trained, {name: embeddings.rows.table_weights(name) for name in embeddings.table_names}


CHECKS: Final[Mapping[str, Callable[[Make], None]]] = {
    "parameters have annotations and defaults": _parameters,
    "methods belong to a class that it derives from": _declares,
    "answers are valid, inputs unchanged": _answers_are_valid,
    "order agrees with score": _ordered,
    "window is set if next_access is read": _has_window,
    "same inputs, same answers": _deterministic,
    "arrange keeps every sample": _arranges,
    "arrange is lazy": _arranges_lazily,
    "state_dict restores it": _restores,
    "trained tables equal those of a single tier": _trains,
}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `reason` is empty if it passed."""

    check: str
    passed: bool
    reason: str = ""


def check_policy(policy: str | type[Policy] | type[SkipRule], options: Options | None = None) -> list[CheckResult]:
    """Run every check on a policy or skip rule, given as a class, name, `module:Class` or `file.py:Class`.

    One that cannot be loaded or created with `options` fails the one check `loads`. Otherwise every check runs.
    """
    try:
        make = _maker(policy, options or {})
        make()
    except Exception as error:  # a policy under test may raise anything
        return [CheckResult("loads", False, _reason(error))]
    return [CheckResult("loads", True), *(_run(name, check, make) for name, check in CHECKS.items())]


def _maker(subject: str | type[Policy] | type[SkipRule], options: Options) -> Make:
    """Load a class, once, and return a function that creates policies of it, or with a rule of it."""
    rule = None
    if isinstance(subject, str) and is_rule(subject):
        subject, parameters = parse_rule(subject)
        options = {**parameters, **options}
    elif isinstance(subject, str):
        name, parameters, rule = parse_policy(subject)
        subject, options = load_policy_class(name), {**parameters, **options}
    cls = subject

    def make() -> Policy:
        if issubclass(cls, SkipRule):
            return Anywhere(make_rule(cls, options))
        policy = make_policy(cls, options)
        if rule is not None:
            policy.rule = make_rule(rule)
        return policy

    return make


def _run(name: str, check: Callable[[Make], None], make: Make) -> CheckResult:
    try:
        check(make)
    except Exception as error:  # as above
        return CheckResult(name, False, _reason(error))
    return CheckResult(name, True)


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, AdaptiveError) else f"{type(error).__name__}: {error}"
    return re.sub(r" at batch \d+", "", text.removesuffix(f" {CHECK}"))  # one cause, one text
