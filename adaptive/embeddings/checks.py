"""Arguments of `TieredEmbeddingBag`, checked; and tables of the shapes of torch's own modules."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from torch import nn

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.engine.lane import Lane
from adaptive.embeddings.planned_batch import Planned
from adaptive.errors import ConfigError
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policy import SkipRule


def check_planned(planned: object, lanes: Sequence[Lane]) -> None:
    """Check that the argument is a batch that the tables of these lanes have planned or read.

    Raises:
        ConfigError: if it is something else, or a batch of other tables, whose rows it would update.
    """
    if not isinstance(planned, Planned):
        raise ConfigError(
            f"expected a batch of look_ahead() or read(), got {type(planned).__name__}. "
            "Loop over embeddings.look_ahead(batches), or pass embeddings.read(batch)."
        )
    if not planned.belongs_to(lanes):
        raise ConfigError(
            "expected a batch of these tables' own look_ahead() or read(), got one of another TieredEmbeddingBag. "
            "Batches cannot be shared between modules: give each its own look-ahead."
        )


def check_depth(depth: object) -> int:
    """The depth of a look-ahead as an `int`.

    Raises:
        ConfigError: if it is no whole number from 0 on.
    """
    if not isinstance(depth, Integral) or isinstance(depth, bool) or depth < 0:
        raise ConfigError(
            f"depth: expected a whole number from 0 on, got {depth!r}. It is the number of batches planned ahead."
        )
    return int(depth)


def check_arguments(tables: Sequence[TableConfig], tier: TierConfig, optimizer: RowOptimizer, skip: Any) -> None:
    """Check that arguments are of the kinds that `TieredEmbeddingBag` takes.

    Raises:
        ConfigError: for the first one that is not.
    """
    arguments: list[tuple[str, object, type]] = [
        *((f"tables[{number}]", table, TableConfig) for number, table in enumerate(tables)),
        ("tier", tier, TierConfig),
        ("optimizer", optimizer, RowOptimizer),
    ]
    if skip is not None and not isinstance(skip, str | SkipRule):
        arguments.append(("skip", skip, SkipConfig))
    for name, value, kind in arguments:
        if isinstance(value, kind):
            continue
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        hint = _optimizer_hint(value) if kind is RowOptimizer else ""
        raise ConfigError(f"{name}: expected a {kind.__name__}, got {got}{hint}")


def _optimizer_hint(value: object) -> str:
    """The row optimizer that goes by the name of what was passed instead of one."""
    name = value if isinstance(value, str) else (value if isinstance(value, type) else type(value)).__name__
    plain = name.lower().replace("_", "").removeprefix("sparse").removesuffix("w")
    row_optimizers = {kind.__name__.lower(): kind.__name__ for kind in (SGD, Adagrad, RowwiseAdagrad, Adam)}
    similar = row_optimizers.get(plain)
    advice = f"adaptive.{similar}(lr=...)" if similar else "one of adaptive.SGD, Adagrad, RowwiseAdagrad and Adam"
    return f". Rows are updated by optimizers of their own: pass {advice}; torch's update the dense part."


def table_like(name: str, module: nn.Module) -> TableConfig:
    """A table of the size and pooling of an `nn.EmbeddingBag` or `nn.Embedding`.

    Raises:
        ConfigError: for another module, or a setting that tables here do not have.
    """
    if not isinstance(module, nn.EmbeddingBag | nn.Embedding):
        raise ConfigError(f"{name}: expected an nn.EmbeddingBag or nn.Embedding, got {type(module).__name__}")
    pooling = module.mode if isinstance(module, nn.EmbeddingBag) else "none"
    settings = {
        "max_norm": module.max_norm is not None,
        "padding_idx": module.padding_idx is not None,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        'mode="max"': pooling == "max",
    }
    if unsupported := [setting for setting, is_set in settings.items() if is_set]:
        raise ConfigError(f"{name}: {', '.join(unsupported)} of {type(module).__name__} is not supported")
    sizes = {"num_embeddings": module.num_embeddings, "embedding_dim": module.embedding_dim}
    return TableConfig.model_validate({"name": name, "pooling": pooling, **sizes})
