"""Runs that cannot be guarded, and what they are told."""

from adaptive.errors import ConfigError, PolicyError


def length_unknown(policy: str) -> ConfigError:
    """What is dropped costs more the longer the run goes on."""
    return ConfigError(
        f"guard: policy {policy} drops updates or inputs, and what that costs depends on the length of the run, which "
        f"nobody knows before the data are read: set steps; an upper bound will do"
    )


def not_obeyed(policy: str, dropped: int, place: int) -> PolicyError:
    """Dropped inputs are the policy's own doing; nobody else can bring them back."""
    return PolicyError(
        f"policy {policy} dropped {dropped} inputs before batch {place} although a guard allows none in the warm-up: "
        f"arrange() must keep every input that Policy.allows() is False for"
    )


def too_short(needed: int, total: int | None) -> str:
    """So nothing is skipped."""
    return (
        f"the run is too short: it has {total} batches, its warm-up and a check take {needed} (guard.warmup, "
        f"guard.steps, guard.holdout): nothing is skipped"
    )
