"""What `TieredEmbeddingBag` is given, checked."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.engine.pipeline import Lane
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
    given: list[tuple[str, object, type]] = [
        *((f"tables[{number}]", table, TableConfig) for number, table in enumerate(tables)),
        ("tier", tier, TierConfig),
        ("optimizer", optimizer, RowOptimizer),
    ]
    if skip is not None and not isinstance(skip, str | SkipRule):
        given.append(("skip", skip, SkipConfig))
    for name, found, needed in given:
        if isinstance(found, needed):
            continue
        got = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
        hint = _optimizer_hint(found) if needed is RowOptimizer else ""
        raise ConfigError(f"{name}: expected a {needed.__name__}, got {got}{hint}")


def _optimizer_hint(found: object) -> str:
    """The row optimizer that goes by the name of what was given instead of one."""
    kind = found if isinstance(found, type) else type(found)
    name = found if isinstance(found, str) else kind.__name__
    plain = name.lower().replace("_", "").removeprefix("sparse").removesuffix("w")
    own = {one.__name__.lower(): one.__name__ for one in (SGD, Adagrad, RowwiseAdagrad, Adam)}.get(plain)
    meant = f"adaptive.{own}(lr=...)" if own else "one of adaptive.SGD, Adagrad, RowwiseAdagrad and Adam"
    return f". Rows are updated by optimizers of their own: pass {meant}; torch's update the dense part."
