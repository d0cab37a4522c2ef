"""Find policies, skip rules and models by name, module or file, and create them.

No import happens before a class is used. Custom code raises anything: all of it becomes a `PolicyError`.
"""

import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from adaptive.config import SkipConfig, reason
from adaptive.errors import CUSTOM_CODE, AdaptiveError, ConfigError, PolicyError, error_text, suggestion
from adaptive.policy import Policy, SkipRule

if TYPE_CHECKING:
    from torch import nn

PlugIn = TypeVar("PlugIn")
Options = Mapping[str, Any]  # values of the parameters of a policy's or rule's `__init__`

ENTRY_POINTS = "adaptive.policies"
RULE_ENTRY_POINTS = "adaptive.skip_rules"
NO_RULE: Final = "off"  # the name that means: nothing is skipped
PARAMETER: Final = re.compile(r"\+(?=[A-Za-z_]\w*=)")  # as in defer+at_most=8


def _installed(group: str) -> dict[str, str]:
    return {point.name: point.value for point in sorted(entry_points(group=group))}


def installed_policies() -> dict[str, str]:
    """Name -> `module:Class` of every installed policy, without loading it."""
    return _installed(ENTRY_POINTS)


def installed_rules() -> dict[str, str]:
    """Name -> `module:Class` of every installed skip rule, without loading it."""
    return _installed(RULE_ENTRY_POINTS)


CODE_SETTINGS: Final[Mapping[str, tuple[str, Callable[[], Mapping[str, str]]]]] = {
    "policy": ("--policy", installed_policies),
    "skip.rule": ("--skip", installed_rules),
    "model": ("--model", dict),  # there are none
}
"""Settings that may name code: their flag, and the installed names."""


def is_foreign(spec: str, installed: Mapping[str, str]) -> bool:
    """True if a spec, with or without parameters, is code that no installed package provides."""
    name = PARAMETER.split(spec)[0]
    return ":" in name and name not in installed and name not in installed.values()


def refuse_unnamed(key: str, spec: str | None, *, where: str, named: str | None = None, how: str | None = None) -> None:
    """Refuse to run code that only a file names.

    Opening somebody's run or settings must not run their code, unless the user names that code, too.

    Args:
        key: one of `CODE_SETTINGS`.
        spec: value in the file.
        where: the file.
        named: value that the user has given.
        how: flag for the user to give it; default: `--set` with the setting.

    Raises:
        ConfigError: if the code is foreign and the user has not named it.
    """
    _, installed = CODE_SETTINGS[key]
    if spec is None or not is_foreign(spec, installed()) or spec == named:
        return
    raise ConfigError(
        f"{where}: {key}={spec} is code that no installed package offers, and code that only a file names is not run. "
        f"If you have read and trust it, name it yourself: {how or f'--set {key}={shlex.quote(spec)}'}"
    )


def code_flags(settings: Mapping[str, str | None]) -> str:
    """Shell flags that name the foreign code among the settings, each after a space."""
    return "".join(
        f" {flag} {shlex.quote(spec)}"
        for key, (flag, installed) in CODE_SETTINGS.items()
        if (spec := settings.get(key)) is not None and is_foreign(spec, installed())
    )


def parse_policy(name: str) -> tuple[str, dict[str, str], str | None]:
    """Split a policy with parameters, such as `lfu+half_life=100+skip=defer+every=8`.

    After `skip=` come parameters of the skip rule. A policy that has a parameter `skip` itself gets it.

    Returns:
        The name of the policy, its parameters as text, and its skip rule with parameters, or None.

    Raises:
        ConfigError: for a parameter that the policy does not have.
        PolicyError: if the policy has parameters and cannot be loaded.
    """
    spec, *texts = PARAMETER.split(name)
    if not texts:
        return spec, {}, None
    options = {key: value for key, _, value in (text.partition("=") for text in texts)}
    known = policy_parameters(load_policy_class(spec))
    unknown = [key for key in options if key not in known]
    if "skip" in unknown:
        rest = [f"{key}={options.pop(key)}" for key in unknown if key != "skip"]
        return spec, options, "+".join([options.pop("skip"), *rest])
    if unknown:
        hint = suggestion(unknown[0], known)
        expected = f"one of its parameters ({', '.join(known) or 'it has none'}), or skip"
        raise ConfigError(f"{name}: {spec} expected {expected}, got {unknown[0]}{hint}")
    return spec, options, None


def load_policy_class(spec: str) -> type[Policy]:
    """Load the policy class of a name, `module.path:Class` or `path/to/file.py:Class`.

    Raises:
        PolicyError: if there is no such class, or it is not a complete `Policy`.
    """
    return _load_class(spec, "policy", installed_policies(), Policy)  # type: ignore[type-abstract]


def load_rule_class(spec: str) -> type[SkipRule]:
    """Load a skip rule class, as `load_policy_class`.

    Raises:
        PolicyError: if there is no such class, or it is not a complete `SkipRule`.
    """
    return _load_class(spec, "skip rule", installed_rules(), SkipRule)


def load_model_class(spec: str) -> "type[nn.Module]":
    """Load a model class, any `torch.nn.Module`, as `load_policy_class`.

    Raises:
        ConfigError: if there is no such class.
    """
    from torch import nn  # takes a second, for which listing policies need not wait

    return _load_class(spec, "model", {}, nn.Module, ConfigError)


def _load_class(
    spec: str,
    kind: str,
    installed: Mapping[str, str],
    base: type[PlugIn],
    error: type[AdaptiveError] = PolicyError,
) -> type[PlugIn]:
    place, colon, name = installed.get(spec, spec).rpartition(":")
    if not colon:
        raise error(f"no {kind} {spec!r}; {_choices(spec, installed)}")
    try:
        module = _load_file(Path(place), kind) if place.endswith(".py") else _load_module(place, spec, kind)
    except PolicyError as unloaded:
        raise unloaded if error is PolicyError else error(str(unloaded)) from unloaded.__cause__
    if module.__file__ and not module.__name__.startswith("adaptive."):
        CUSTOM_CODE[module.__file__] = kind
    cls = getattr(module, name, None)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        home = "adaptive" if base.__module__.startswith("adaptive") else "torch.nn"
        classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]
        names = ", ".join(value.__name__ for value in classes if value.__module__ == module.__name__)
        it_has = f"; it has {names}" if names else ""
        raise error(f"{kind} {spec!r}: {place} has no class {name} derived from {home}.{base.__name__}{it_has}")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise error(f"{kind} {spec!r}: class {name} does not implement {missing}")
    return cls


def _choices(spec: str, installed: Mapping[str, str]) -> str:
    """Alternatives for a spec without a class."""
    if "," in spec:
        return f"for several policies, run `adaptive-train compare --policies {spec}`"
    if spec.endswith(".py"):
        return f"give its class, {spec}:CLASS"
    return f"known: {', '.join(installed)}; or give module:Class or file.py:Class{suggestion(spec, installed)}"


def is_rule(spec: str) -> bool:
    """True if a spec is a skip rule that can be loaded."""
    try:
        load_rule_class(PARAMETER.split(spec)[0])
    except PolicyError:
        return False
    return True


def parse_rule(spec: str) -> tuple[type[SkipRule], dict[str, str]]:
    """Load the class of a rule with parameters, such as `defer+at_most=8`, and split off its parameters as text."""
    name, *texts = PARAMETER.split(spec)
    return load_rule_class(name), {key: value for key, _, value in (text.partition("=") for text in texts)}


def make_rule(spec: str | type[SkipRule] | SkipRule, options: Options | None = None) -> SkipRule:
    """Create a skip rule from a class with `options`, or from a name with parameters, such as `defer+at_most=8`.

    An instance is checked and returned.

    Raises:
        PolicyError: if there is no such rule, for an unknown parameter, a value of the wrong type or out of range.
    """
    if isinstance(spec, SkipRule):
        return _checked_rule(spec)
    cls, parameters = parse_rule(spec) if isinstance(spec, str) else (spec, options or {})
    return _checked_rule(_create(cls, parameters, "skip rule"))


def _create(cls: type[PlugIn], options: Options, kind: str) -> PlugIn:
    """Create an instance; any error of `__init__` becomes a `PolicyError`."""
    try:
        return cls(**checked_options(cls, options, kind))
    except (PolicyError, KeyboardInterrupt):
        raise
    except BaseException as error:
        reason = error_text(error)
        if isinstance(error, ValueError):
            reason = reason.partition(": ")[2] or reason
        raise PolicyError(f"{kind} {cls.__name__}: {reason}") from error


def with_rule(policy: Policy, skip: SkipConfig | SkipRule | str | None) -> SkipConfig | None:
    """Set the policy's skip rule and return the settings of skipping, None if it is off.

    Args:
        policy: whose `rule` is replaced, or removed if nothing is skipped.
        skip: settings, a rule, or a rule's name. Settings without a rule leave the policy its own.

    Raises:
        PolicyError: if the rule cannot be loaded.
    """
    if isinstance(skip, str):
        skip = SkipConfig(rule=skip)
    if skip is None or (isinstance(skip, SkipConfig) and skip.rule == NO_RULE):
        policy.rule = None
        return None
    if not isinstance(skip, SkipConfig):
        policy.rule = make_rule(skip)
        return SkipConfig()
    if skip.rule is not None:
        policy.rule = make_rule(skip.rule)
    return skip


def _checked_rule(rule: SkipRule) -> SkipRule:
    _check_attributes(
        "skip rule",
        rule,
        least=("0 or 1", isinstance(rule.least, int) and 0 <= rule.least <= 1),
        most=("an integer from 1 to 255", isinstance(rule.most, int) and 1 <= rule.most <= 255),
        warmup=("an integer of at least 0", isinstance(rule.warmup, int) and rule.warmup >= 0),
    )
    return rule


def _check_attributes(kind: str, owner: Policy | SkipRule, **checks: tuple[str, bool]) -> None:
    """Check attributes of a policy or rule; `checks`: name -> (expected value, is it so)."""
    for name, (expected, holds) in checks.items():
        if not holds:
            text = f"{name}: expected {expected}, got {getattr(owner, name)!r}"
            raise PolicyError(f"{kind} {type(owner).__name__}: {text}")


def make_policy(policy: str | type[Policy] | Policy, options: Options | None = None) -> Policy:
    """Create a policy from a class or a name, with `options` as its parameters.

    A name may have parameters and a skip rule, as for `parse_policy`. An instance is checked and returned.

    Raises:
        ConfigError, PolicyError: for an unknown parameter, a value of the wrong type or out of range.
    """
    if isinstance(policy, Policy):
        if options:
            raise PolicyError(
                "expected options with a policy's class or name, got an instance. Pass them to its class."
            )
        return _checked_policy(policy)
    rule, cls = None, policy
    if isinstance(policy, str):
        spec, parameters, rule = parse_policy(policy)
        cls, options = load_policy_class(spec), {**parameters, **(options or {})}
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise PolicyError(f"expected a policy's name, class or instance, got {cls!r}")
    made = _checked_policy(_create(cls, options or {}, "policy"))
    if rule is not None:
        with_rule(made, rule)
    return made


def _checked_policy(policy: Policy) -> Policy:
    rule = policy.rule  # its own, not one that the class shares: rules have state
    has_own_rule = rule is None or (isinstance(rule, SkipRule) and rule is not getattr(type(policy), "rule", None))
    _check_attributes(
        "policy",
        policy,
        misses=("'prefetch' or 'host'", policy.misses in ("prefetch", "host")),
        device_rows=("None, '0' or '100%'", policy.device_rows in (None, "0", "100%")),
        window=("an integer of at least 0", isinstance(policy.window, int) and policy.window >= 0),
        rule=("None or a SkipRule created in __init__", has_own_rule),
    )
    if rule is not None:
        _checked_rule(rule)
    return policy


def policy_parameters(cls: type[Policy] | type[SkipRule]) -> dict[str, inspect.Parameter]:
    """Settings of a policy or a rule: the keyword parameters of its `__init__`."""
    if cls.__init__ is object.__init__:
        return {}
    parameters = inspect.signature(cls, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def checked_options(cls: type, options: Options, kind: str) -> dict[str, Any]:
    """Return the parameters of a policy or a rule in their types; PolicyError for unknown ones and wrong values."""
    parameters = policy_parameters(cls)
    if unknown := sorted(set(options) - set(parameters)):
        has = f"{', '.join(parameters) or 'none'}{suggestion(unknown[0], parameters)}"
        raise PolicyError(f"{kind} {cls.__name__} has no parameter {', '.join(unknown)}; it has: {has}")
    checked: dict[str, Any] = {}
    for name, value in options.items():
        annotation = parameters[name].annotation
        if annotation is inspect.Parameter.empty:
            annotation = Any
        try:
            checked[name] = TypeAdapter(annotation).validate_python(value)
        except ValidationError as error:
            raise PolicyError(f"{kind} {cls.__name__}: {name}: {reason(error.errors()[0])}, got {value!r}") from error
    return checked


def _load_module(place: str, spec: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise PolicyError(f"{kind} {spec!r}: cannot import {place}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise anything when it is imported
        raise PolicyError(f"{kind} {spec!r}: {place}: {error_text(error)}") from error


def _load_file(path: Path, kind: str) -> ModuleType:
    if not path.is_file():
        raise PolicyError(f"{kind} file {path} not found")
    name = f"adaptive_{kind.replace(' ', '_')}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and annotations inside the file need it
    CUSTOM_CODE[str(module.__file__)] = kind
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PolicyError(f"{kind} file {path}: {error_text(error)}") from error
    return module
