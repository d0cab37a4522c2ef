"""A model of the user's own: any `nn.Module` whose `forward(dense, pooled)` gives a logit a sample.

Its `__init__` is given what it asks for by name: `num_dense`, `num_features`, `embedding_dim`, `inputs`
(`adaptive.models.common.Inputs`) and `seed`. All other parameters are settings, `model.NAME`. Initial weights are drawn
by torch from the run's seed. Which file or module is loaded is `adaptive.plugins`'s business.
"""

import inspect
from typing import Any, Final

import torch
from pydantic import create_model
from torch import nn

from adaptive.config import Config
from adaptive.errors import ConfigError
from adaptive.models.common import Inputs, ModelConfig
from adaptive.models.tasks import tasks_of

GIVEN: Final = ("num_dense", "num_features", "embedding_dim", "inputs", "seed")


class OwnConfig(Config):
    """Settings of a model of one's own, besides the parameters of its `__init__`."""

    embedding_dim: int = ModelConfig.model_fields["embedding_dim"]  # type: ignore[assignment]
    widths: dict[str, int] = ModelConfig.model_fields["widths"]  # type: ignore[assignment]


def own_options(cls: type[nn.Module]) -> type[OwnConfig]:
    """The settings of a model: embedding_dim, widths, and its own parameters with their types and defaults.

    Raises:
        ConfigError: if a type of one cannot be resolved, or one has the name of a setting.
    """
    fields: dict[str, Any] = {}
    for name, parameter in _parameters(cls).items():
        if name in GIVEN:
            continue
        if name in OwnConfig.model_fields:
            raise ConfigError(f"model {cls.__name__}: parameter {name} has the name of a setting; call it otherwise")
        kind = Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        fields[name] = (kind, ... if parameter.default is inspect.Parameter.empty else parameter.default)
    try:
        return create_model(cls.__name__, __base__=OwnConfig, **fields)
    except Exception as error:  # a type that settings cannot have
        raise ConfigError(f"model {cls.__name__}: parameters of __init__: {error}") from error


def make_own(cls: type[nn.Module], config: OwnConfig, inputs: Inputs, *, seed: int) -> nn.Module:
    """The model, tried on two samples of zeros.

    Raises:
        ConfigError: if it cannot be made or run, or gives something else than a logit a sample.
    """
    given = {
        "num_dense": inputs.num_dense,
        "num_features": inputs.num_features,
        "embedding_dim": config.embedding_dim,
        "inputs": inputs,
        "seed": seed,
    }
    own = {name: given[name] if name in given else getattr(config, name) for name in _parameters(cls)}
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            model = cls(**own)
        except Exception as error:
            raise ConfigError(f"model {cls.__name__}: __init__ raised {_text(error)}") from error
        _try(model, config.embedding_dim, inputs)
    return model


def given_to(cls: type[nn.Module]) -> list[str]:
    """Names of the parameters that are no settings, but follow from data, settings and seed."""
    return [name for name in _parameters(cls) if name in GIVEN]


def _try(model: nn.Module, width: int, inputs: Inputs) -> None:
    tasks, name = tasks_of(model), type(model).__name__
    dense, pooled = torch.zeros(2, inputs.num_dense), torch.zeros(2, inputs.num_features, width)
    told = f"dense {tuple(dense.shape)} and pooled {tuple(pooled.shape)}"
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = model(dense, pooled)
    except Exception as error:
        raise ConfigError(f"model {name}: forward of {told} raised {_text(error)}") from error
    finally:
        model.train(was_training)
    needed = (2,) if tasks is None else (2, len(tasks.names))
    if not isinstance(found, torch.Tensor) or tuple(found.shape) != needed:
        shape = f"a tensor {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
        hint = "; end with .squeeze(1)" if isinstance(found, torch.Tensor) and tuple(found.shape) == (2, 1) else ""
        raise ConfigError(f"model {name}: forward of {told} must give a tensor {needed} of logits, found {shape}{hint}")
    if not found.is_floating_point():
        raise ConfigError(f"model {name}: forward must give logits, which are floats, found {found.dtype}")


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
