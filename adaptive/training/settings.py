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
from dataclasses import dataclass, replace
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
class Entry:
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
    flags: Mapping[str, object] | None = None,
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
    entries = [*_from_file(file), *_from_environment(environ or {}), *_from_sets(sets, problems)]
    entries += _from_flags(flags or {}, flag_names or {})
    entries = [*_from_preset(entries, problems), *entries]
    entries = [*_from_model(entries), *entries]
    _refuse_code_of_files(entries)
    keys, policy_error = _known_keys(entries)
    chosen = _choose(entries, keys, problems)
    config = _validated(chosen, keys, problems)
    if problems:
        problems += [str(policy_error)] if policy_error else []
        many = [f"{len(problems)} settings cannot be used:"] if len(problems) > 1 else []
        raise ConfigError("\n  ".join([*many, *problems]))
    if policy_error:
        raise policy_error
    assert config is not None
    origins = {key: "default" for key, _ in leaves(config.model_dump())}
    return config, origins | {".".join(path): entry.origin for path, entry in chosen.items()}


def parse_text(text: str) -> Any:
    """A TOML value (number, true, quoted text, list ...), None for `null`, else the text itself."""
    text = text.strip()
    if text == "null":
        return None
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = table["value"]
    return value if len(table) == 1 and isinstance(value, bool | int | float | str | list | dict) else text


# -- sources, each a list of what was given ------------------------------------------------------------------------


def _from_preset(entries: Sequence[Entry], problems: list[str]) -> list[Entry]:
    """What the preset says that is named last."""
    from adaptive.models.paper_presets import PRESETS

    named = next((entry for entry in reversed(entries) if entry.path == ("preset",)), None)
    if named is None or named.value is None:
        return []
    name = str(named.value)
    if name not in PRESETS:
        allowed = f"{', '.join(PRESETS)}{suggestion(name, PRESETS)}"
        problems.append(f"preset ({named.origin}): found {name!r}; allowed: {allowed}")
        return []
    return [Entry(key, value, f"preset {name}") for key, value in PRESETS[name].settings.items()]


def _from_model(entries: Sequence[Entry]) -> list[Entry]:
    """The data that the model trains on where none are given, if they are not those of the default."""
    from adaptive.models.model_settings import BUILT_IN_DATA

    name = _last(entries, "model")
    return [Entry(key, value, f"model {name}") for key, value in BUILT_IN_DATA.get(name or "", {}).items()]


def _refuse_code_of_files(entries: Sequence[Entry]) -> None:
    """A file's settings name no code but the installed, unless something else names it, too."""
    for key in CODE_SETTINGS:
        latest = next(
            (entry for entry in reversed(entries) if ".".join(entry.path) == key and entry.value is not None), None
        )
        if latest is not None and latest.file is not None:
            refuse_unnamed(key, str(latest.value), where=str(latest.file))


def _last(entries: Sequence[Entry], key: str) -> str | None:
    """The text that counts for a key without a dot, or None where nobody gives one."""
    return next((str(entry.text or entry.value) for entry in reversed(entries) if entry.path == (key,)), None)


def _from_file(file: Path | None) -> list[Entry]:
    if file is None:
        return []
    content = _read(file)
    if isinstance(config := content.get("config"), dict):
        content = {key: value for key, value in config.items() if key != "out"}
    entries = ((key, None if value == "null" else value) for key, value in leaves(content))
    return [Entry(key, value, f"{file}:{key}", file=file) for key, value in entries]


def _read(file: Path) -> dict[str, object]:
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


def _from_environment(environ: Mapping[str, str]) -> list[Entry]:
    names = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in NOT_SETTINGS and environ[name]]
    keys = [name.removeprefix(PREFIX).lower().replace("__", ".") for name in names]
    return [
        Entry(key, parse_text(environ[name]), f"environment {name}", environ[name])
        for key, name in zip(keys, names, strict=True)
    ]


def _from_sets(sets: Sequence[str], problems: list[str]) -> list[Entry]:
    entries = []
    for text in sets:
        key, equals, value = text.partition("=")
        if equals and key.strip():
            entries.append(Entry(key.strip(), parse_text(value), "--set", value))
        else:
            problems.append(f"--set {text!r}: needed key=value, for example --set tier.device_rows=10%")
    return entries


def _from_flags(flags: Mapping[str, object], names: Mapping[str, str]) -> list[Entry]:
    origins = {key: f"flag {names.get(key, '')}".rstrip() for key in flags}
    return [
        Entry(key, parse_text(value), origins[key], value)
        if isinstance(value, str)
        else Entry(key, value, origins[key])
        for key, value in flags.items()
    ]


def leaves(content: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Dotted keys and values of nested settings."""
    for name, value in content.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


# -- what keys there are -------------------------------------------------------------------------------------------


def _known_keys(entries: Sequence[Entry]) -> tuple[Keys, PolicyError | None]:
    """All keys, those of the chosen policy's parameters included, or why that policy cannot be loaded."""
    keys = dict(_model_keys(TrainConfig))
    for name, model in _option_models(_last(entries, "model")).items():
        keys.update(_model_keys(model, (name,)))
    named = _last(entries, "policy")
    spec = TrainConfig.model_fields["policy"].default if named is None else named
    try:
        parameters = policy_parameters(load_policy_class(spec))
    except PolicyError as error:
        keys[("policy_options",)] = Key(dict[str, Any])
        return keys, error
    for name, parameter in parameters.items():
        annotated = parameter.annotation is not inspect.Parameter.empty
        keys["policy_options", name] = Key(parameter.annotation if annotated else Any)
    return keys, None


def _option_models(
    model: object, problems: list[str] | None = None, chosen: Mapping[Path_, Entry] = MappingProxyType({})
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


def _choose(entries: Sequence[Entry], keys: Keys, problems: list[str]) -> dict[Path_, Entry]:
    chosen: dict[Path_, Entry] = {}
    for entry in entries:
        path, text = entry.path, entry.text
        tables = (keys.get(path[:length]) for length in range(1, len(path)))
        key = keys.get(path) or next((table for table in tables if table and table.is_table), None)
        if key is None or (key.section and entry.value is not None):
            problems.append(f"{entry.key} ({entry.origin}): {_no_key(entry, keys)}")
            continue
        for other in [p for p in chosen if p[: len(path)] == path or path[: len(p)] == p]:
            del chosen[other]
        if key.is_text and text is not None and not isinstance(entry.value, str | NoneType):
            entry = replace(entry, value=text.strip())
        chosen[path] = entry
    for path, entry in list(chosen.items()):
        if isinstance(entry.value, bool) and path in keys and keys[path].is_number:  # pydantic takes true for 1
            problems.append(f"{entry.key} ({entry.origin}): found {entry.value!r}; allowed: a number")
            del chosen[path]
    return chosen


def _no_key(entry: Entry, keys: Keys) -> str:
    """Why a key cannot be given a value: there is none of that name, or it is a section."""
    if entry.path in keys:
        return f"found {entry.value!r}; it is a section, allowed: {_names_below(entry.path, keys)}"
    if len(entry.path) == 1:
        return f"unknown key{suggestion(entry.key, map(_name, keys))}"
    below = _names_below(entry.path[:1], keys)
    if entry.key.startswith("policy."):
        names = [name.removeprefix("policy.") for name in below.split(", ") if name.startswith("policy.")]
        name = entry.key.removeprefix("policy.")
        return f"the policy has no parameter {name}; it has: {', '.join(names) or 'none'}{suggestion(name, names)}"
    names, section = below.split(", "), entry.key.partition(".")[0]
    near = suggestion(entry.key, names)
    if len(names) <= MOST_LISTED:
        return f"unknown key{near or ';'} {section} has {below}"
    return f"unknown key{near or f'; {section} has {len(names)} keys, which `adaptive-train config` lists'}"


def _names_below(section: Path_, keys: Keys) -> str:
    names = [_name(path) for path in keys if len(path) > len(section) and path[: len(section)] == section]
    return ", ".join(names) or "no keys below it"


def _validated(chosen: Mapping[Path_, Entry], keys: Keys, problems: list[str]) -> TrainConfig | None:
    tree = _tree(chosen)
    for name, model in _option_models(tree.get("model"), problems, chosen).items():
        _check(model, tree.get(name, {}), (name,), (chosen, keys, problems))
    for path in [path for path in keys if path[0] == "policy_options" and len(path) == 2]:
        if path[1] in tree.get("policy_options", {}):
            _check(keys[path].annotation, tree["policy_options"][path[1]], path, (chosen, keys, problems))
    config: TrainConfig | None = _check(TrainConfig, tree, (), (chosen, keys, problems))
    return config


def _check(kind: Any, value: Any, above: Path_, book: tuple[Mapping[Path_, Entry], Keys, list[str]]) -> Any:
    """The value as `kind`; where it is none, None and a line per mistake in the list."""
    chosen, keys, problems = book
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as errors:
        lines = [_problem(error, (*above, *map(str, error["loc"])), chosen, keys) for error in errors.errors()]
        problems.extend(dict.fromkeys(lines))
        return None


def _tree(chosen: Mapping[Path_, Entry]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, entry in chosen.items():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = entry.value
    return tree


# -- what the user reads -------------------------------------------------------------------------------------------


def _problem(error: ErrorDetails, loc: Path_, chosen: Mapping[Path_, Entry], keys: Keys) -> str:
    reason = re.sub("^(Value error, |Input should be )", "", error["msg"])
    if error["type"] != "value_error":
        reason = f"allowed: {re.split(', (?:unable|got) ', reason)[0]}"
    path = next((path for path in chosen if loc[: len(path)] == path), None)
    if path is None:  # values of a section that do not go together
        entries = [f"{entry.key} ({entry.origin})" for path, entry in chosen.items() if path[: len(loc)] == loc]
        return f"{', '.join(entries) or _name(loc)}: {reason}"
    entry, key = chosen[path], keys.get(path, Key(Any))
    about = f" ({key.description})" if key.description else ""
    allowed = error.get("ctx", {}).get("expected", "") if error["type"] == "literal_error" else ""
    hint = suggestion(str(entry.value), re.findall("'([^']*)'", allowed))
    return f"{entry.key} ({entry.origin}): found {entry.value!r}; {reason}{about}{hint}"
