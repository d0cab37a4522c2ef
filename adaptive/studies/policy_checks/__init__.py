"""Checks that every policy must pass, for `adaptive-train policies check` and tests.

The checks call the policy's methods with made-up rows and batches, then train a tiny model under it and compare the
tables, bit for bit, with the same training on a single tier.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from adaptive.config import TierConfig
from adaptive.errors import AdaptiveError
from adaptive.plugins import Options, load_policy_class, make_rule
from adaptive.policy import Policy, SkipRule
from adaptive.studies.policy_checks.checks import CHECKS, RULE_CHECKS
from adaptive.studies.policy_checks.fixtures import BrokenError, DoubtError, HungError, Subject

TIMEOUT_S = TierConfig().policy_timeout_s  # that of a run


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `reason` is empty if it passed, unless there is a doubt."""

    check: str
    passed: bool
    reason: str = ""
    was_run: bool = True

    @property
    def is_doubtful(self) -> bool:
        """True if the policy passed, but probably does not do what its author means."""
        return self.passed and bool(self.reason)


def check_policy(
    policy: str | type[Policy], options: Options | None = None, *, timeout_s: float = TIMEOUT_S
) -> list[CheckResult]:
    """Run every check on a policy, given as a class, name, `module:Class` or `file.py:Class`.

    A policy that cannot be loaded or created with `options` fails the one check `loads`. Otherwise every check runs. A
    method that does not return within `timeout_s` seconds (0: no limit) ends the checks: it is left behind in a thread,
    and the remaining checks are not run.
    """
    try:
        cls = load_policy_class(policy) if isinstance(policy, str) else policy
    except Exception as error:  # a policy under test may raise anything
        return [CheckResult("loads", False, _reason(error))]
    make = partial(Subject, cls, dict(options or {}), timeout_s)
    results, hung = [_run("loads", lambda: _with(make, lambda subject: subject.make()))[0]], False
    for name, check in CHECKS.items() if results[0].passed else ():
        result = CheckResult(name, False, "not run, because a method did not return in an earlier check", was_run=False)
        if not hung:
            result, hung = _run(name, partial(_with, make, check))
        results.append(result)
    return results


def check_rule(rule: str | type[SkipRule], *, timeout_s: float = TIMEOUT_S) -> list[CheckResult]:
    """Run every check on a skip rule, given as for `check_policy`.

    Parameters are given as in `defer+every=8`. A rule that cannot be loaded fails the one check `loads`.
    """
    try:
        make_rule(rule)
    except Exception as error:  # a rule under test may raise anything
        return [CheckResult("loads", False, _reason(error))]
    checks = {name: partial(check, lambda: make_rule(rule), timeout_s) for name, check in RULE_CHECKS.items()}
    return [CheckResult("loads", True), *(_run(name, check)[0] for name, check in checks.items())]


def _with(make: Callable[[], Subject], check: Callable[[Subject], object]) -> None:
    with make() as subject:
        check(subject)


def _run(name: str, check: Callable[[], object]) -> tuple[CheckResult, bool]:
    """Run one check; also return True if a method is still running."""
    try:
        check()
    except DoubtError as doubt:
        return CheckResult(name, True, str(doubt)), False
    except Exception as error:
        return CheckResult(name, False, _reason(error)), isinstance(error, HungError)
    return CheckResult(name, True), False


def _reason(error: Exception) -> str:
    explained = isinstance(error, BrokenError | AdaptiveError)
    return str(error) if explained else f"{type(error).__name__}: {error}"


__all__ = ["TIMEOUT_S", "CheckResult", "check_policy", "check_rule"]
