"""Parse the policies of a comparison into settings.

`lru,lfu+half_life=500` is a list of policies with parameters. Mistakes are reported in the words of the list,
before anything is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from adaptive.config import TrainConfig
from adaptive.errors import ConfigError, PolicyError
from adaptive.plugins import PARAMETER, load_policy_class, make_policy, policy_parameters, with_rule
from adaptive.policy import Policy, arranges

_OF_POLICY: Final = "policy."


Load = Callable[[str, Sequence[str]], TrainConfig]
"""Loads settings from a policy with its parameters, and a list of KEY=VALUE."""


@dataclass(frozen=True)
class Contender:
    """A policy as the user wrote it, and the settings of its runs."""

    label: str
    config: TrainConfig

    @property
    def arranges(self) -> bool:
        """True if the policy regroups or drops inputs, so that its batches differ."""
        policy = make_policy(self.config.policy, self.config.policy_options)
        with_rule(policy, self.config.skip)
        return arranges(policy)


def contenders(policies: str, sets: Sequence[str], load: Load) -> list[Contender]:
    """Return the policies of a comma-separated list, each with its settings.

    A policy is a name, module:Class or file.py:Class, and may have parameters: `lfu+half_life=500`.
    For a policy without a parameter `skip`, `lfu+skip=defer+at_most=8` names a skip rule and its parameters.
    `policy.NAME=VALUE` in `sets` applies to every policy of the list that has the parameter. A policy that works with
    only one size of the device tier gets that size.

    Raises:
        ConfigError: for an empty list, a repeated policy, or a parameter that the policy (for `sets`: every policy)
            does not have.
        AdaptiveError: from `load`, or if a policy cannot be loaded or rejects its parameters.
    """
    labels = [label.strip() for label in policies.split(",") if label.strip()]
    if not labels:
        raise ConfigError(f"policies: expected a list such as hybrid,lru,lfu+half_life=500, got {policies!r}")
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ConfigError(f"policies: expected each policy once, got {', '.join(repeated)} again. Vary its parameters")
    parameters = [text for text in sets if text.strip().startswith(_OF_POLICY)]
    classes = {label: policy_class(PARAMETER.split(label)[0]) for label in labels}
    _check_parameters(parameters, classes)
    others = [text for text in sets if text not in parameters]
    return [_contender(label, classes[label], parameters, others, load) for label in labels]


def policy_class(spec: str) -> type[Policy]:
    """Call `load_policy_class`; its error gets a hint about the syntax of lists."""
    try:
        return load_policy_class(spec)
    except PolicyError as error:
        raise PolicyError(f"{error}{_hint(spec)}") from error


def _hint(spec: str) -> str:
    if ":" in spec or spec.endswith(".py"):  # the error names the file or module
        return ""
    if "+" in spec:
        return "; write parameters as NAME+PARAMETER=VALUE"
    if " " in spec:
        return f"; separate policies by commas: {','.join(spec.split())}"
    return ""  # the error suggests the nearest name


def _contender(
    label: str, cls: type[Policy], parameters: Sequence[str], others: Sequence[str], load: Load
) -> Contender:
    names = policy_parameters(cls)
    config = load(label, [*others, *(text for text in parameters if _parameter(text) in names)])
    if config.follow:
        raise ConfigError(
            "expected data that do not grow, got follow=true. Only `run` follows a folder: name its files"
        )
    with_rule(make_policy(cls, config.policy_options), config.skip)  # raises for values that cannot be used
    if cls.device_rows is not None:
        config = config.model_copy(update={"tier": config.tier.model_copy(update={"device_rows": "auto"})})
    return Contender(label, config)


def _parameter(text: str) -> str:
    return text.strip().removeprefix(_OF_POLICY).partition("=")[0].strip()


def _check_parameters(parameters: Sequence[str], classes: Mapping[str, type[Policy]]) -> None:
    names = sorted({name for cls in classes.values() for name in policy_parameters(cls)})
    for text in parameters:
        if _parameter(text) not in names:
            raise ConfigError(
                f"{text.strip()}: expected a parameter of {', '.join(classes)} ({', '.join(names) or 'they have none'})"
                f", got {_parameter(text)}"
            )
