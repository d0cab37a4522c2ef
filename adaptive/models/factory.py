"""From a model's name and settings to the model: the ones that are here, and the user's own."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from torch import nn

from adaptive.errors import ConfigError
from adaptive.models.common import Inputs, ModelConfig
from adaptive.models.custom import OwnConfig, make_own, own_options
from adaptive.models.dcn import DCN, DCNConfig
from adaptive.models.deepfm import DeepFM, DeepFMConfig
from adaptive.models.dlrm import DLRM, TowerConfig, parse_mlp
from adaptive.models.layers.dropout import seed_dropouts
from adaptive.models.multi_task import MultiTask, MultiTaskConfig
from adaptive.models.options import OPTIONS
from adaptive.models.tbsm import TBSM, TBSMConfig
from adaptive.models.two_tower import TwoTower, TwoTowerConfig
from adaptive.models.widths import Widened
from adaptive.plugins import installed_models, load_model_class

AnyConfig = ModelConfig | OwnConfig
M = TypeVar("M", bound=BaseModel)


def options_of(name: str) -> type[AnyConfig]:
    """The class of a model's settings.

    Raises:
        ConfigError: if there is no such model, or the user's own cannot be loaded.
    """
    return OPTIONS[name] if name in OPTIONS else own_options(_own(name))


def model_config(name: str, options: Mapping[str, Any], inputs: Inputs) -> AnyConfig:
    """The settings of a model, checked.

    Raises:
        ConfigError: for a model or a setting that is not there, or a value that cannot work.
    """
    kind, given = options_of(name), dict(options)
    if isinstance(given.get("bottom_mlp"), str):  # may begin with the number of inputs, as dlrm's flag does
        given["bottom_mlp"] = parse_mlp(given["bottom_mlp"], num_inputs=inputs.num_dense // inputs.steps)
    config = checked(kind, "model", {**given, "widths": _widths(given, inputs)})
    unknown = sorted(set(config.widths) - set(inputs.tables))
    if unknown:
        known = ", ".join(dict.fromkeys(inputs.tables))
        raise ConfigError(f"model.widths: no table {', '.join(unknown)}; there are: {known}")
    if bad := [f"{table}={width}" for table, width in config.widths.items() if not 1 <= width <= 4096]:
        raise ConfigError(f"model.widths: {', '.join(bad)}: a width is from 1 to 4096")
    return config


def _widths(given: Mapping[str, Any], inputs: Inputs) -> Any:
    """The widths of tables: those that the data ask for, and the model's own, which win."""
    own = given.get("widths", {})
    return {**inputs.widths, **own} if isinstance(own, Mapping) else own


def make_model(name: str, config: AnyConfig, inputs: Inputs, *, seed: int) -> nn.Module:
    """The model on the CPU; all that is drawn follows from the seed.

    Raises:
        ConfigError: if it does not fit the samples.
    """
    model = _plain(name, config, inputs, seed)
    if any(width != config.embedding_dim for width in config.widths.values()):
        model = Widened(model, inputs.tables, config.widths, config.embedding_dim, seed=seed)
    seed_dropouts(model, seed)
    return model


def _plain(name: str, config: AnyConfig, inputs: Inputs, seed: int) -> nn.Module:
    match config:
        case OwnConfig():
            return make_own(_own(name), config, inputs, seed=seed)
        case TBSMConfig():
            sizes = {"num_dense": inputs.num_dense, "num_features": inputs.num_features}
            return TBSM(config, **sizes, steps=inputs.steps, seed=seed)
        case TowerConfig():
            return DLRM(config, num_dense=inputs.num_dense, num_features=inputs.num_features, seed=seed)
        case DCNConfig():
            return DCN(config, inputs, seed=seed)
        case DeepFMConfig():
            return DeepFM(config, inputs, seed=seed)
        case TwoTowerConfig():
            return TwoTower(config, inputs, seed=seed)
        case MultiTaskConfig():
            return MultiTask(config, inputs, seed=seed)
    raise AssertionError(config)


def _own(name: str) -> type[nn.Module]:
    if ":" not in name and name not in installed_models():
        known = ", ".join([*OPTIONS, *installed_models()])
        raise ConfigError(f"no model {name!r}; known: {known}; or give module:Class or file.py:Class")
    return load_model_class(name)


def checked(kind: type[M], name: str, options: Mapping[str, Any]) -> M:
    """The settings as `kind`.

    Raises:
        ConfigError: if they are none.
    """
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join((name, *map(str, e['loc'])))}: {e['msg']}" for e in error.errors())
        raise ConfigError(found) from error
