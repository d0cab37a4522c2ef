"""What every policy must satisfy, as a list of checks: `adaptive-train policies check` and the tests run them.

The checks call the policy's methods with made-up rows and batches, then train a tiny model under it and compare
the tables, bit for bit, with the same training on a single tier.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.errors import AdaptiveError, PolicyError
from adaptive.policy import NEVER, Policy, RowStats, load_policy_class, make_policy, policy_parameters

_TABLE_ROWS = (1000, 40, 7)  # one table per feature
_STARTS = np.array([0, 1000, 1040, 1047], np.int64)
_BATCH_SIZE = 16
_SIZES = (0, 1, 2, 1000)  # candidates in one question
_READ_AT_MOST = 1000  # batches that `arrange` may read before it yields its first


@dataclass(frozen=True)
class CheckResult:
    """One check: its name, whether the policy passed, and why not (empty when passed)."""

    check: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class _Subject:
    cls: type[Policy]
    options: Mapping[str, Any]

    def make(self) -> Policy:
        return make_policy(self.cls, self.options)

    def calibrated(self, times: int = 1) -> Policy:
        policy = self.make()
        for _ in range(times):
            policy.calibrate(_sample(), _View())
        return policy


class _BrokenError(Exception):
    """A check that found the contract broken; the message says how."""


def check_policy(policy: str | type[Policy], options: Mapping[str, Any] | None = None) -> list[CheckResult]:
    """Run every check on a policy, given as a class, name, `module:Class` or `file.py:Class`.

    A policy that cannot be loaded or made with `options` gives the one failed check `loads`; otherwise each check is
    run, whatever the ones before it found. A policy whose `arrange` leaves samples out has to say so with an attribute
    `drops_inputs = True`.
    """
    try:
        cls = load_policy_class(policy) if isinstance(policy, str) else policy
        subject = _Subject(cls, dict(options or {}))
        subject.make()
    except Exception as error:  # a policy under test may raise anything
        return [CheckResult("loads", False, _reason(error))]
    return [CheckResult("loads", True), *(_run(name, check, subject) for name, check in _CHECKS.items())]


def _run(name: str, check: Callable[[_Subject], None], subject: _Subject) -> CheckResult:
    try:
        check(subject)
    except Exception as error:  # a policy under test may raise anything
        return CheckResult(name, False, _reason(error))
    return CheckResult(name, True)


def _reason(error: Exception) -> str:
    explained = isinstance(error, _BrokenError | AdaptiveError)
    return str(error) if explained else f"{type(error).__name__}: {error}"


def _parameters(subject: _Subject) -> None:
    for name, parameter in policy_parameters(subject.cls).items():
        _require(parameter.default is not Parameter.empty, f"parameter {name} has no default")
        _require(parameter.annotation is not Parameter.empty, f"parameter {name} has no annotation")
        _require(_rejected(subject, {name: object()}), f"parameter {name} takes values of any type")
    _require(_rejected(subject, {"no_such_parameter": 1}), "takes parameters it does not have")


def _rejected(subject: _Subject, options: Mapping[str, Any]) -> bool:
    try:
        make_policy(subject.cls, options)
    except PolicyError:
        return True
    return False


def _score(subject: _Subject) -> None:
    policy = subject.calibrated()
    for size in _SIZES:
        _check_scores(policy.score(_stats(size)), size)


def _check_scores(scores: object, size: int) -> None:
    if not isinstance(scores, np.ndarray):
        raise _BrokenError(f"score must return an array, found {type(scores).__name__}")
    _require(scores.shape == (size,), f"score of {size} rows must have shape ({size},), found {scores.shape}")
    _require(scores.dtype.kind in "biuf", f"score must return real numbers, found {scores.dtype}")
    bad = np.flatnonzero(np.isnan(scores))
    _require(not len(bad), f"score is NaN for {len(bad)} of {size} rows, first at position {bad[:1]}")


def _saturated(subject: _Subject) -> None:
    policy = subject.calibrated()
    for size in _SIZES:
        found = policy.saturated(_stats(size, step=10_000))
        if not isinstance(found, np.ndarray) or found.dtype != np.bool_ or found.shape != (size,):
            described = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
            raise _BrokenError(f"saturated of {size} rows must be a bool array of shape ({size},), found {described}")


def _deterministic(subject: _Subject) -> None:
    first, second = subject.calibrated(), subject.calibrated()
    _require(_answers(first) == _answers(second), "two policies that saw the same answered differently")


def _calibrates(subject: _Subject) -> None:
    subject.make().calibrate([], _View())
    once, twice = subject.calibrated(1), subject.calibrated(2)
    _require(_answers(once) == _answers(twice), "calibrated twice with one sample, it answers differently")


def _restores(subject: _Subject) -> None:
    policy = subject.calibrated()
    _answers(policy)
    state = policy.state_dict()
    for name, value in state.items():
        _require(isinstance(value, np.ndarray), f"state {name} must be an array, found {type(value).__name__}")
        _require(value.dtype.kind in "biufSU", f"state {name} must hold numbers or text, found {value.dtype}")
    restored = subject.make()
    restored.load_state_dict({name: value.copy() for name, value in state.items()})
    _require(_answers(policy) == _answers(restored), "restored from its own state, it answers differently")


def _answers(policy: Policy) -> list[bytes]:
    """Scores and verdicts over a few batches, comparable."""
    questions = [_stats(200, step=step) for step in (0, 700, 10_000)]
    return [np.asarray(answer(rows)).tobytes() for rows in questions for answer in (policy.score, policy.saturated)]


def _arranges(subject: _Subject) -> None:
    given = list(_batches(12))
    policy = subject.calibrated()
    arranged = list(policy.arrange(iter(given), _View()))
    known = {number: sample for batch in given for number, sample in _samples(batch)}
    seen: set[int] = set()
    for position, batch in enumerate(arranged):
        if not isinstance(batch, Batch):
            raise _BrokenError(f"arrange yielded {type(batch).__name__} at position {position}, needed a Batch")
        for number, sample in _samples(batch):
            _require(number not in seen, f"arrange yielded sample {number} twice")
            _require(known.get(number) == sample, f"arrange changed sample {number}")
            seen.add(number)
    lost = len(known) - len(seen)
    _require(
        policy.drops_inputs or not lost, f"arrange lost {lost} of {len(known)} samples and drops_inputs is not set"
    )


def _arranges_lazily(subject: _Subject) -> None:
    arranged = subject.calibrated().arrange(_limited(), _View())
    if next(iter(arranged), None) is None:
        raise _BrokenError("arrange of an endless stream ended")


def _limited() -> Iterator[Batch]:
    for read, batch in enumerate(_batches(None)):
        if read == _READ_AT_MOST:
            raise _BrokenError(f"arrange read {read} batches before it yielded one; data may be endless")
        yield batch


def _trains(subject: _Subject) -> None:
    for depth, device_rows in [(0, "15%"), (1, "30%"), (3, "60%"), (5, "100%")]:
        trained, tables = _train(subject.make(), device_rows, depth=depth)
        _, expected = _train(_OneTier(), "100%", depth=0, batches=trained)
        for name, table in tables.items():
            differing = np.flatnonzero((table != expected[name]).any(axis=1))
            _require(
                not len(differing),
                f"depth {depth}, device rows {device_rows}: {len(differing)} rows of table {name} differ from "
                f"those of a single tier, first {differing[:1]}",
            )


def _trains_skipping(subject: _Subject) -> None:
    skip = SkipConfig(interval=2, hot_rows="50%", min_accesses=1, lag=2)
    _, tables = _train(subject.make(), "60%", depth=2, skip=skip)
    for name, table in tables.items():
        _require(bool(np.isfinite(table).all()), f"with skipping on, table {name} is not finite")


class _OneTier(Policy):
    device_rows = "100%"

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        return np.zeros(len(rows))


def _train(
    policy: Policy,
    device_rows: str,
    *,
    depth: int,
    batches: Sequence[Batch] | None = None,
    skip: SkipConfig | None = None,
) -> tuple[list[Batch], dict[str, NDArray[np.float32]]]:
    """The batches in the order in which they were trained, and the trained tables."""
    from adaptive.embedding import TieredEmbeddingBag  # late: with it comes the compiler

    tables = [
        TableConfig(name=f"t{table}", num_embeddings=rows, embedding_dim=4) for table, rows in enumerate(_TABLE_ROWS)
    ]
    tier = TierConfig(device_rows=policy.device_rows or device_rows, device="cpu", when_full="shallower", poison=True)
    trained: list[Batch] = []
    with TieredEmbeddingBag(tables, tier, policy=policy, skip=skip) as embeddings:
        embeddings.calibrate(_sample())
        for planned in embeddings.look_ahead(iter(batches or list(_batches(24))), depth=depth):
            embeddings.stack(planned).square().sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
            trained.append(planned.batch)
        return trained, {name: embeddings.table_weights(name) for name in embeddings.table_names}


def _stats(size: int, step: int = 700) -> RowStats:
    """Made-up candidates: every special value occurs, and the arrays are read-only."""
    random = np.random.default_rng(size + step)
    last_access = random.integers(-1, step + 1, size)
    next_access = np.where(random.random(size) < 0.5, NEVER, step + random.integers(1, 64, size))
    rows = random.choice(_STARTS[-1], size, replace=False)
    drift = random.random(size, np.float32) ** 4
    drift[random.random(size) < 0.3] = np.nan
    stats = RowStats(
        step=step,
        rows=rows,
        table=(np.searchsorted(_STARTS, rows, "right") - 1).astype(np.int32),
        accesses=np.where(last_access < 0, 0, random.integers(1, 100_000, size)),
        last_access=last_access,
        next_access=next_access,
        update_norm=random.random(size, np.float32) * 100,
        drift=drift,
        drift_accesses=random.integers(0, 1000, size),
        saturated=random.random(size) < 0.3,
        resident=random.random(size) < 0.5,
    )
    for value in vars(stats).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return stats


def _sample() -> list[Batch]:
    return list(_batches(6))


def _batches(num: int | None) -> Iterator[Batch]:
    """Batches of skewed ids, endlessly or `num` of them, the last one smaller; `dense` holds the sample's number."""
    for number in count() if num is None else range(num):
        num_samples = _BATCH_SIZE - 5 if number + 1 == num else _BATCH_SIZE
        random = np.random.default_rng(number)
        sizes = random.integers(0, 4, len(_TABLE_ROWS) * num_samples)
        skewed = random.random(sizes.sum()) ** 3
        rows = np.repeat(np.repeat(np.array(_TABLE_ROWS), num_samples), sizes)
        batch = Batch(
            dense=(number * _BATCH_SIZE + np.arange(num_samples, dtype=np.float32))[:, None],
            ids=(skewed * rows).astype(np.int64),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]),
            labels=(random.random(num_samples) < 0.25).astype(np.float32),
        )
        for array in (batch.dense, batch.ids, batch.offsets, batch.labels):
            array.flags.writeable = False
        yield batch


def _samples(batch: Batch) -> Iterator[tuple[int, tuple[object, ...]]]:
    """Number and content of every sample."""
    for sample in range(batch.num_samples):
        bags = range(sample, batch.num_samples * batch.num_features, batch.num_samples)
        ids = tuple(tuple(batch.ids[batch.offsets[bag] : batch.offsets[bag + 1]].tolist()) for bag in bags)
        yield int(batch.dense[sample, 0]), (float(batch.labels[sample]), ids)


@dataclass(frozen=True)
class _View:
    """Tiers in which every third row is resident and every tenth saturated."""

    num_rows: int = int(_STARTS[-1])
    device_rows: int = int(_STARTS[-1]) // 3
    table_starts: NDArray[np.int64] = field(default_factory=_STARTS.copy)
    row_bytes: NDArray[np.int64] = field(default_factory=lambda: np.full(len(_TABLE_ROWS), 16))

    def rows(self, batch: Batch) -> NDArray[np.int64]:
        bags = np.repeat(np.arange(len(batch.offsets) - 1), np.diff(batch.offsets))
        return batch.ids + self.table_starts[bags // max(batch.num_samples, 1)]

    def resident(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.equal(rows % 3, 0)

    def accesses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.num_rows - rows

    def saturated(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.equal(rows % 10, 0)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise _BrokenError(message)


_CHECKS: dict[str, Callable[[_Subject], None]] = {
    "parameters are named, annotated, with defaults and checked": _parameters,
    "score gives one number per row, inputs untouched": _score,
    "saturated gives one bool per row, inputs untouched": _saturated,
    "same questions, same answers": _deterministic,
    "calibrating again changes nothing": _calibrates,
    "state_dict restores it": _restores,
    "arrange keeps every sample": _arranges,
    "arrange is lazy": _arranges_lazily,
    "trained tables equal those of a single tier": _trains,
    "trains with skipping on": _trains_skipping,
}
