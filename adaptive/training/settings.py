"""Read settings from all sources, and report all mistakes at once.

Precedence: flag > --set > environment > file > preset > default.

A key is dotted (`tier.device_rows`). `policy.NAME`, `data.NAME` and `model.NAME` are options of the policy, the data
and the model. An environment variable is `ADAPTIVE_` and the key in capitals, with `__` for the dot
(`ADAPTIVE_TIER__DEVICE_ROWS`). Text from `--set` and the environment is parsed as a TOML value if possible; `null` is
None. One default depends on another setting: a model of sequences trains on the built-in stream of sequences.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from adaptive.config import TrainConfig, reason
from adaptive.errors import ConfigError, PolicyError, suggestion
from adaptive.plugins import CODE_SETTINGS, PARAMETER, checked_options, load_policy_class, parse_policy, refuse_unnamed
from adaptive.storage.files import read_file

PREFIX: Final = "ADAPTIVE_"
NOT_SETTINGS: Final = {"ADAPTIVE_VENV", "ADAPTIVE_DATA", "ADAPTIVE_UPDATE_GOLDEN"}  # for scripts, tests and benchmarks
OPTIONS: Final = {"policy": "policy_options", "data": "data_options", "model": "model_options"}

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A value for a key from one source."""

    key: str  # as the user wrote it
    value: Any
    origin: str
    file: Path | None = None  # the source, if it is a file

    @property
    def path(self) -> Path_:
        """The path of the value in `TrainConfig`."""
        first, *rest = self.key.split(".")
        return (OPTIONS[first], *rest) if rest and first in OPTIONS else (first, *rest)


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
    tree, chosen = _merged(entries)
    policy_error = _check_policy(tree, problems)
    config = _validated(tree, chosen, problems)
    if problems:
        problems += [str(policy_error)] if policy_error else []
        many = [f"{len(problems)} settings are invalid:"] if len(problems) > 1 else []
        raise ConfigError("\n  ".join([*many, *problems]))
    if policy_error:
        raise policy_error
    assert config is not None
    origins = {".".join(path): entry.origin for path, entry in chosen.items()}
    return config, {key: "default" for key, _ in leaves(config.model_dump())} | origins


def parse_text(text: str) -> Any:
    """Parse a TOML value; return None for `null`, and other text unchanged.

    A number that would be written in another way, such as 2024_01, may be a name, and stays text: pydantic reads it.
    """
    text = text.strip()
    if text == "null":
        return None
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = table["value"]
    if len(table) > 1 or not isinstance(value, bool | int | float | str | list | dict):
        return text
    is_name = isinstance(value, int | float) and not isinstance(value, bool) and str(value) != text and "e" not in text
    return text if is_name else value


# -- sources: each returns its entries -----------------------------------------------------------------------------


def _from_preset(entries: Sequence[Entry], problems: list[str]) -> list[Entry]:
    """Entries of the preset that was named last."""
    from adaptive.models.paper_presets import PRESETS

    named = _last(entries, "preset")
    if named is None or named.value is None:
        return []
    name = str(named.value)
    if name not in PRESETS:
        hint = suggestion(name, PRESETS)
        problems.append(f"preset ({named.origin}): expected one of {', '.join(PRESETS)}, got {name!r}{hint}")
        return []
    return [Entry(key, value, f"preset {name}") for key, value in PRESETS[name].items()]


def _from_model(entries: Sequence[Entry]) -> list[Entry]:
    """The default data of the model, if they differ from the default of all models."""
    from adaptive.models.model_settings import BUILT_IN_DATA

    if (named := _last(entries, "model")) is None:
        return []
    data = BUILT_IN_DATA.get(str(named.value), {})
    return [Entry(key, value, f"model {named.value}") for key, value in data.items()]


def _refuse_code_of_files(entries: Sequence[Entry]) -> None:
    """Refuse code that only a file names, unless it is installed."""
    for key in CODE_SETTINGS:
        latest = _last([entry for entry in entries if entry.value is not None], key)
        if latest is not None and latest.file is not None:
            refuse_unnamed(key, str(latest.value), where=str(latest.file))


def _split_policy(entries: Sequence[Entry], problems: list[str]) -> list[Entry]:
    """Replace the last policy with parameters, such as `lfu+skip=defer`, by an entry for each of its settings."""
    entry = _last(entries, "policy")
    if entry is None or not PARAMETER.search(name := str(entry.value)):
        return [*entries]
    try:
        _, parameters, rule = parse_policy(name)
    except ConfigError as error:
        problems.append(f"policy ({entry.origin}): {error}")
        parameters, rule = {}, None
    except PolicyError:  # reported with the other mistakes when the policy is loaded
        parameters, rule = {}, None
    texts = {f"policy.{key}": text for key, text in parameters.items()} | ({"skip.rule": rule} if rule else {})
    more = [Entry(key, parse_text(text), f"{entry.origin} {name}", entry.file) for key, text in texts.items()]
    place = next(number for number, other in enumerate(entries) if other is entry)
    return [*entries[:place], replace(entry, value=PARAMETER.split(name)[0]), *more, *entries[place + 1 :]]


def _last(entries: Sequence[Entry], key: str) -> Entry | None:
    """The last entry for a key of `TrainConfig`, or None."""
    return next((entry for entry in reversed(entries) if ".".join(entry.path) == key), None)


def _from_file(file: Path | None) -> list[Entry]:
    if file is None:
        return []
    content = _read(file)
    if isinstance(config := content.get("config"), dict):
        content = {key: value for key, value in config.items() if key != "out"}
    entries = ((key, None if value == "null" else value) for key, value in leaves(content))
    return [Entry(key, value, f"{file}:{key}", file) for key, value in entries]


def _read(file: Path) -> dict[str, object]:
    if not os.path.exists(file):  # False also for names that the system refuses
        raise ConfigError(f"configuration file {file} not found. Pass a .toml or .json file with --config")
    name, is_json = f"configuration file {file}", file.suffix == ".json"
    try:
        text = read_file(file, error=ConfigError).decode("utf-8")
        content = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expected {'JSON' if is_json else 'TOML'}, got {error} ({name})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"expected an object of keys, got a {type(content).__name__} ({name})")
    return content


def _from_environment(environ: Mapping[str, str]) -> list[Entry]:
    names = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in NOT_SETTINGS and environ[name]]
    keys = [name.removeprefix(PREFIX).lower().replace("__", ".") for name in names]
    return [Entry(key, parse_text(environ[name]), f"environment {name}") for key, name in zip(keys, names, strict=True)]


def _from_sets(sets: Sequence[str], problems: list[str]) -> list[Entry]:
    entries = []
    for text in sets:
        key, equals, value = text.partition("=")
        if equals and key.strip():
            entries.append(Entry(key.strip(), parse_text(value), "--set"))
        else:
            problems.append(f"--set: expected key=value, such as tier.device_rows=10%, got {text!r}")
    return entries


def _from_flags(flags: Mapping[str, object], names: Mapping[str, str]) -> list[Entry]:
    keys = sorted(flags, key=lambda key: key == "policy")  # last: `lfu+skip=RULE` wins
    values = {key: parse_text(value) if isinstance(value, str) else value for key, value in flags.items()}
    return [Entry(key, values[key], f"flag {names.get(key, '')}".rstrip()) for key in keys]


def leaves(content: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted keys and values of nested settings."""
    for name, value in content.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            yield from leaves(value, f"{key}.")
        else:
            yield key, value


# -- resolution ----------------------------------------------------------------------------------------------------


def _merged(entries: Sequence[Entry]) -> tuple[dict[str, Any], dict[Path_, Entry]]:
    """Return the values as a tree, and the entries that they come from by path. Later entries win."""
    chosen: dict[Path_, Entry] = {}
    for entry in entries:
        path = entry.path
        for other in [p for p in chosen if p[: len(path)] == path or path[: len(p)] == p]:
            del chosen[other]
        chosen[path] = entry
    tree: dict[str, Any] = {}
    for path, entry in chosen.items():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = entry.value
    return tree, chosen


def _check_policy(tree: Mapping[str, Any], problems: list[str]) -> PolicyError | None:
    """Check the parameters of the policy; return the error if it cannot be loaded."""
    try:
        cls = load_policy_class(str(tree.get("policy", TrainConfig.model_fields["policy"].default)))
    except PolicyError as error:
        return error
    try:
        checked_options(cls, tree.get("policy_options") or {}, "policy")
    except PolicyError as error:
        problems.append(str(error))
    return None


def _validated(tree: Mapping[str, Any], chosen: Mapping[Path_, Entry], problems: list[str]) -> TrainConfig | None:
    """Return the settings; for mistakes add lines to `problems`."""
    from adaptive.data.data_options import DataOptions

    kinds: dict[str, type[BaseModel]] = {"data_options": DataOptions}
    try:
        kinds["model_options"] = _model_options(tree)
    except ConfigError as error:
        problems.append(str(error))
    keys = [*keys_of(TrainConfig)]
    for name, kind in kinds.items():
        keys += keys_of(kind, f"{name.removesuffix('_options')}.")
    for name, kind in kinds.items():
        try:
            kind.model_validate(tree.get(name, {}))
        except ValidationError as error:
            problems += _mistakes(error, kind, (name,), chosen, keys)
    try:
        return TrainConfig.model_validate(tree)
    except ValidationError as error:
        problems += _mistakes(error, TrainConfig, (), chosen, keys)
    return None


def _field(model: type[BaseModel], path: Path_) -> FieldInfo | None:
    """Return the field of a setting; None if there is none, or if it is in a table of free keys."""
    for name in path[:-1]:
        if (section := sections_of(model).get(name)) is None:
            return None
        model = section
    return model.model_fields.get(path[-1])


def _model_options(tree: Mapping[str, Any]) -> type[BaseModel]:
    """Return the class of the model's settings."""
    from adaptive.models.model_settings import OPTIONS

    name = str(tree.get("model", TrainConfig.model_fields["model"].default))
    if name in OPTIONS:
        return OPTIONS[name]
    from adaptive.models.factory import options_of  # imports torch

    return options_of(name)


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return field -> class of the fields that hold settings of another class, or None."""
    kinds = {name: (field.annotation, *get_args(field.annotation)) for name, field in model.model_fields.items()}
    return {
        name: kind
        for name, members in kinds.items()
        for kind in members
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def keys_of(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield the dotted keys of a class of settings."""
    sections = sections_of(model)
    for name in model.model_fields:
        if name in sections:
            yield from keys_of(sections[name], f"{above}{name}.")
        elif name not in OPTIONS.values():
            yield f"{above}{name}"


# -- messages ------------------------------------------------------------------------------------------------------


def _mistakes(
    error: ValidationError, model: type[BaseModel], above: Path_, chosen: Mapping[Path_, Entry], keys: Sequence[str]
) -> Iterator[str]:
    """Yield a line for each wrong value, and for values that contradict each other. `model`: of the keys in `above`."""
    reasons: dict[Path_, list[str]] = {}
    for mistake in error.errors():
        loc = (*above, *map(str, mistake["loc"]))
        # The members of a union are below the value, each with its own mistake.
        path = next((loc[:length] for length in range(len(loc), 0, -1) if loc[:length] in chosen), loc)
        text = UNKNOWN if mistake["type"] == "extra_forbidden" else reason(mistake)
        reasons.setdefault(path, []).append(text)
    for path, texts in reasons.items():
        text = " or ".join(dict.fromkeys([texts[0], *(text.removeprefix("expected ") for text in texts[1:])]))
        if path in chosen:
            entry = chosen[path]
            names = re.findall("'([^']*)'", text) if text.startswith("expected '") else []
            if text == UNKNOWN:
                got = suggestion(entry.key, keys) or "; adaptive-train config lists all keys"
            else:
                got = "" if ", got " in text else f", got {entry.value!r}{suggestion(str(entry.value), names)}"
            field = _field(model, path[len(above) :])
            meaning = f" ({field.description})" if field and field.description else ""
            yield f"{entry.key} ({entry.origin}): {text}{got}{meaning}"
        else:
            entries = [f"{entry.key} ({entry.origin})" for other, entry in chosen.items() if other[: len(path)] == path]
            yield f"{', '.join(entries) or '.'.join(path)}: {text}"


UNKNOWN: Final = "unknown key"
