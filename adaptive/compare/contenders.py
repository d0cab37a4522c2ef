"""From `lru,slipstream+threshold=0.02` to one set of settings for each policy that is compared."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from adaptive.config import TrainConfig
from adaptive.errors import ConfigError
from adaptive.policy import Policy, load_policy_class, policy_parameters

_OPTION: Final = re.compile(r"\+(?=[A-Za-z_]\w*=)")
_OF_POLICY: Final = "policy."

Load = Callable[[str, Sequence[str]], TrainConfig]  # settings for a policy and a list of KEY=VALUE


@dataclass(frozen=True)
class Contender:
    """A policy as the user wrote it, and the settings of its runs."""

    label: str
    config: TrainConfig

    @property
    def arranges(self) -> bool:
        """The policy regroups or drops inputs, so it may train other batches than the others."""
        return load_policy_class(self.config.policy).arrange is not Policy.arrange


def contenders(policies: str, sets: Sequence[str], load: Load) -> list[Contender]:
    """The policies of a comma-separated list, each with its own settings.

    A policy is a name, module:Class or file.py:Class, and may carry parameters: `slipstream+threshold=0.02+warmup=0`.
    `policy.NAME=VALUE` in `sets` goes to every policy of the list that has such a parameter. Policies that make sense
    at one size of device tier only are given that size.

    Raises:
        ConfigError: for an empty list, a policy that comes twice, or a parameter that none of them has.
        AdaptiveError: from `load`, or if a policy cannot be loaded.
    """
    labels = [label.strip() for label in policies.split(",") if label.strip()]
    if not labels:
        raise ConfigError(f"policies {policies!r}: needed a list such as hybrid,lru,lfu+half_life=500")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ConfigError(f"policies: {', '.join(twice)} more than once; give each once, or with other parameters")
    own = [text for text in sets if text.strip().startswith(_OF_POLICY)]
    classes = {label: load_policy_class(_OPTION.split(label)[0]) for label in labels}
    _check_known(own, classes)
    others = [text for text in sets if text not in own]
    return [_contender(label, classes[label], own, others, load) for label in labels]


def _contender(label: str, cls: type[Policy], own: Sequence[str], others: Sequence[str], load: Load) -> Contender:
    spec, *options = _OPTION.split(label)
    known = policy_parameters(cls)
    sets = [*others, *(text for text in own if _parameter(text) in known), *(_OF_POLICY + text for text in options)]
    config = load(spec, sets)
    if cls.device_rows is not None:
        config = config.model_copy(update={"tier": config.tier.model_copy(update={"device_rows": "auto"})})
    return Contender(label, config)


def _parameter(text: str) -> str:
    return text.strip().removeprefix(_OF_POLICY).partition("=")[0].strip()


def _check_known(own: Sequence[str], classes: Mapping[str, type[Policy]]) -> None:
    known = {name: label for label, cls in classes.items() for name in policy_parameters(cls)}
    for text in own:
        if _parameter(text) not in known:
            raise ConfigError(
                f"--set {text}: none of {', '.join(classes)} has a parameter {_parameter(text)}; "
                f"they have: {', '.join(sorted(known)) or 'none'}"
            )
