"""What `TieredEmbeddingBag` is given, checked."""

from collections.abc import Sequence
from typing import Any

from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer
from adaptive.planned import Planned
from adaptive.policy import SkipRule


def check_planned(planned: object) -> None:
    """Check that the argument is a batch of a look-ahead.

    Raises:
        ConfigError: if it is something else.
    """
    if not isinstance(planned, Planned):
        raise ConfigError(f"a batch of look_ahead() or read() is needed, found {type(planned).__name__}")


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
        if not isinstance(found, needed):
            raise ConfigError(f"{name}: {needed.__name__} is needed, found {type(found).__name__}")
