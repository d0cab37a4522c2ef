"""How policies are found by name, module or file, and made from their settings."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from adaptive.config import SkipConfig
from adaptive.errors import ConfigError, PolicyError
from adaptive.policy import Deferral, Policy, SkipRule

PlugIn = TypeVar("PlugIn", Policy, SkipRule)

ENTRY_POINTS = "adaptive.policies"
RULE_ENTRY_POINTS = "adaptive.skip_rules"
NO_RULE: Final = "off"  # the name that means: nothing is skipped
PARAMETER: Final = re.compile(r"\+(?=[A-Za-z_]\w*=)")  # as in defer+bound=0.1


def installed_policies() -> dict[str, str]:
    """Name -> `module:Class` of every installed policy. Loads none of them."""
    return {point.name: point.value for point in sorted(entry_points(group=ENTRY_POINTS))}


def installed_rules() -> dict[str, str]:
    """Name -> `module:Class` of every installed skip rule. Loads none of them."""
    return {point.name: point.value for point in sorted(entry_points(group=RULE_ENTRY_POINTS))}


def load_policy_class(spec: str) -> type[Policy]:
    """The class behind a name, `module.path:Class` or `path/to/file.py:Class`.

    Raises:
        PolicyError: if there is no such policy, or it is not a complete `Policy`.
    """
    return _load_class(spec, "policy", installed_policies(), Policy)  # type: ignore[type-abstract]


def load_rule_class(spec: str) -> type[SkipRule]:
    """The same for a skip rule.

    Raises:
        PolicyError: if there is no such rule, or it is not a complete `SkipRule`.
    """
    return _load_class(spec, "skip rule", installed_rules(), SkipRule)  # type: ignore[type-abstract]


def _load_class(spec: str, kind: str, installed: Mapping[str, str], base: type[PlugIn]) -> type[PlugIn]:
    target = installed.get(spec, spec)
    place, colon, name = target.rpartition(":")
    if not colon:
        raise PolicyError(f"no {kind} {spec!r}; known: {', '.join(installed)}; or give module:Class or file.py:Class")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place, spec)
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PolicyError(f"{kind} {spec!r}: {place} has no class {name} derived from adaptive.{base.__name__}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PolicyError(f"{kind} {spec!r}: class {name} does not implement {missing}")
    return found


def is_rule(spec: str) -> bool:
    """Whether a name, `module:Class` or `file.py:Class` is a skip rule's; False also if it cannot be loaded."""
    try:
        load_rule_class(PARAMETER.split(spec)[0])
    except PolicyError:
        return False
    return True


def make_rule(spec: str | type[SkipRule] | SkipRule) -> SkipRule:
    """The rule itself, from an instance, a class, or a name with parameters, such as `defer+bound=0.1`.

    Raises:
        PolicyError: if there is no such rule, for an unknown parameter, a value of the wrong type or out of range.
    """
    if isinstance(spec, SkipRule):
        return _checked_rule(spec)
    options: dict[str, Any] = {}
    if isinstance(spec, str):
        name, *texts = PARAMETER.split(spec)
        options = {key: value for key, _, value in (text.partition("=") for text in texts)}
        spec = load_rule_class(name)
    try:
        return _checked_rule(spec(**_checked_options(spec, options, "skip rule")))
    except PolicyError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise PolicyError(f"skip rule {spec.__name__}: {reason}") from error


def with_rule(policy: Policy, skip: SkipConfig | SkipRule | str | None) -> SkipConfig | None:
    """Put the skip rule that is asked for beside the policy; the settings of skipping, None: nothing is skipped.

    Raises:
        ConfigError: if the policy leaves inputs out itself.
        PolicyError: if the rule cannot be loaded.
    """
    if isinstance(skip, str):
        skip = SkipConfig(rule=skip)
    wanted = skip.rule if isinstance(skip, SkipConfig) else skip
    if wanted is None:
        if not isinstance(skip, SkipConfig):  # a policy's own rule is for where skipping is switched on
            policy.rule = None
            return None
        return skip
    if policy.drops_inputs:
        raise ConfigError(
            f"skip rule {wanted}: policy {type(policy).__name__} leaves inputs out itself; choose one of the two"
        )
    if wanted == NO_RULE:
        policy.rule = None
        return None
    policy.rule = make_rule(wanted)
    return skip if isinstance(skip, SkipConfig) else SkipConfig()


def _checked_rule(rule: SkipRule) -> SkipRule:
    answers = {
        "at_most": ("a whole number from 1 to 255", isinstance(rule.at_most, int) and 1 <= rule.at_most <= 255),
        "warmup": ("a whole number from 0 on", isinstance(rule.warmup, int) and rule.warmup >= 0),
        "leaves_out": ("True or False", isinstance(rule.leaves_out, bool)),
        "watches": ("True or False", isinstance(rule.watches, bool)),
        "asks": ("True or False", isinstance(rule.asks, bool)),
        "drops_inputs": ("True or False", isinstance(rule.drops_inputs, bool)),
        "every": ("a whole number from 1 on", isinstance(rule.every, int) and rule.every >= 1),
    }
    for name, (needed, holds) in answers.items():
        if not holds:
            found = getattr(rule, name)
            raise PolicyError(f"skip rule {type(rule).__name__}: {name} must be {needed}, found {found!r}")
    return rule


def make_policy(policy: str | type[Policy] | Policy, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy itself, from a spec, a class or an instance; `options` are its parameters.

    Raises:
        PolicyError: for an unknown parameter, a value of the wrong type or out of range.
    """
    if isinstance(policy, Policy):
        if options:
            raise PolicyError("options go with a policy's class or name, not with an instance")
        return _checked_attributes(policy)
    cls = load_policy_class(policy) if isinstance(policy, str) else policy
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise PolicyError(f"a policy's name, class or instance is needed, found {cls!r}")
    try:
        return _checked_attributes(cls(**_checked_options(cls, options or {})))
    except PolicyError:
        raise
    except ValueError as error:
        raise PolicyError(f"policy {cls.__name__}: {error}") from error
    except Exception as error:
        raise PolicyError(f"policy {cls.__name__}: {type(error).__name__}: {error}") from error


def _checked_attributes(policy: Policy) -> Policy:
    """The policy itself, if what it says of itself by attributes can be.

    Raises:
        PolicyError: for an attribute that is none of the values it may have.
    """
    answers = {
        "misses": ("'stage' or 'host'", policy.misses in ("stage", "host")),
        "device_rows": ("None, '0' or '100%'", policy.device_rows in (None, "0", "100%")),
        "window": ("a whole number from 0 on", isinstance(policy.window, int) and policy.window >= 0),
        "deferral": ("None or a Deferral", policy.deferral is None or isinstance(policy.deferral, Deferral)),
    }
    for name, (needed, holds) in answers.items():
        if not holds:
            found = getattr(policy, name)
            raise PolicyError(f"policy {type(policy).__name__}: {name} must be {needed}, found {found!r}")
    return policy


def policy_parameters(cls: type[Policy] | type[SkipRule]) -> dict[str, inspect.Parameter]:
    """The settings of a policy or a rule: the keyword parameters of its `__init__`."""
    if cls.__init__ is object.__init__:
        return {}
    parameters = inspect.signature(cls, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def _checked_options(
    cls: type[Policy] | type[SkipRule], options: Mapping[str, Any], kind: str = "policy"
) -> dict[str, Any]:
    parameters = policy_parameters(cls)
    unknown = sorted(set(options) - set(parameters))
    if unknown:
        known = ", ".join(parameters) or "none"
        raise PolicyError(f"{kind} {cls.__name__} has no parameter {', '.join(unknown)}; it has: {known}")
    checked: dict[str, Any] = {}
    for name, value in options.items():
        annotation = parameters[name].annotation
        try:
            checked[name] = (
                value if annotation is inspect.Parameter.empty else TypeAdapter(annotation).validate_python(value)
            )
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise PolicyError(f"{kind} {cls.__name__}: {name}={value!r}: {reason}") from error
    return checked


def _load_module(place: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise PolicyError(f"policy {spec!r}: cannot import {place}: {error}") from error
    except Exception as error:  # whatever a module does when it is imported
        raise PolicyError(f"policy {spec!r}: {place}: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PolicyError(f"policy file {path} not found")
    name = f"adaptive_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that dataclasses and annotations inside the file resolve
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PolicyError(f"policy file {path}: {type(error).__name__}: {error}") from error
    return module
