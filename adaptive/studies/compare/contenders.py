"""From `lru,slipstream+threshold=0.02` to one set of settings for each policy that is compared.

What is wrong with a policy is told here, in the words of the list, before anything is trained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from adaptive.config import TrainConfig
from adaptive.errors import ConfigError, PolicyError, suggestion
from adaptive.plugins import NO_RULE, PARAMETER, load_policy_class, make_policy, make_rule, policy_parameters, with_rule
from adaptive.policy import Policy, arranges
from adaptive.studies.compare.variations import Variation

_OF_POLICY: Final = "policy."

Load = Callable[[str, str, Mapping[str, str], Sequence[str]], TrainConfig]
"""Settings for a label, its policy, the parameters in the label, and a list of KEY=VALUE."""


@dataclass(frozen=True)
class Contender:
    """A policy as the user wrote it, and the settings of its runs; `varied`: those of them that --vary gave."""

    label: str
    config: TrainConfig
    varied: Variation = ()

    @property
    def arranges(self) -> bool:
        """The policy regroups or drops inputs, so it may train other batches than the others."""
        policy = make_policy(self.config.policy, self.config.policy_options)
        with_rule(policy, self.config.skip)
        return arranges(policy)


def contenders(policies: str, sets: Sequence[str], load: Load) -> list[Contender]:
    """The policies of a comma-separated list, each with its own settings.

    A policy is a name, module:Class or file.py:Class, and may carry parameters: `slipstream+threshold=0.02+warmup=0`;
    beside a policy without a parameter `skip`, `lfu+skip=defer+bound=0.1` names a skip rule and its parameters.
    `policy.NAME=VALUE` in `sets` goes to every policy of the list that has such a parameter. Policies that make sense
    at one size of device tier only are given that size.

    Raises:
        ConfigError: for an empty list, a policy that comes twice, or a parameter that a policy (of those in `sets`:
            that none of them) has.
        AdaptiveError: from `load`, or if a policy cannot be loaded or does not take its parameters.
    """
    labels = [label.strip() for label in policies.split(",") if label.strip()]
    if not labels:
        raise ConfigError(f"policies {policies!r}: needed a list such as hybrid,lru,lfu+half_life=500")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ConfigError(f"policies: {', '.join(twice)} more than once; give each once, or with other parameters")
    own = [text for text in sets if text.strip().startswith(_OF_POLICY)]
    classes = {label: policy_class(PARAMETER.split(label)[0]) for label in labels}
    _check_known(own, classes)
    others = [text for text in sets if text not in own]
    return [_contender(label, classes[label], own, others, load) for label in labels]


def policy_class(spec: str) -> type[Policy]:
    """`load_policy_class`, whose error says what may have been meant.

    Raises:
        PolicyError: see there.
    """
    try:
        return load_policy_class(spec)
    except PolicyError as error:
        raise PolicyError(f"{error}{_hint(spec)}") from error


def _hint(spec: str) -> str:
    if ":" in spec or spec.endswith(".py"):  # it was looked for in one place, which the error names
        return ""
    if "+" in spec:
        return "; parameters are given as NAME+PARAMETER=VALUE"
    if " " in spec:
        return f"; several policies are separated by commas: {','.join(spec.split())}"
    return ""  # the error has the nearest name


def _contender(label: str, cls: type[Policy], own: Sequence[str], others: Sequence[str], load: Load) -> Contender:
    spec, *texts = PARAMETER.split(label)
    known = policy_parameters(cls)
    options = {name: value for name, _, value in (text.partition("=") for text in texts)}
    rule = _rule_of(label, options, known)
    for name in options:
        if name not in known:
            has = f"it has: {', '.join(known) or 'none'}{suggestion(name, known)}"
            raise ConfigError(f"policies: {label}: {spec} has no parameter {name}; {has}")
    sets = [*others, *rule, *(text for text in own if _parameter(text) in known)]
    config = load(label, spec, options, sets)
    make_policy(cls, config.policy_options)  # values that do not go together, or are out of range
    if cls.device_rows is not None:
        config = config.model_copy(update={"tier": config.tier.model_copy(update={"device_rows": "auto"})})
    return Contender(label, config)


def _rule_of(label: str, options: dict[str, str], known: Mapping[str, object]) -> list[str]:
    """The setting of the skip rule in `lfu+skip=defer+bound=0.1`, taken out of the options with its parameters.

    Raises:
        PolicyError: if the rule cannot be loaded or does not take its parameters.
    """
    if "skip" not in options or "skip" in known:
        return []
    spec = "+".join([options.pop("skip"), *(f"{name}={options.pop(name)}" for name in [*options] if name not in known)])
    if spec != NO_RULE:
        make_rule(spec)
    return [f"skip.rule={spec}"]


def _parameter(text: str) -> str:
    return text.strip().removeprefix(_OF_POLICY).partition("=")[0].strip()


def _check_known(own: Sequence[str], classes: Mapping[str, type[Policy]]) -> None:
    known = {name: label for label, cls in classes.items() for name in policy_parameters(cls)}
    for text in own:
        if _parameter(text) not in known:
            raise ConfigError(
                f"{text.strip()}: none of {', '.join(classes)} has a parameter {_parameter(text)}; "
                f"they have: {', '.join(sorted(known)) or 'none'}"
            )
