"""From `lru,slipstream+threshold=0.02` to one set of settings for each policy that is compared.

What is wrong with a policy is told here, in the words of the list, before anything is trained.

From `--sweep batch_size=256,1024` to the values under which every policy is trained.

Several lists make the product of their values, the last one varying fastest. A list may vary keys together, joined by
`+`: `optimizer.lr+dense_optimizer.lr=0.01+0.01,0.1+0.1` has two values, not four.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final
from urllib.parse import quote

from adaptive.config import TrainConfig
from adaptive.errors import ConfigError, PolicyError, suggestion
from adaptive.plugins import NO_RULE, PARAMETER, load_policy_class, make_policy, make_rule, policy_parameters, with_rule
from adaptive.policy import Policy, arranges
from adaptive.training.settings import parse_text

OWN_FLAGS: Final = {
    "policy": "policies are compared with --policies",
    "seed": "seeds are compared with --seeds",
    "out": "run directories lie under --out",
}
_ITEM: Final = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|[^,])*""")  # up to a comma outside of these
_SAFE: Final = "=+%@:~ ,"  # in names of folders, besides letters, digits and _ . -


@dataclass(frozen=True)
class Value:
    """A value of a key, as it was written, and where that was, for messages."""

    key: str
    text: str
    place: str = ""


SweepPoint = tuple[Value, ...]
"""A value of each key that is swept; none where nothing is."""


def sweep_points(lists: Sequence[str], given: Mapping[str, str]) -> list[SweepPoint]:
    """Every combination of the values of `KEY=VALUE,VALUE` lists; a single empty one of no list.

    Commas in quotes and brackets belong to a value. Whether keys exist and values fit is seen where settings are read.

    Args:
        lists: as given by --sweep.
        given: settings that were given otherwise -> by what.

    Raises:
        ConfigError: for a list without a key or a value, a value that comes twice, and a key that another list or
            option gives, or that cannot be swept.
    """
    choices = [_choices(text) for text in lists]
    seen = dict(given)
    for key in [value.key for values in choices for value in values[0]]:
        if key in OWN_FLAGS:
            raise ConfigError(f"--sweep {key}: {OWN_FLAGS[key]}")
        if key in seen:
            raise ConfigError(f"--sweep {key}: {seen[key]} gives {key}, too; give one of them")
        seen[key] = "another --sweep"
    return [tuple(value for part in combination for value in part) for combination in product(*choices)]


def title(point: SweepPoint) -> str:
    """`batch_size=256, optimizer.lr=0.1`"""
    return ", ".join(f"{value.key}={value.text}" for value in point)


def folders(point: SweepPoint) -> list[str]:
    """A name of a folder for each key: `batch_size=256`. Different values have different names."""
    return [quote(f"{value.key}={value.text}", safe=_SAFE) for value in point]


def values(point: SweepPoint) -> dict[str, Any]:
    """Key -> value, numbers as numbers."""
    return {value.key: parse_text(value.text) for value in point}


def _choices(text: str) -> list[SweepPoint]:
    """The values of one list, each of one key or of several that vary together."""
    left, equals, right = text.partition("=")
    keys = [key.strip() for key in left.split("+")]
    if not (equals and all(keys)):
        raise ConfigError(f"--sweep {text!r}: needed KEY=VALUE,VALUE, for example --sweep batch_size=256,1024,4096")
    items = [item.strip() for item in _split(right)]
    points = []
    for number, item in enumerate(items, start=1):
        place = f"--sweep, value {number} of {len(items)}"
        parts = [part.strip() for part in item.split("+")] if len(keys) > 1 else [item]
        if not all(parts):
            raise ConfigError(f"--sweep {left}: value {number} of {len(items)} is empty, in {text!r}")
        if len(parts) != len(keys):
            raise ConfigError(
                f"--sweep {left}: value {number} of {len(items)} is {item!r}; needed a part for each of "
                f"{len(keys)} keys, joined by +"
            )
        points.append(tuple(Value(key, part, place) for key, part in zip(keys, parts, strict=True)))
    for number, item in enumerate(items):
        if any(values(points[number]) == values(earlier) for earlier in points[:number]):  # 0.1 and 0.10 are one, too
            raise ConfigError(f"--sweep {left}: {item} more than once, in {text!r}")
    return points


def _split(text: str) -> list[str]:
    """At the commas outside of quotes and brackets."""
    items, start = [], 0
    while True:
        match = _ITEM.match(text, start)
        assert match is not None  # it may be empty
        items.append(match.group())
        if match.end() == len(text):
            return items
        start = match.end() + 1


_OF_POLICY: Final = "policy."

Load = Callable[[str, str, Mapping[str, str], Sequence[str]], TrainConfig]
"""Settings for a label, its policy, the parameters in the label, and a list of KEY=VALUE."""


@dataclass(frozen=True)
class Contender:
    """A policy as the user wrote it, and the settings of its runs; `swept`: those of them that --sweep gave."""

    label: str
    config: TrainConfig
    swept: SweepPoint = ()

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
