"""`PolicyErrors`: what the user is told of a policy, or a skip rule, that misbehaves: method, batch, and what to do."""

from typing import Final

from adaptive.errors import PolicyError, error_text
from adaptive.policy import Policy

OF_RULE: Final = "rule."
METHODS_OF_RULES: Final = ("visits", "begin")  # no policy has these
CHECK: Final = "Nothing was moved; run `adaptive-train policies check` on it."


class PolicyErrors:
    """Errors that name a method of one policy or, where its name begins with `OF_RULE`, of its rule, and the batch it
    was asked about; -1: about none."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def raised(self, method: str, step: int, error: BaseException) -> PolicyError:
        """It raised this."""
        return PolicyError(f"{self._where(method)}{_at(step)} raised {error_text(error)}. {CHECK}")

    def wrong(self, method: str, step: int, needed: str) -> PolicyError:
        """It returned something else than is needed."""
        return PolicyError(f"{self._where(method)}{_at(step)} must return {needed}. {CHECK}")

    def overdue(self, method: str, step: int, seconds: float) -> PolicyError:
        """It has not returned for so long."""
        return PolicyError(overdue_text(self.owner(method), method.removeprefix(OF_RULE), step, seconds))

    def _where(self, method: str) -> str:
        return f"{self.owner(method)}.{method.removeprefix(OF_RULE)}"

    def owner(self, method: str) -> str:
        """Whose method it is."""
        if method in METHODS_OF_RULES or method.startswith(OF_RULE):
            return f"skip rule {type(self._policy.rule).__name__}"
        return f"policy {type(self._policy).__name__}"


def overdue_text(owner: str, method: str, step: int, seconds: float) -> str:
    """What the user is told of a method that was given up; `step`: the batch it was asked about, or -1."""
    return (
        f"{owner}.{method}{_at(step)} has not returned for {seconds:g} s and is left behind. "
        f"Nothing was moved; look there for a loop or a wait without an end. For a method that is only "
        f"slow raise the limit: --set tier.policy_timeout_s={10 * seconds:g} (0: none)."
    )


def _at(step: int) -> str:
    return f" at batch {step}" if step >= 0 else ""
