"""From a model's name and settings to the model: the built-in ones, and user-defined ones.

A user-defined model is any `nn.Module` whose `forward(dense, pooled)` gives a logit a sample. Its `__init__` is given
what it asks for by name: `num_dense`, `num_features`, `embedding_dim`, `inputs` (`adaptive.models.dense.base.Inputs`)
and `seed`. All other parameters are settings, `model.NAME`. Initial weights are drawn by torch from the run's seed.
Which file or module is loaded is `adaptive.plugins`'s business.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import torch
from pydantic import BaseModel, ValidationError, create_model
from torch import nn

from adaptive.config import Config
from adaptive.errors import ConfigError
from adaptive.models.dense import assembly
from adaptive.models.dense.base import Inputs
from adaptive.models.dense.layers import seed_dropouts
from adaptive.models.dense.two_tower import dense_names
from adaptive.models.model_settings import OPTIONS, ModelConfig, MultiTaskConfig, TwoTowerConfig, parse_mlp
from adaptive.models.tasks import tasks_of
from adaptive.plugins import installed_models, load_model_class

OFFERED: Final = ("num_dense", "num_features", "embedding_dim", "inputs", "seed")
M = TypeVar("M", bound=BaseModel)


class CustomConfig(Config):
    """Settings of a user-defined model, besides the parameters of its `__init__`."""

    embedding_dim: int = ModelConfig.model_fields["embedding_dim"]  # type: ignore[assignment]
    widths: dict[str, int] = ModelConfig.model_fields["widths"]  # type: ignore[assignment]


AnyConfig = ModelConfig | CustomConfig


def options_of(name: str) -> type[AnyConfig]:
    """The class of a model's settings.

    Raises:
        ConfigError: if there is no such model, or a user-defined one cannot be loaded.
    """
    return OPTIONS[name] if name in OPTIONS else _custom_options(_custom_class(name))


def model_config(name: str, options: Mapping[str, Any], inputs: Inputs) -> AnyConfig:
    """The settings of a model, checked.

    Raises:
        ConfigError: for a model or a setting that is not there, or a value that cannot work.
    """
    kind, values = options_of(name), dict(options)
    if isinstance(values.get("bottom_mlp"), str):  # may begin with the number of inputs, as dlrm's flag does
        values["bottom_mlp"] = parse_mlp(values["bottom_mlp"], num_inputs=inputs.num_dense // inputs.steps)
    widths = values.get("widths", {})
    values["widths"] = {**inputs.widths, **widths} if isinstance(widths, Mapping) else widths  # the model's own win
    config = checked(kind, "model", values)
    if unknown := sorted(set(config.widths) - set(inputs.tables)):
        tables = ", ".join(dict.fromkeys(inputs.tables))
        raise ConfigError(f"model.widths: no table {', '.join(unknown)}; there are: {tables}")
    if bad := [f"{table}={width}" for table, width in config.widths.items() if not 1 <= width <= 4096]:
        raise ConfigError(f"model.widths: {', '.join(bad)}: a width is from 1 to 4096")
    return config


def make_model(name: str, config: AnyConfig, inputs: Inputs, *, seed: int) -> nn.Module:
    """The model on the CPU; all that is drawn follows from the seed.

    Raises:
        ConfigError: if it does not fit the samples.
    """
    if isinstance(config, CustomConfig):
        model = _make_custom(_custom_class(name), config, inputs, seed=seed)
    else:
        if isinstance(config, TwoTowerConfig):
            _check_towers(config, inputs)
        if isinstance(config, MultiTaskConfig):
            _check_labels(config, inputs)
        try:
            model = assembly.build_model(name, config, inputs, seed=seed)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    model = assembly.widened(model, config, inputs, seed=seed)
    seed_dropouts(model, seed)
    return model


def checked(kind: type[M], name: str, options: Mapping[str, Any]) -> M:
    """The settings as `kind`.

    Raises:
        ConfigError: if they are none.
    """
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        mistakes = (f"{'.'.join((name, *map(str, e['loc'])))}: {e['msg']}" for e in error.errors())
        raise ConfigError("; ".join(mistakes)) from error


def _check_towers(config: TwoTowerConfig, inputs: Inputs) -> None:
    tables = list(dict.fromkeys(inputs.tables))
    hint = f"there are: {', '.join(tables)}"
    user, item = set(config.user_tables), set(config.item_tables)
    if not user:
        example = f"--set 'model.user_tables=[\"{tables[0]}\"]'"
        raise ConfigError(f"model two-tower needs the user's tables, such as {example}; {hint}")
    if unknown := sorted((user | item) - set(tables)):
        raise ConfigError(f"model two-tower: no table {', '.join(unknown)}; {hint}")
    if user & item:
        raise ConfigError(f"model two-tower: {', '.join(sorted(user & item))} in user_tables and in item_tables")
    if not set(tables) - user:
        raise ConfigError("model two-tower: all tables are the user's, and none is left for the item")
    if item and (left := [table for table in tables if table not in user | item]):
        raise ConfigError(f"model two-tower: {', '.join(left)} in neither user_tables nor item_tables")
    names = dense_names(inputs)
    if missing := [name for name in config.item_dense if name not in names]:
        listed = ", ".join(names) or "none"
        raise ConfigError(f"model two-tower: item_dense: no dense input {', '.join(missing)}; there are: {listed}")


def _check_labels(config: MultiTaskConfig, inputs: Inputs) -> None:
    if len(inputs.labels) < 2:
        raise ConfigError(
            "model multi-task needs samples with several labels, and these have one: name more columns in the schema "
            "([[more_labels]]), or of the built-in stream set data.synthetic.labels"
        )
    if unknown := [name for name in config.loss_weights if name not in inputs.labels]:
        raise ConfigError(f"model.loss_weights: no label {', '.join(unknown)}; there are: {', '.join(inputs.labels)}")


# -- user-defined models ---------------------------------------------------------------------------------------------


def _custom_class(name: str) -> type[nn.Module]:
    if ":" not in name and name not in installed_models():
        names = ", ".join([*OPTIONS, *installed_models()])
        raise ConfigError(f"no model {name!r}; known: {names}; or give module:Class or file.py:Class")
    return load_model_class(name)


def _custom_options(cls: type[nn.Module]) -> type[CustomConfig]:
    """embedding_dim, widths, and the model's own parameters with their types and defaults."""
    fields: dict[str, tuple[object, object]] = {}
    for name, parameter in _parameters(cls).items():
        if name in OFFERED:
            continue
        if name in CustomConfig.model_fields:
            raise ConfigError(f"model {cls.__name__}: parameter {name} has the name of a setting; call it otherwise")
        kind = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        fields[name] = (kind, ... if parameter.default is inspect.Parameter.empty else parameter.default)
    try:
        return create_model(cls.__name__, __base__=CustomConfig, **fields)  # type: ignore[call-overload, no-any-return]
    except Exception as error:  # a type that settings cannot have
        raise ConfigError(f"model {cls.__name__}: parameters of __init__: {error}") from error


def _make_custom(cls: type[nn.Module], config: CustomConfig, inputs: Inputs, *, seed: int) -> nn.Module:
    """The model, tried on two samples of zeros."""
    values = assembly.offered(inputs, config.embedding_dim, seed)
    arguments = {name: values[name] if name in values else getattr(config, name) for name in _parameters(cls)}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            model = cls(**arguments)
        except Exception as error:
            raise ConfigError(f"model {cls.__name__}: __init__ raised {_text(error)}") from error
        _try(model, config.embedding_dim, inputs)
    return model


def offered_to(cls: type[nn.Module]) -> list[str]:
    """Names of a user-defined model's parameters that are no settings, but follow from data, settings and seed."""
    return [name for name in _parameters(cls) if name in OFFERED]


def _try(model: nn.Module, width: int, inputs: Inputs) -> None:
    tasks, name = tasks_of(model), type(model).__name__
    dense, pooled = torch.zeros(2, inputs.num_dense), torch.zeros(2, inputs.num_features, width)
    arguments = f"dense {tuple(dense.shape)} and pooled {tuple(pooled.shape)}"
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(dense, pooled)
    except Exception as error:
        raise ConfigError(f"model {name}: forward of {arguments} raised {_text(error)}") from error
    finally:
        model.train(was_training)
    expected = (2,) if tasks is None else (2, len(tasks.names))
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != expected:
        is_tensor = isinstance(logits, torch.Tensor)
        shape = f"a tensor {tuple(logits.shape)}" if is_tensor else f"a {type(logits).__name__}"
        hint = "; end with .squeeze(1)" if is_tensor and tuple(logits.shape) == (2, 1) else ""
        raise ConfigError(
            f"model {name}: forward of {arguments} must give a tensor {expected} of logits, found {shape}{hint}"
        )
    if not logits.is_floating_point():
        raise ConfigError(f"model {name}: forward must give logits, which are floats, found {logits.dtype}")


def _parameters(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    if cls.__init__ is nn.Module.__init__:
        return {}
    try:
        parameters = inspect.signature(cls, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"model {cls.__name__}: parameters of __init__: {_text(error)}") from error
    return {name: p for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
