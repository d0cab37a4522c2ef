"""Checks that every policy must pass, for `adaptive-train policies check` and tests.

The checks call the policy's methods with made-up rows and batches, then train a tiny model under it and compare the
tables, bit for bit, with the same training on a single tier.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from adaptive.errors import AdaptiveError
from adaptive.plugins import Options, load_policy_class, make_rule
from adaptive.policy import Policy, SkipRule
from adaptive.studies.policy_checks.checks import CHECKS, RULE_CHECKS
from adaptive.studies.policy_checks.fixtures import BrokenError, DoubtError, Subject


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
    return str(error) if explained else f"{type(error).__name__}: {error}"


__all__ = ["CheckResult", "check_policy", "check_rule"]
