"""Where settings come from: flag > --set > environment > file > preset > default. All mistakes are reported at once.
Only one default depends on another setting: a model over sequences trains on the built-in stream of sequences.

A key is dotted (`tier.device_rows`). `policy.NAME`, `data.NAME` and `model.NAME` mean the options of the policy, the
data and the model. In the environment a key is `ADAPTIVE_` and capitals, with `__` for the dot
(`ADAPTIVE_TIER__DEVICE_ROWS`). Text from `--set` and the environment is read as a TOML value, else as it stands;
`null` is no value, where a setting may have none.
"""

import inspect
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from adaptive.config import TrainConfig
from adaptive.errors import ConfigError, PolicyError, suggestion
from adaptive.plugins import CODE_SETTINGS, load_policy_class, policy_parameters, refuse_unnamed
from adaptive.storage.untrusted import DIGEST, check_depth, check_signature, read_plain

PREFIX = "ADAPTIVE_"
NOT_SETTINGS = {"ADAPTIVE_VENV", "ADAPTIVE_DATA", "ADAPTIVE_UPDATE_GOLDEN"}  # of scripts, tests and benchmarks
OPTIONS = {"policy": "policy_options", "data": "data_options", "model": "model_options"}

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Given:
    """A value that somebody gave for a key."""

    key: str  # as it was written
    value: Any
    origin: str
    text: str | None = None  # what `value` was read from, where it came as text
    file: Path | None = None  # that says it

    @property
    def path(self) -> Path_:
        """Where the value belongs in `TrainConfig`."""
        first, *rest = self.key.split(".")
        return (OPTIONS[first], *rest) if rest and first in OPTIONS else (first, *rest)


@dataclass(frozen=True)
class Key:
    """What is known of a key: the type of its value and what it means."""

    annotation: Any
    description: str = ""

    @property
    def types(self) -> tuple[Any, ...]:
        """The members of a union, or the type itself; without `Annotated`."""
        plain = get_args(self.annotation)[0] if get_origin(self.annotation) is Annotated else self.annotation
        return get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)

    @property
    def is_number(self) -> bool:
        return set(self.types) <= {int, float, NoneType}

    @property
    def is_text(self) -> bool:
        return set(self.types) <= {str, Path, NoneType}

    @property
    def is_table(self) -> bool:
        return any(kind is Any or kind is dict or get_origin(kind) is dict for kind in self.types)

    @property
    def section(self) -> type[BaseModel] | None:
        """The model whose fields are the keys below this one, or None."""
        models = [kind for kind in self.types if isinstance(kind, type) and issubclass(kind, BaseModel)]
        return models[0] if models else None


Keys = dict[Path_, Key]
MOST_LISTED = 16  # keys of a section that a message about an unknown one names


def load_settings(
    *,
    file: Path | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> tuple[TrainConfig, dict[str, str]]:
    """The settings of a run, and for every key where its value came from.

    Args:
        file: TOML, JSON, or the `run.json` of an earlier run (whose run directory is not taken over).
        sets: `key=value`, later ones win.
        flags: key -> value of command-line flags.
        environ: environment variables; others than `ADAPTIVE_*` are left alone.
        flag_names: key -> flag as it was typed, for messages.

    Raises:
        ConfigError: names every unknown key and bad value, where it came from, and what is allowed; or code that only
            `file` names and that is not installed, which is not loaded.
        PolicyError: if everything else is right and the policy cannot be loaded.
    """
    problems: list[str] = []
    given = [*_from_file(file), *_from_environment(environ or {}), *_from_sets(sets, problems)]
    given += _from_flags(flags or {}, flag_names or {})
    given = [*_from_preset(given, problems), *given]
    given = [*_from_model(given), *given]
    _refuse_code_of_files(given)
    keys, policy_error = _known_keys(given)
    chosen = _choose(given, keys, problems)
    config = _validated(chosen, keys, problems)
    if problems:
        raise ConfigError(_report([*problems, *([str(policy_error)] if policy_error else [])]))
    if policy_error:
        raise policy_error
    assert config is not None
    return config, _origins(config, chosen)


def parse_text(text: str) -> Any:
    """A TOML value (number, true, quoted text, list ...), None for `null`, else the text itself."""
    text = text.strip()
    if text == "null":
        return None
    try:
        found = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = found["value"]
    return value if len(found) == 1 and isinstance(value, bool | int | float | str | list | dict) else text


# -- sources, each a list of what was given ------------------------------------------------------------------------


def _from_preset(given: Sequence[Given], problems: list[str]) -> list[Given]:
    """What the preset says that is named last."""
    from adaptive.models.paper_presets import PRESETS

    named = next((one for one in reversed(given) if one.path == ("preset",)), None)
    if named is None or named.value is None:
        return []
    name = str(named.value)
    if name not in PRESETS:
        allowed = f"{', '.join(PRESETS)}{suggestion(name, PRESETS)}"
        problems.append(f"preset ({named.origin}): found {name!r}; allowed: {allowed}")
        return []
    return [Given(key, value, f"preset {name}") for key, value in PRESETS[name].settings.items()]


def _from_model(given: Sequence[Given]) -> list[Given]:
    """The data that the model trains on where none are given, if they are not those of the default."""
    from adaptive.models.model_settings import BUILT_IN_DATA

    name = _last(given, "model")
    return [Given(key, value, f"model {name}") for key, value in BUILT_IN_DATA.get(name or "", {}).items()]


def _refuse_code_of_files(given: Sequence[Given]) -> None:
    """A file's settings name no code but the installed, unless something else names it, too."""
    for key in CODE_SETTINGS:
        found = [one for one in given if ".".join(one.path) == key and one.value is not None]
        if found and found[-1].file is not None:
            refuse_unnamed(key, str(found[-1].value), where=str(found[-1].file))


def _last(given: Sequence[Given], key: str) -> str | None:
    """The text that counts for a key without a dot, or None where nobody gives one."""
    return next((str(one.text or one.value) for one in reversed(given) if one.path == (key,)), None)


def _from_file(file: Path | None) -> list[Given]:
    if file is None:
        return []
    content = _read(file)
    if isinstance(content.get("config"), dict):
        content = {key: value for key, value in content["config"].items() if key != "out"}
    return [Given(key, _null(value), f"{file}:{key}", file=file) for key, value in leaves(content)]


def _read(file: Path) -> dict[str, Any]:
    if not os.path.exists(file):  # which takes names that the system refuses, too
        raise ConfigError(f"configuration file {file} not found; give a .toml or .json file with --config")
    what, is_json = f"configuration file {file}", file.suffix == ".json"
    raw = read_plain(file, error=ConfigError, follow=True)
    try:
        text = raw.decode("utf-8")
        content = json.loads(text) if is_json else tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} is not {'JSON' if is_json else 'TOML'}: {error}") from error
    check_depth(content, what, error=ConfigError)
    if isinstance(content, dict) and isinstance(content.get("config"), dict) and DIGEST in content:
        where = f"{what} (to use changed settings, give its `config` in a file of its own)"
        check_signature(raw, content[DIGEST], where, error=ConfigError)
    if not isinstance(content, dict):
        raise ConfigError(f"configuration file {file}: found a {type(content).__name__}, needed an object of keys")
    return content


def _from_environment(environ: Mapping[str, str]) -> list[Given]:
    names = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in NOT_SETTINGS]
    return [
        Given(
            name.removeprefix(PREFIX).lower().replace("__", "."),
            parse_text(environ[name]),
            f"environment {name}",
            environ[name],
        )
        for name in names
        if environ[name]
    ]


def _from_sets(sets: Sequence[str], problems: list[str]) -> list[Given]:
    given = []
    for text in sets:
        key, equals, value = text.partition("=")
        if equals and key.strip():
            given.append(Given(key.strip(), parse_text(value), "--set", value))
        else:
            problems.append(f"--set {text!r}: needed key=value, for example --set tier.device_rows=10%")
    return given


def _from_flags(flags: Mapping[str, Any], names: Mapping[str, str]) -> list[Given]:
    return [
        Given(key, parse_text(value), f"flag {names.get(key, '')}".rstrip(), value)
        if isinstance(value, str)
        else Given(key, value, f"flag {names.get(key, '')}".rstrip())
        for key, value in flags.items()
    ]


def leaves(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested settings."""
    for name, value in content.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


def _null(value: Any) -> Any:
    return None if value == "null" else value


# -- what keys there are -------------------------------------------------------------------------------------------


def _known_keys(given: Sequence[Given]) -> tuple[Keys, PolicyError | None]:
    """All keys, those of the chosen policy's parameters included, or why that policy cannot be loaded."""
    keys = dict(_model_keys(TrainConfig))
    for name, model in _option_models(_last(given, "model")).items():
        keys.update(_model_keys(model, (name,)))
    found = _last(given, "policy")
    spec = TrainConfig.model_fields["policy"].default if found is None else found
    try:
        parameters = policy_parameters(load_policy_class(spec))
    except PolicyError as error:
        keys[("policy_options",)] = Key(dict[str, Any])
        return keys, error
    for name, parameter in parameters.items():
        known = parameter.annotation is not inspect.Parameter.empty
        keys["policy_options", name] = Key(parameter.annotation if known else Any)
    return keys, None


def _option_models(
    model: object, problems: list[str] | None = None, chosen: Mapping[Path_, Given] = MappingProxyType({})
) -> dict[str, type[BaseModel]]:
    """Of a model that does not exist the default's: its name is a mistake of its own, and goes to `problems`."""
    from adaptive.data.data_options import DataOptions
    from adaptive.models.model_settings import OPTIONS
    from adaptive.plugins import installed_models

    default = TrainConfig.model_fields["model"].default
    name = default if model is None else str(model)
    options: type[BaseModel] = OPTIONS.get(name, OPTIONS[default])
    if ":" in name or name in installed_models():
        from adaptive.models.factory import options_of

        options = options_of(name)
    elif name not in OPTIONS and problems is not None:
        allowed = ", ".join([*OPTIONS, *installed_models()])
        origin = f" ({chosen[('model',)].origin})" if ("model",) in chosen else ""
        hint = suggestion(name, OPTIONS)
        problems.append(f"model{origin}: found {name!r}; allowed: {allowed}, module:Class or file.py:Class{hint}")
    return {"data_options": DataOptions, "model_options": options}


def _model_keys(model: type[BaseModel], above: Path_ = ()) -> Iterator[tuple[Path_, Key]]:
    for name, field in model.model_fields.items():
        key = Key(field.annotation, field.description or "")
        if name not in OPTIONS.values():
            yield (*above, name), key
        if key.section:
            yield from _model_keys(key.section, (*above, name))


def _name(path: Path_) -> str:
    """The key as users write it: `policy.decay`, not `policy_options.decay`."""
    short = {long: short for short, long in OPTIONS.items()}
    return ".".join((short.get(path[0], path[0]), *path[1:]))


# -- which of the given values count -------------------------------------------------------------------------------


def _choose(given: Sequence[Given], keys: Keys, problems: list[str]) -> dict[Path_, Given]:
    chosen: dict[Path_, Given] = {}
    for one in given:
        path = one.path
        known = _key_of(path, keys)
        if known is None or (known.section and one.value is not None):
            problems.append(f"{one.key} ({one.origin}): {_no_key(one, keys)}")
            continue
        for other in [p for p in chosen if p[: len(path)] == path or path[: len(p)] == p]:
            del chosen[other]
        chosen[path] = _as_text(one) if known.is_text and not isinstance(one.value, str | NoneType) else one
    for path, one in list(chosen.items()):
        if isinstance(one.value, bool) and path in keys and keys[path].is_number:  # pydantic takes true for 1
            problems.append(f"{one.key} ({one.origin}): found {one.value!r}; allowed: a number")
            del chosen[path]
    return chosen


def _key_of(path: Path_, keys: Keys) -> Key | None:
    """The key itself, or the table it lies in."""
    tables = (keys.get(path[:length]) for length in range(1, len(path)))
    return keys.get(path) or next((key for key in tables if key and key.is_table), None)


def _as_text(one: Given) -> Given:
    return Given(one.key, one.text.strip(), one.origin, one.text) if one.text is not None else one


def _no_key(one: Given, keys: Keys) -> str:
    """Why a key cannot be given a value: there is none of that name, or it is a section."""
    if one.path in keys:
        return f"found {one.value!r}; it is a section, allowed: {_names_below(one.path, keys)}"
    if len(one.path) == 1:
        return f"unknown key{suggestion(one.key, map(_name, keys))}"
    below = _names_below(one.path[:1], keys)
    if one.key.startswith("policy."):
        own = [name.removeprefix("policy.") for name in below.split(", ") if name.startswith("policy.")]
        name = one.key.removeprefix("policy.")
        return f"the policy has no parameter {name}; it has: {', '.join(own) or 'none'}{suggestion(name, own)}"
    names, section = below.split(", "), one.key.partition(".")[0]
    near = suggestion(one.key, names)
    if len(names) <= MOST_LISTED:
        return f"unknown key{near or ';'} {section} has {below}"
    return f"unknown key{near or f'; {section} has {len(names)} keys, which `adaptive-train config` lists'}"


def _names_below(section: Path_, keys: Keys) -> str:
    names = [_name(path) for path in keys if len(path) > len(section) and path[: len(section)] == section]
    return ", ".join(names) or "no keys below it"


def _validated(chosen: Mapping[Path_, Given], keys: Keys, problems: list[str]) -> TrainConfig | None:
    tree = _tree(chosen)
    for name, model in _option_models(tree.get("model"), problems, chosen).items():
        _check(model, tree.get(name, {}), (name,), (chosen, keys, problems))
    for path in [path for path in keys if path[0] == "policy_options" and len(path) == 2]:
        if path[1] in tree.get("policy_options", {}):
            _check(keys[path].annotation, tree["policy_options"][path[1]], path, (chosen, keys, problems))
    config: TrainConfig | None = _check(TrainConfig, tree, (), (chosen, keys, problems))
    return config


def _check(kind: Any, value: Any, above: Path_, book: tuple[Mapping[Path_, Given], Keys, list[str]]) -> Any:
    """The value as `kind`; where it is none, None and a line per mistake in the list."""
    chosen, keys, problems = book
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as errors:
        lines = [_problem(error, (*above, *map(str, error["loc"])), chosen, keys) for error in errors.errors()]
        problems.extend(dict.fromkeys(lines))
        return None


def _tree(chosen: Mapping[Path_, Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, one in chosen.items():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = one.value
    return tree


# -- what the user reads -------------------------------------------------------------------------------------------


def _problem(error: ErrorDetails, loc: Path_, chosen: Mapping[Path_, Given], keys: Keys) -> str:
    reason = re.sub("^(Value error, |Input should be )", "", error["msg"])
    if error["type"] != "value_error":
        reason = f"allowed: {re.split(', (?:unable|got) ', reason)[0]}"
    path = next((path for path in chosen if loc[: len(path)] == path), None)
    if path is None:  # values of a section that do not go together
        given = [f"{one.key} ({one.origin})" for path, one in chosen.items() if path[: len(loc)] == loc]
        return f"{', '.join(given) or _name(loc)}: {reason}"
    one, key = chosen[path], keys.get(path, Key(Any))
    about = f" ({key.description})" if key.description else ""
    allowed = error.get("ctx", {}).get("expected", "") if error["type"] == "literal_error" else ""
    hint = suggestion(str(one.value), re.findall("'([^']*)'", allowed))
    return f"{one.key} ({one.origin}): found {one.value!r}; {reason}{about}{hint}"


def _report(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n  ".join([f"{len(problems)} settings cannot be used:", *problems])


def _origins(config: TrainConfig, chosen: Mapping[Path_, Given]) -> dict[str, str]:
    origins = {key: "default" for key, _ in leaves(config.model_dump())}
    return origins | {".".join(path): one.origin for path, one in chosen.items()}
