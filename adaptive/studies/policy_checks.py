"""Checks that every policy must pass, for `adaptive-train policies check` and tests.

Each is a function that raises an error if its `Subject` (for policies) or factory (for rules) fails the check. They
call the policy's methods with made-up rows and batches, then train a tiny model under it and compare the tables, bit
for bit, with the same training on a single tier.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, isfunction
from itertools import islice
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.planning.policy_calls import CHECK, PolicyCaller
from adaptive.errors import AdaptiveError, PolicyError
from adaptive.plugins import Options, load_policy_class, make_rule, policy_parameters
from adaptive.policy import Calibrates, Follows, InputPolicy, InputRule, Policy, RowStats, SkipRule
from adaptive.studies.policy_fixtures import (
    BATCH_SIZE,
    TABLE_ROWS,
    BrokenError,
    DoubtError,
    MadeUpView,
    NotedStats,
    Subject,
    a_sample,
    follow,
    made_up_batches,
    made_up_stats,
    samples_of,
)

_SIZES: Final = (0, 1, 2, 1000)  # candidates in one call
_MAX_READ: Final = 1000  # batches that `arrange` may read before it yields its first


def _calibrated(subject: Subject, times: int = 1) -> Policy:
    policy = subject.make()
    if isinstance(policy, Calibrates):
        for _ in range(times):
            policy.calibrate(a_sample(), MadeUpView())
    return policy


def _parameters(subject: Subject) -> None:
    for name, parameter in policy_parameters(subject.cls).items():
        _require(parameter.default is not Parameter.empty, f"parameter {name} has no default")
        _require(parameter.annotation is not Parameter.empty, f"parameter {name} has no annotation")
        _require(
            _rejected(subject, {name: object()}),
            f"parameter {name} accepts values of any type; check the type in __init__",
        )
    _require(_rejected(subject, {"no_such_parameter": 1}), "accepts parameters that it does not have")


def _rejected(subject: Subject, options: Options) -> bool:
    try:
        subject.make(options)
    except PolicyError:
        return True
    return False


def _declares(subject: Subject) -> None:
    for kind in (Follows, Calibrates, InputPolicy):
        methods = [name for name, member in vars(kind).items() if isfunction(member) and hasattr(subject.cls, name)]
        if methods and not issubclass(subject.cls, kind):
            raise BrokenError(f"{methods[0]} is never called: derive from adaptive.{kind.__name__} to implement it")


def _score(subject: Subject) -> None:
    caller = PolicyCaller(_calibrated(subject))
    for size in _SIZES:
        caller.score(made_up_stats(size))


def _ordered(subject: Subject) -> None:
    caller = PolicyCaller(_calibrated(subject))
    columns = caller.order or ()
    for size in _SIZES if columns else ():
        stats = made_up_stats(size)
        by_score = np.argsort(caller.score(stats), kind="stable")
        by_order = np.lexsort([getattr(stats, name) for name in reversed(columns)])
        _require(
            np.array_equal(by_score, by_order),
            f"score does not order {size} rows by {' and '.join(columns)}, as order says",
        )


def _has_window(subject: Subject) -> None:
    policy, rows = _calibrated(subject), NotedStats(made_up_stats(100))
    PolicyCaller(policy).score(rows)
    if "next_access" in rows.read and not policy.window:
        raise DoubtError(
            "score reads next_access, which is NEVER for every row because no batch is read ahead for it. Set window = "
            "16, or to as many batches as the policy needs"
        )


def _deterministic(subject: Subject) -> None:
    first, second = _calibrated(subject), _calibrated(subject)
    _require(_answers(first) == _answers(second), "two policies with the same inputs returned different scores")


def _calibrates(subject: Subject) -> None:
    policy = subject.make()
    if not isinstance(policy, Calibrates):
        return
    policy.calibrate([], MadeUpView())
    once, twice = _calibrated(subject, 1), _calibrated(subject, 2)
    _require(_answers(once) == _answers(twice), "calibrated twice with the same sample, it returns other scores")


def _restores(subject: Subject) -> None:
    policy, restored = _calibrated(subject), subject.make()
    _arranged(policy)
    _answers(policy)
    _restore(restored, policy.state_dict())
    _require(_answers(policy) == _answers(restored), "restored from its state_dict(), it returns other scores")
    _require(_arranged(policy) == _arranged(restored), "restored from its state_dict(), it arranges other batches")
    same = _same(policy.state_dict(), restored.state_dict())
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
        np.array_equal(value, other[name], equal_nan=np.asarray(value).dtype.kind == "f")
        for name, value in state.items()
    )


def _arranged(policy: Policy) -> list[bytes]:
    """Return the ids of the batches that it makes of a few, in a comparable form."""
    batches = made_up_batches(12)
    if isinstance(policy, InputPolicy):
        batches = policy.arrange(batches, MadeUpView())
    return [np.asarray(batch.ids).tobytes() for batch in islice(batches, 12 * BATCH_SIZE)]  # which may never end


def _answers(policy: Policy) -> list[bytes]:
    """Return its scores during a few batches, in a comparable form."""
    answers, caller, view = [], PolicyCaller(policy), MadeUpView.empty()
    for step in (0, 700, 10_000):
        if isinstance(policy, Follows):
            follow(caller, step, np.arange(step % 7, 900, 7), view)
        answers.append(caller.score(made_up_stats(200, step=step)).tobytes())
    return answers


def _follows(subject: Subject) -> None:
    caller, view = PolicyCaller(_calibrated(subject)), MadeUpView.empty()
    if not isinstance(caller.policy, Follows):
        return
    for number, size in enumerate((1, 2, 0, 1000)):  # a batch may have no lookups
        follow(caller, number, np.sort(made_up_stats(size).rows), view)
        caller.score(made_up_stats(1000, step=number))


def _arranges(subject: Subject) -> None:
    policy, batches, view = _calibrated(subject), list(made_up_batches(12)), MadeUpView()
    policy.rule = None  # which may leave samples out
    if isinstance(policy, InputPolicy):
        _samples(batches, PolicyCaller(policy).arrange(iter(batches), view, view.rows))


def _samples(batches: Sequence[Batch], arranged: Iterable[Batch]) -> tuple[int, int]:
    """Return the number of samples in `batches` and `arranged`, which must be unchanged."""
    samples = {number: sample for batch in batches for number, sample in samples_of(batch)}
    returned: set[int] = set()
    for position, batch in enumerate(arranged):  # which may never end
        _require(batch.num_samples > 0, f"arrange: expected samples in the batch at position {position}, got none")
        for number, sample in samples_of(batch):
            _require(number not in returned, f"arrange yielded sample {number} twice")
            _require(samples.get(number) == sample, f"arrange changed sample {number}")
            returned.add(number)
    return len(samples), len(returned)


def _arranges_lazily(subject: Subject) -> None:
    policy = _calibrated(subject)
    if isinstance(policy, InputPolicy) and next(iter(policy.arrange(_limited(), MadeUpView())), None) is None:
        raise BrokenError("arrange: expected batches of an endless stream, got none")


def _limited() -> Iterator[Batch]:
    for read, batch in enumerate(made_up_batches(None)):
        if read == _MAX_READ:
            raise BrokenError(f"arrange read {read} batches before it yielded one; the data may be endless")
        yield batch


def _trains(subject: Subject) -> None:
    for depth, device_rows in [(0, "15%"), (1, "30%"), (3, "60%"), (5, "100%")]:
        trained, tables = train_tables(subject.make(), device_rows, depth=depth)
        _, expected = train_tables(OneTier(), "100%", depth=0, batches=trained)
        for name, table in tables.items():
            differing = np.flatnonzero((table != expected[name]).any(axis=1))
            _require(
                not len(differing),
                f"depth {depth}, device rows {device_rows}: {len(differing)} rows of table {name} differ from "
                f"those of a single tier, first {differing[:1]}",
            )


def _rule(subject: Subject) -> None:
    if subject.make().rule is not None:
        for check in RULE_CHECKS.values():
            check(lambda: cast(SkipRule, subject.make().rule))


class OneTier(Policy):
    """All rows on the device: the reference for all other policies."""

    device_rows = "100%"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))


def train_tables(
    policy: Policy,
    device_rows: str,
    *,
    depth: int,
    batches: Sequence[Batch] | None = None,
    skip: SkipConfig | None = None,
) -> tuple[list[Batch], dict[str, NDArray[np.float32]]]:
    """Train, and return the batches in training order and the trained tables."""
    from adaptive.embeddings.tiered_embedding_bag import (
        TieredEmbeddingBag,
    )  # imported here, as it loads torch's compiler

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
    with TieredEmbeddingBag(tables, tier, policy=policy, skip=skip) as embeddings:
        embeddings.calibrate(a_sample())
        with closing(embeddings.look_ahead(iter(inputs), depth=depth)) as planned_batches:
            for planned in planned_batches:
                _require(len(trained) < at_most, f"arrange yielded more batches than the {at_most} samples it got")
                embeddings.stack(planned).square().sum().backward()  # type: ignore[no-untyped-call]
                embeddings.step()
                trained.append(planned.batch)
        return trained, {name: embeddings.rows.table_weights(name) for name in embeddings.table_names}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BrokenError(message)


CHECKS: Final[Mapping[str, Callable[[Subject], None]]] = {
    "parameters are named, annotated, with defaults and checked": _parameters,
    "methods belong to a class that it derives from": _declares,
    "score returns one number per row, inputs unchanged": _score,
    "order agrees with score": _ordered,
    "window is set if next_access is read": _has_window,
    "same inputs, same scores": _deterministic,
    "calibrating again changes nothing": _calibrates,
    "looked_up, evicted, admitted and expired return nothing, rows unchanged": _follows,
    "arrange keeps every sample": _arranges,
    "arrange is lazy": _arranges_lazily,
    "state_dict restores it": _restores,
    "trained tables equal those of a single tier": _trains,
    "its skip rule passes the checks of rules": _rule,
}


# --- skip rules ------------------------------------------------------------------------------------------------------

OPTIMIZERS: Final = ("sgd", "adagrad", "rowwiseadagrad", "adam")

Make = Callable[[], SkipRule]


class _Anywhere(Policy):
    """The placement under which rules are checked: rows are wherever there is room."""

    def __init__(self, rule: SkipRule) -> None:
        self.rule = rule

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.last_access


def _rule_answers(make: Make, optimizer: str = "adagrad") -> list[NDArray[np.int64]]:
    """Return the visits of a new rule for made-up rows; none if it skips nothing."""
    caller = PolicyCaller(_Anywhere(make()))
    caller.begin(optimizer)
    sizes = _SIZES if caller.skips else ()
    return [caller.visits(made_up_stats(size, step)) for size in sizes for step in (200, 264, 700)]


def _visits(make: Make) -> None:
    for optimizer in OPTIMIZERS:
        _rule_answers(make, optimizer=optimizer)


def _rule_is_deterministic(make: Make) -> None:
    answers = zip(_rule_answers(make), _rule_answers(make), strict=True)
    same = all(np.array_equal(first, second) for first, second in answers)
    _require(same, "two rules with the same settings and inputs returned different visits")


def _keeps_inputs(make: Make) -> None:
    """Its batches have samples that were read, unchanged, in order, and no other ones."""
    rule, batches = make(), list(made_up_batches(12))
    if not isinstance(rule, InputRule):
        return
    kept = PolicyCaller(_Anywhere(rule)).arrange(iter(batches), MadeUpView(), MadeUpView().rows)
    num_samples, returned = _samples(batches, kept)
    if (rule.seen_inputs, rule.dropped_inputs) != (num_samples, num_samples - returned):
        raise BrokenError(f"seen_inputs={rule.seen_inputs}, dropped_inputs={rule.dropped_inputs}: set by the runtime")


def _called(rule: SkipRule, steps: Sequence[int]) -> SkipRule:
    """Return the rule after some calls of its methods, those that a run would make."""
    caller, view = PolicyCaller(_Anywhere(rule)), MadeUpView()
    for step in steps if caller.skips else ():
        caller.visits(made_up_stats(1000, step))
    for _ in caller.arrange(made_up_batches(6), view, view.rows):
        pass
    return rule


def _rule_restores(make: Make) -> None:
    _restore(make(), _called(make(), (200, 264)).state_dict())


def _rule_trains(make: Make) -> None:
    skip = SkipConfig(interval=2, hot_rows="50%", min_accesses=1, feedback_delay=4)
    expected: dict[str, NDArray[np.float32]] = {}
    for depth, device_rows in [(0, "100%"), (1, "30%"), (3, "60%")]:
        where = f"depth {depth}, device rows {device_rows}"
        _, tables = train_tables(_Anywhere(make()), device_rows, depth=depth, skip=skip)
        for name, table in tables.items():
            _require(bool(np.isfinite(table).all()), f"{where}: table {name} is not finite")
            same = np.array_equal(expected.setdefault(name, table), table)
            _require(same, f"{where}: table {name} differs from a single tier's")


RULE_CHECKS: Final[Mapping[str, Callable[[Make], None]]] = {
    "visits returns one whole number per row, inputs unchanged": _visits,
    "same inputs, same visits": _rule_is_deterministic,
    "keep returns one weight per sample, inputs unchanged": _keeps_inputs,
    "state_dict restores": _rule_restores,
    "trained tables do not depend on where rows are": _rule_trains,
}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `reason` is empty if it passed, unless there is a doubt."""

    check: str
    passed: bool
    reason: str = ""

    @property
    def is_doubtful(self) -> bool:
        """True if the policy passed, but probably does not do what its author means."""
        return self.passed and bool(self.reason)


def check_policy(policy: str | type[Policy], options: Options | None = None) -> list[CheckResult]:
    """Run every check on a policy, given as a class, name, `module:Class` or `file.py:Class`.

    A policy that cannot be loaded or created with `options` fails the one check `loads`. Otherwise every check runs.
    """
    try:
        cls = load_policy_class(policy) if isinstance(policy, str) else policy
    except Exception as error:  # a policy under test may raise anything
        return [CheckResult("loads", False, _reason(error))]
    subject = Subject(cls, dict(options or {}))
    loads = _run("loads", subject.make)
    return [loads, *(_run(name, partial(check, subject)) for name, check in CHECKS.items() if loads.passed)]


def check_rule(rule: str | type[SkipRule]) -> list[CheckResult]:
    """Run every check on a skip rule, given as for `check_policy`.

    Parameters are given as in `defer+at_most=8`. A rule that cannot be loaded fails the one check `loads`.
    """
    try:
        make_rule(rule)
    except Exception as error:  # a rule under test may raise anything
        return [CheckResult("loads", False, _reason(error))]
    checks = {name: partial(check, lambda: make_rule(rule)) for name, check in RULE_CHECKS.items()}
    return [CheckResult("loads", True), *(_run(name, check) for name, check in checks.items())]


def _run(name: str, check: Callable[[], object]) -> CheckResult:
    try:
        check()
    except DoubtError as doubt:
        return CheckResult(name, True, str(doubt))
    except Exception as error:
        return CheckResult(name, False, _reason(error))
    return CheckResult(name, True)


def _reason(error: Exception) -> str:
    explained = isinstance(error, BrokenError | AdaptiveError)
    text = str(error) if explained else f"{type(error).__name__}: {error}"
    return re.sub(r" at batch \d+", "", text.removesuffix(f" {CHECK}"))  # one cause, one text
