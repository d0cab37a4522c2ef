"""Read settings from all sources, and report all mistakes at once.

Precedence: flag > --set > environment > file > preset > default.

A key is dotted (`tier.device_rows`). `policy.NAME`, `data.NAME` and `model.NAME` are options of the policy, the data
and the model. An environment variable is `ADAPTIVE_` and the key in capitals, with `__` for the dot
(`ADAPTIVE_TIER__DEVICE_ROWS`). Text from `--set` and the environment is parsed as a TOML value if possible; `null` is
None. One default depends on another setting: a model of sequences trains on the built-in stream of sequences.
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
from adaptive.plugins import (
    CODE_SETTINGS,
    PARAMETER,
    load_policy_class,
    parse_policy,
    policy_parameters,
    refuse_unnamed,
)
from adaptive.storage.files import MOST_BYTES, read_file

PREFIX = "ADAPTIVE_"
NOT_SETTINGS = {"ADAPTIVE_VENV", "ADAPTIVE_DATA", "ADAPTIVE_UPDATE_GOLDEN"}  # for scripts, tests and benchmarks
OPTIONS = {"policy": "policy_options", "data": "data_options", "model": "model_options"}

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A value for a key from one source."""

    key: str  # as the user wrote it
    value: Any
    origin: str
    text: str | None = None  # before parsing, from sources of text
    file: Path | None = None  # the source, if it is a file

    @property
    def path(self) -> Path_:
        """The path of the value in `TrainConfig`."""
        first, *rest = self.key.split(".")
        return (OPTIONS[first], *rest) if rest and first in OPTIONS else (first, *rest)


@dataclass(frozen=True)
class Key:
    """The type and the meaning of a key's value."""

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
        """The pydantic model of the keys below this one, or None."""
        models = [kind for kind in self.types if isinstance(kind, type) and issubclass(kind, BaseModel)]
        return models[0] if models else None


Keys = dict[Path_, Key]
MOST_LISTED = 16  # keys of a section that a message lists


def load_settings(
    *,
    file: Path | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> tuple[TrainConfig, dict[str, str]]:
    """Return the settings of a run, and for every key the origin of its value.

    Args:
        file: TOML, JSON, or the `run.json` of an earlier run (its `out` is ignored).
        sets: `key=value`; later ones win.
        flags: key -> value of command-line flags.
        environ: environment variables; only `ADAPTIVE_*` are read.
        flag_names: key -> flag as the user typed it, for messages.

    Raises:
        ConfigError: lists every unknown key and bad value with its origin and the allowed values. Also for code that
            only `file` names and that is not installed: it is not loaded.
        PolicyError: if only the policy cannot be loaded.
    """
    problems: list[str] = []
    entries = [*_from_file(file), *_from_environment(environ or {}), *_from_sets(sets, problems)]
    entries += _from_flags(flags or {}, flag_names or {})
    entries = [*_from_preset(entries, problems), *entries]
    entries = [*_from_model(entries), *entries]
    _refuse_code_of_files(entries)  # before the policy is loaded
    entries = _split_policy(entries, problems)
    _refuse_code_of_files(entries)  # the skip rule that came with the policy
    keys, policy_error = _known_keys(entries)
    chosen = _choose(entries, keys, problems)
    config = _validated(chosen, keys, problems)
    if problems:
        problems += [str(policy_error)] if policy_error else []
        many = [f"{len(problems)} settings are invalid:"] if len(problems) > 1 else []
        raise ConfigError("\n  ".join([*many, *problems]))
    if policy_error:
        raise policy_error
    assert config is not None
    origins = {key: "default" for key, _ in leaves(config.model_dump())}
    return config, origins | {".".join(path): entry.origin for path, entry in chosen.items()}


def parse_text(text: str) -> Any:
    """Parse a TOML value; return None for `null`, and other text unchanged."""
    text = text.strip()
    if text == "null":
        return None
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = table["value"]
    return value if len(table) == 1 and isinstance(value, bool | int | float | str | list | dict) else text


# -- sources: each returns its entries -----------------------------------------------------------------------------


def _from_preset(entries: Sequence[Entry], problems: list[str]) -> list[Entry]:
    """Entries of the preset that was named last."""
    from adaptive.models.paper_presets import PRESETS

    named = next((entry for entry in reversed(entries) if entry.path == ("preset",)), None)
    if named is None or named.value is None:
        return []
    name = str(named.value)
    if name not in PRESETS:
        hint = suggestion(name, PRESETS)
        problems.append(f"preset ({named.origin}): expected one of {', '.join(PRESETS)}, got {name!r}{hint}")
        return []
    return [Entry(key, value, f"preset {name}") for key, value in PRESETS[name].settings.items()]


def _from_model(entries: Sequence[Entry]) -> list[Entry]:
    """The default data of the model, if they differ from the default of all models."""
    from adaptive.models.model_settings import BUILT_IN_DATA

    name = _last(entries, "model")
    return [Entry(key, value, f"model {name}") for key, value in BUILT_IN_DATA.get(name or "", {}).items()]


def _refuse_code_of_files(entries: Sequence[Entry]) -> None:
    """Refuse code that only a file names, unless it is installed."""
    for key in CODE_SETTINGS:
        latest = next(
            (entry for entry in reversed(entries) if ".".join(entry.path) == key and entry.value is not None), None
        )
        if latest is not None and latest.file is not None:
            refuse_unnamed(key, str(latest.value), where=str(latest.file))


def _split_policy(entries: Sequence[Entry], problems: list[str]) -> list[Entry]:
    """Replace the last policy with parameters, such as `lfu+skip=defer`, by an entry for each of its settings."""
    place = max((number for number, entry in enumerate(entries) if entry.path == ("policy",)), default=None)
    if place is None or not PARAMETER.search(name := str(entries[place].text or entries[place].value)):
        return [*entries]
    entry = entries[place]
    plain = replace(entry, value=PARAMETER.split(name)[0], text=None)
    try:
        _, parameters, rule = parse_policy(name)
    except ConfigError as error:
        problems.append(f"policy ({entry.origin}): {error}")
        parameters, rule = {}, None
    except PolicyError:  # reported with the other mistakes when its parameters are looked up
        parameters, rule = {}, None
    texts = {f"policy.{key}": text for key, text in parameters.items()} | ({"skip.rule": rule} if rule else {})
    more = [Entry(key, parse_text(text), f"{entry.origin} {name}", text, entry.file) for key, text in texts.items()]
    return [*entries[:place], plain, *more, *entries[place + 1 :]]


def _last(entries: Sequence[Entry], key: str) -> str | None:
    """The last text for a key without a dot, or None."""
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
    if not os.path.exists(file):  # False also for names that the system refuses
        raise ConfigError(f"configuration file {file} not found. Pass a .toml or .json file with --config")
    name, is_json = f"configuration file {file}", file.suffix == ".json"
    raw = read_file(file, most=None if is_json else MOST_BYTES, error=ConfigError)
    try:
        text = raw.decode("utf-8")
        content = json.loads(text) if is_json else tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"expected UTF-8 text, got {error} ({name})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expected {'JSON' if is_json else 'TOML'}, got {error} ({name})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"expected an object of keys, got a {type(content).__name__} ({name})")
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
            problems.append(f"--set: expected key=value, such as tier.device_rows=10%, got {text!r}")
    return entries


def _from_flags(flags: Mapping[str, object], names: Mapping[str, str]) -> list[Entry]:
    flags = {key: flags[key] for key in sorted(flags, key=lambda key: key == "policy")}  # last: `lfu+skip=RULE` wins
    origins = {key: f"flag {names.get(key, '')}".rstrip() for key in flags}
    return [
        Entry(key, parse_text(value), origins[key], value)
        if isinstance(value, str)
        else Entry(key, value, origins[key])
        for key, value in flags.items()
    ]


def leaves(content: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted keys and values of nested settings."""
    for name, value in content.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


# -- keys ----------------------------------------------------------------------------------------------------------


def _known_keys(entries: Sequence[Entry]) -> tuple[Keys, PolicyError | None]:
    """Return all keys, and the error if the policy cannot be loaded."""
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
    """Return the option models of data and model; an unknown model adds a problem."""
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
        expected = f"expected one of {allowed}, module:Class or file.py:Class"
        problems.append(f"model{origin}: {expected}, got {name!r}{suggestion(name, OPTIONS)}")
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


# -- resolution ----------------------------------------------------------------------------------------------------


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
        if isinstance(entry.value, bool) and path in keys and keys[path].is_number:  # pydantic reads true as 1
            problems.append(f"{entry.key} ({entry.origin}): expected a number, got {entry.value!r}")
            del chosen[path]
    return chosen


def _no_key(entry: Entry, keys: Keys) -> str:
    """Explain why a key cannot have a value: it is unknown, or a section."""
    if entry.path in keys:
        allowed = ", ".join(_names_below(entry.path, keys))
        return f"expected one of its keys ({allowed}), got {entry.value!r} for the section"
    if len(entry.path) == 1:
        return f"unknown key{suggestion(entry.key, map(_name, keys))}"
    below = _names_below(entry.path[:1], keys)
    if entry.key.startswith("policy."):
        names = [name.removeprefix("policy.") for name in below if name.startswith("policy.")]
        name = entry.key.removeprefix("policy.")
        return f"the policy has no parameter {name}; it has: {', '.join(names) or 'none'}{suggestion(name, names)}"
    section, near = entry.key.partition(".")[0], suggestion(entry.key, below)
    if len(below) <= MOST_LISTED:
        return f"unknown key{near or ';'} {section} has {', '.join(below) or 'no keys below it'}"
    return f"unknown key{near or f'; list the {len(below)} keys of {section} with adaptive-train config {section}'}"


def _names_below(section: Path_, keys: Keys) -> list[str]:
    return [_name(path) for path in keys if len(path) > len(section) and path[: len(section)] == section]


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
    """Return the value as `kind`; for mistakes return None and add lines to `book`."""
    chosen, keys, problems = book
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as errors:
        lines = [_problem(error, loc, chosen, keys) for loc, error in _one_each(errors, above, chosen).items()]
        problems.extend(dict.fromkeys(lines))
        return None


def _one_each(errors: ValidationError, above: Path_, chosen: Mapping[Path_, Entry]) -> dict[Path_, ErrorDetails]:
    """Return one mistake for a value that no member of a union takes; pydantic has one for each member."""
    mistakes: dict[Path_, ErrorDetails] = {}
    for error in errors.errors():
        loc = (*above, *map(str, error["loc"]))
        entry = chosen.get(loc[:-1])
        if entry is None or entry.value is not error["input"]:
            mistakes[loc] = error
        elif (other := mistakes.setdefault(loc[:-1], error)) is not error:
            other["msg"] = f"{_short(other['msg'])} or {error['msg'].removeprefix(_SHOULD)}"
    return mistakes


def _tree(chosen: Mapping[Path_, Entry]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, entry in chosen.items():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = entry.value
    return tree


# -- messages ------------------------------------------------------------------------------------------------------


_SHOULD = "Input should be "


def _short(message: str) -> str:
    """Return pydantic's message without the value."""
    return re.split(", (?:unable|got) ", message)[0]


def _problem(error: ErrorDetails, loc: Path_, chosen: Mapping[Path_, Entry], keys: Keys) -> str:
    """Return a line for a mistake: key, origin, expected and actual value, hint."""
    reason, is_general = error["msg"].removeprefix("Value error, "), error["msg"].startswith(_SHOULD)
    if is_general:
        reason = _short(reason.removeprefix(_SHOULD))
        reason = f"expected {'a value ' * reason.startswith(('greater', 'less'))}{reason}"
    if error["type"] == "extra_forbidden":  # below a table
        reason = "unknown key"
    path = next((path for path in chosen if loc[: len(path)] == path), None)
    if path is None:  # several values that contradict each other
        entries = [f"{entry.key} ({entry.origin})" for path, entry in chosen.items() if path[: len(loc)] == loc]
        return f"{', '.join(entries) or _name(loc)}: {reason}"
    entry, key = chosen[path], keys.get(path, Key(Any))
    about = f" ({key.description})" if key.description else ""
    allowed = error.get("ctx", {}).get("expected", "") if error["type"] == "literal_error" else ""
    hint = suggestion(str(entry.value), re.findall("'([^']*)'", allowed))
    got = "" if ", got " in reason else f", got {entry.value!r}"
    return f"{entry.key} ({entry.origin}): {reason}{got}{about}{hint}"
