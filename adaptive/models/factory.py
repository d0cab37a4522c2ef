"""Build a model from its name and settings: built-in and user-defined models.

A user-defined model is any `nn.Module` whose `forward(dense, pooled)` returns one logit for each sample. Its `__init__`
may have the parameters `num_dense`, `num_features`, `embedding_dim`, `inputs` (`adaptive.models.dense.base.Inputs`) and
`seed`. All other parameters are settings, `model.NAME`. torch draws initial weights from the run's seed.
`adaptive.plugins` finds and loads the class.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import torch
from pydantic import BaseModel, ValidationError, create_model
from torch import nn

from adaptive.config import explain
from adaptive.errors import ConfigError, error_text, suggestion
from adaptive.models.dense import assembly
from adaptive.models.dense.base import Inputs
from adaptive.models.model_settings import (
    OPTIONS,
    DINConfig,
    ModelConfig,
    RowsConfig,
)
from adaptive.plugins import load_model_class

OFFERED: Final = ("num_dense", "num_features", "embedding_dim", "inputs", "seed")
M = TypeVar("M", bound=BaseModel)


class CustomConfig(RowsConfig):
    """Settings of a user-defined model, in addition to the parameters of its `__init__`."""


AnyConfig = ModelConfig | CustomConfig


def options_of(name: str) -> type[AnyConfig]:
    """Return the class of a model's settings.

    Raises:
        ConfigError: if there is no such model, or a user-defined one cannot be loaded.
    """
    return OPTIONS[name] if name in OPTIONS else _custom_options(_custom_class(name))


def model_config(name: str, options: Mapping[str, Any], inputs: Inputs) -> AnyConfig:
    """Return the checked settings of a model.

    Raises:
        ConfigError: for an unknown model or setting, or a wrong value.
    """
    config = checked(options_of(name), "model", options)
    _check_tables("model.widths", config.widths, inputs.tables)
    _check_tables("model.row_dtypes", config.row_dtypes, inputs.tables)
    if bad := [f"{table}={width}" for table, width in config.widths.items() if not 1 <= width <= 4096]:
        raise ConfigError(f"model.widths: expected widths from 1 to 4096, got {', '.join(bad)}. Correct the settings.")
    return config


def rows_config(options: Mapping[str, Any]) -> RowsConfig:
    """Return how a model's settings store rows, for studies that build no model."""
    names = "row_dtype", "row_rounding"
    return checked(RowsConfig, "model", {name: options[name] for name in names if name in options})


def _check_tables(setting: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise ConfigError if a setting names tables that are not there."""
    choices = list(dict.fromkeys(allowed))
    if unknown := [name for name in dict.fromkeys(names) if name not in choices]:
        listed, hint = ", ".join(choices) or "none", suggestion(unknown[0], choices)
        raise ConfigError(f"{setting}: expected tables among {listed}, got {', '.join(unknown)}{hint}")


def make_model(name: str, config: AnyConfig, inputs: Inputs, *, seed: int) -> nn.Module:
    """Return the model, on the CPU. All random values follow from the seed.

    Raises:
        ConfigError: if it does not fit the samples.
    """
    if isinstance(config, CustomConfig):
        model = _make_custom(_custom_class(name), config, inputs, seed=seed)
    else:
        if isinstance(config, DINConfig):
            _check_one_width(config, inputs)
        try:
            model = assembly.build_model(name, config, inputs, seed=seed)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    return assembly.widened(model, config, inputs, seed=seed)


def checked(kind: type[M], name: str, options: Mapping[str, Any]) -> M:
    """Return the settings `options` of table `name`; raise ConfigError with all wrong keys."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        raise ConfigError(explain(kind, error, table=name)) from error


def _check_one_width(config: DINConfig, inputs: Inputs) -> None:
    other = [f"{table}={width}" for table, width in config.widths.items() if width != config.embedding_dim]
    if inputs.sequences and other:
        raise ConfigError(
            "model.widths: expected tables of one width for model din with columns of sequences, got "
            f"{', '.join(other)} and embedding_dim={config.embedding_dim}. Remove the widths."
        )


# -- user-defined models ---------------------------------------------------------------------------------------------


def _custom_class(name: str) -> type[nn.Module]:
    if ":" not in name:
        raise ConfigError(
            f"model: expected one of {', '.join(OPTIONS)}, module:Class or file.py:Class, got {name!r}"
            f"{suggestion(name, OPTIONS)}"
        )
    return load_model_class(name)


def _custom_options(cls: type[nn.Module]) -> type[CustomConfig]:
    """Return the settings of a user-defined model, with the parameters of its `__init__`."""
    fields: dict[str, tuple[object, object]] = {}
    for name, parameter in _parameters(cls).items():
        if name in OFFERED:
            continue
        if name in CustomConfig.model_fields:
            raise ConfigError(
                f"model {cls.__name__}: expected other names than settings in __init__, got {name}. Rename it."
            )
        kind = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        fields[name] = (kind, ... if parameter.default is inspect.Parameter.empty else parameter.default)
    try:
        return create_model(cls.__name__, __base__=CustomConfig, **fields)  # type: ignore[call-overload, no-any-return]
    except Exception as error:  # a type that settings cannot have
        raise _bad_parameters(cls, error) from error


def _bad_parameters(cls: type[nn.Module], error: Exception) -> ConfigError:
    return ConfigError(
        f"model {cls.__name__}: expected parameters that settings can have, got an error: {error_text(error)}"
    )


def _make_custom(cls: type[nn.Module], config: CustomConfig, inputs: Inputs, *, seed: int) -> nn.Module:
    """Return the model, after a test with two samples of zeros."""
    values = assembly.offered(inputs, config.embedding_dim, seed)
    arguments = {name: values[name] if name in values else getattr(config, name) for name in _parameters(cls)}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            model = cls(**arguments)
        except Exception as error:
            raise ConfigError(
                f"model {cls.__name__}: expected a model, got an error in __init__: {error_text(error)}"
            ) from error
        _try(model, config.embedding_dim, inputs)
    _check_dtypes(model)
    return model


def _check_dtypes(model: nn.Module) -> None:
    """Raise ConfigError for weights that checkpoints and exports cannot hold."""
    weights = set(model.parameters())
    for name, value in model.state_dict(keep_vars=True).items():
        if value.dtype == torch.bfloat16 or (value in weights and value.dtype != torch.float32):
            raise ConfigError(
                f"model {type(model).__name__}: expected weights in float32, got {str(value.dtype)[6:]} ({name}). Keep "
                "them in float32, and compute in lower precision inside torch.autocast."
            )


def offered_to(cls: type[nn.Module]) -> list[str]:
    """Return the parameters of a user-defined model that are not settings."""
    return [name for name in _parameters(cls) if name in OFFERED]


def _try(model: nn.Module, width: int, inputs: Inputs) -> None:
    name = type(model).__name__
    dense, pooled = torch.zeros(2, inputs.num_dense), torch.zeros(2, inputs.num_features, width)
    where = f"model {name}: forward of dense {tuple(dense.shape)} and pooled {tuple(pooled.shape)}"
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(dense, pooled)
    except Exception as error:
        raise ConfigError(f"{where}: expected logits, got an error: {error_text(error)}") from error
    finally:
        model.train(was_training)
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != (2,):
        is_tensor = isinstance(logits, torch.Tensor)
        shape = f"a tensor {tuple(logits.shape)}" if is_tensor else f"a {type(logits).__name__}"
        hint = " End forward with .squeeze(1)." if is_tensor and tuple(logits.shape) == (2, 1) else ""
        raise ConfigError(f"{where}: expected a tensor (2,) of logits, got {shape}.{hint}")
    if not logits.is_floating_point():
        raise ConfigError(f"{where}: expected logits, which are floats, got {logits.dtype}. Return floats.")


def _parameters(cls: type[nn.Module]) -> dict[str, inspect.Parameter]:
    if cls.__init__ is nn.Module.__init__:
        return {}
    try:
        parameters = inspect.signature(cls, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise _bad_parameters(cls, error) from error
    return {name: p for name, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
