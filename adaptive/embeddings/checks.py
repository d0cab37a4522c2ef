"""Checks of the arguments of `TieredEmbeddingBag`, and tables like torch's modules."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Final

from torch import nn

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.engine.tiered_group import TieredGroup, table_names
from adaptive.embeddings.planned_batch import Planned
from adaptive.errors import ConfigError
from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policy import SkipRule

ROW_OPTIMIZERS: Final = (SGD, Adagrad, RowwiseAdagrad, Adam, FTRL)


def check_planned(planned: object, tiered_groups: Sequence[TieredGroup]) -> None:
    """Check that the argument is a batch that the tables of these groups have planned or read.

    Raises:
        ConfigError: for anything else, or for a batch of other tables, whose rows would be updated.
    """
    if not isinstance(planned, Planned):
        raise ConfigError(
            f"batch: expected one from look_ahead() or read(), got {type(planned).__name__}. "
            "Loop over embeddings.look_ahead(batches), or pass embeddings.read(batch)."
        )
    if not planned.belongs_to(tiered_groups):
        raise ConfigError(
            f"batch: expected one from look_ahead() or read() of the module with tables {table_names(tiered_groups)}, "
            "got one of another TieredEmbeddingBag. Modules cannot share batches: give each its own look-ahead."
        )


def check_depth(depth: object) -> int:
    """Return the depth of a look-ahead as an `int`.

    Raises:
        ConfigError: if it is not a non-negative integer.
    """
    if not isinstance(depth, Integral) or isinstance(depth, bool) or depth < 0:
        raise ConfigError(
            f"depth: expected an integer of at least 0, got {depth!r}. It is the number of batches to plan ahead; "
            "0 plans each batch when you request it."
        )
    return int(depth)


def check_arguments(
    tables: Sequence[TableConfig],
    tier: TierConfig,
    optimizer: RowOptimizer,
    skip: Any,
) -> None:
    """Check the arguments of `TieredEmbeddingBag`.

    Raises:
        ConfigError: for the first argument of another type, or a user-defined row optimizer.
    """
    arguments: list[tuple[str, object, type]] = [
        *((f"tables[{number}]", table, TableConfig) for number, table in enumerate(tables)),
        ("tier", tier, TierConfig),
        ("optimizer", optimizer, RowOptimizer),
    ]
    if skip is not None and not isinstance(skip, str | SkipRule):
        arguments.append(("skip", skip, SkipConfig))
    known = ", ".join(kind.__name__ for kind in ROW_OPTIMIZERS)
    for name, value, kind in arguments:
        if isinstance(value, kind):
            continue
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        hint = f"one of adaptive.{known}; torch's are for dense parameters" if kind is RowOptimizer else kind.__name__
        raise ConfigError(f"{name}: expected a {kind.__name__}, got {got}. Pass {hint}.")
    if type(optimizer) not in ROW_OPTIMIZERS:
        raise ConfigError(
            f"optimizer: expected one of {known} itself, got a user-defined class, {type(optimizer).__name__}. "
            "Compiled kernels update the rows and call no method of a class. Pass one of these with its settings, or "
            "keep the table in an nn.EmbeddingBag with a torch optimizer."
        )


def table_like(name: str, module: nn.Module) -> TableConfig:
    """Return a table with the size and pooling of an `nn.EmbeddingBag` or `nn.Embedding`.

    Raises:
        ConfigError: for another module, or a setting that tables do not support.
    """
    if not isinstance(module, nn.EmbeddingBag | nn.Embedding):
        raise ConfigError(
            f"feature {name!r}: expected an nn.EmbeddingBag or nn.Embedding, got {type(module).__name__}. Leave other "
            "modules in your model."
        )
    pooling = module.mode if isinstance(module, nn.EmbeddingBag) else "none"
    settings = {
        "max_norm": module.max_norm is not None,
        "padding_idx": module.padding_idx is not None,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        'mode="max"': pooling == "max",
    }
    if unsupported := [setting for setting, is_set in settings.items() if is_set]:
        raise ConfigError(
            f"feature {name!r}: expected an {type(module).__name__} with default settings, got one with "
            f"{', '.join(unsupported)}, which tiered tables do not support. Keep this module in plain torch, or create "
            "it without."
        )
    sizes = {"num_embeddings": module.num_embeddings, "embedding_dim": module.embedding_dim}
    return TableConfig.model_validate({"name": name, "pooling": pooling, **sizes})


def refuse_ended(planned: Planned) -> None:
    """Raise ConfigError for vectors of a batch that has ended."""
    if planned.whole.ended:
        raise ConfigError(
            f"batch {planned.number}: expected the current batch, got one that has ended. Its rows may have been "
            "evicted: use each batch before you request the next one."
        )


def refuse_late_gradients(planned: Planned) -> None:
    """Raise ConfigError for gradients of a batch that has ended."""
    if planned.whole.ended:
        raise ConfigError(
            f"backward(): expected gradients of the current batch, got some of batch {planned.number}, which has "
            "ended. Call backward() and step() for each batch before you request the next one. To accumulate "
            "gradients, make batches larger, or let only the dense optimizer wait."
        )


def unapplied(planned: Planned) -> ConfigError:
    """Create the error for gradients that were neither applied nor discarded."""
    return ConfigError(
        f"batch {planned.number}: expected step() or discard() between backward() and the next batch, got neither. "
        "Call embeddings.step() after loss.backward(), or embeddings.discard() to drop the gradients. To accumulate "
        "gradients, make batches larger, or let only the dense optimizer wait: step rows in every batch, with "
        "grad_scale=1 / n if the loss is divided by n."
    )
