"""`adaptive-train config`: list settings, read from the classes that check them."""

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from adaptive.cli import options
from adaptive.cli.options import flag_of
from adaptive.cli.output import print_result
from adaptive.errors import ConfigError

_WORDS = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path", type(None): "null"}
_BOUNDS = {"ge": ">= {}", "gt": "> {}", "le": "<= {}", "lt": "< {}"}


@dataclass(frozen=True)
class Setting:
    """A setting as users write it."""

    key: str
    default: str
    allowed: str
    meaning: str
    flag: str = ""


@dataclass(frozen=True)
class Section:
    """The settings of one class; `name` is empty for keys without a dot."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]

    @property
    def title(self) -> str:
        return self.name or "The run"


def config(keys: options.SettingKeys = None, as_json: options.AsJson = False) -> None:
    """List settings with their default, allowed values and meaning: all of them, or those of KEY."""
    chosen = [section for section in (_chosen(section, keys or []) for section in sections()) if section.settings]
    if not chosen:
        from adaptive.errors import suggestion

        names = [setting.key for section in sections() for setting in section.settings]
        hint = suggestion(keys[0], names) if keys else ""
        raise ConfigError(
            f"expected settings or sections, got {', '.join(keys or [])}{hint}. adaptive-train config lists all"
        )
    listed = [{"section": section.name, **asdict(setting)} for section in chosen for setting in section.settings]
    print_result({"schema": 1, "settings": listed}, table="\n\n".join(map(_text, chosen)), as_json=as_json)


def sections() -> Iterator[Section]:
    """Yield all sections except the parameters of policies."""
    from adaptive.config import TrainConfig
    from adaptive.data.data_options import DataOptions
    from adaptive.models.model_settings import OPTIONS

    yield from _of_class(TrainConfig, "", "Settings of the run itself.")
    yield from _of_class(DataOptions, "data", DataOptions.__doc__ or "")
    yield from _of_models(OPTIONS)


def _of_class(model: type[BaseModel], name: str, meaning: str) -> Iterator[Section]:
    """Yield the section of a class, then those of nested classes."""
    from adaptive.training.settings import OPTIONS, sections_of

    inside = sections_of(model)
    settings = tuple(
        _setting(name, field, info)
        for field, info in model.model_fields.items()
        if field not in inside and field not in OPTIONS.values()  # dictionaries with the settings of another class
    )
    yield Section(name, _one_line(meaning), settings)
    for field, section in inside.items():
        key, info = f"{name}.{field}".lstrip("."), model.model_fields[field]
        null = f" `{key}=null`: {info.description.removeprefix('null: ')}." if info.description else ""
        yield from _of_class(section, key, f"{section.__doc__ or ''}{null}")


def _of_models(options: Mapping[str, type[BaseModel]]) -> Iterator[Section]:
    """Yield the settings that all models share, then those of each model."""
    all_ = {name: {field: _setting("model", field, info) for field, info in model.model_fields.items()}
            for name, model in options.items()}  # fmt: skip
    first = next(iter(all_.values()))
    shared = [
        setting for field, setting in first.items() if all(other.get(field) == setting for other in all_.values())
    ]
    yield Section("model", "Of every model.", tuple(shared))
    for name, settings in all_.items():
        if special := tuple(setting for setting in settings.values() if setting not in shared):
            yield Section(f"model (with model={name})", _one_line(options[name].__doc__ or ""), special)


def _setting(above: str, field: str, info: FieldInfo) -> Setting:
    key = f"{above}.{field}".lstrip(".")
    return Setting(key, _default(info), _allowed(info), info.description or "", flag_of(key))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "needed"
    value = info.get_default(call_default_factory=True)
    return json.dumps(value, default=str).strip('"') if not isinstance(value, tuple) else json.dumps(list(value))


def _allowed(info: FieldInfo) -> str:
    bounds = [
        _BOUNDS[name].format(_number(getattr(rule, name)))
        for rule in info.metadata
        for name in _BOUNDS
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([" or ".join(dict.fromkeys(_kinds(info.annotation))), *bounds])


def _kinds(annotation: Any) -> Iterator[str]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        for kind in get_args(annotation):
            yield from _kinds(kind)
    elif origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin is Literal:
        yield from map(str, get_args(annotation))
    elif origin in (tuple, list):
        inner = [word for kind in get_args(annotation) if kind is not ... for word in _kinds(kind)]
        yield f"list of {' or '.join(dict.fromkeys(inner))}"
    else:
        yield _WORDS.get(annotation, "table" if origin is dict or annotation is dict else str(annotation))


def _number(value: float) -> str:
    powers = {2**power: f"2^{power}" for power in range(10, 65)}
    return powers.get(int(value), f"{value:,}") if value == int(value) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _chosen(section: Section, keys: list[str]) -> Section:
    def is_chosen(setting: Setting) -> bool:
        return not keys or any(setting.key == key or setting.key.startswith(f"{key}.") for key in keys)

    return Section(section.name, section.meaning, tuple(filter(is_chosen, section.settings)))


def _text(section: Section) -> str:
    lines = [f"{section.title}: {section.meaning}"]
    for setting in section.settings:
        flag = f" ({setting.flag})" if setting.flag else ""
        separator = "; " if setting.meaning else ""
        lines.append(f"  {setting.key} = {setting.default}{flag}")
        lines.append(f"      {setting.allowed}{separator}{setting.meaning}")
    return "\n".join(lines)
