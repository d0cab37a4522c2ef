"""Train recommendation models whose embedding tables do not fit the accelerator."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive.batch import Batch, Origin, concatenate, one_hot_batch
    from adaptive.config import SkipConfig, TableConfig, TierConfig, TrainConfig
    from adaptive.counters import Counter
    from adaptive.embedding import TieredEmbeddingBag
    from adaptive.errors import AdaptiveError
    from adaptive.planned import Planned
    from adaptive.policy import NEVER, Policy, RowStats, TierView
    from adaptive.rows.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
    from adaptive.tiers.statistics import Statistics

_HOMES = {
    "NEVER": "policy",
    "SGD": "rows.optim",
    "Adagrad": "rows.optim",
    "AdaptiveError": "errors",
    "Adam": "rows.optim",
    "Batch": "batch",
    "Counter": "counters",
    "Origin": "batch",
    "Planned": "planned",
    "Policy": "policy",
    "RowOptimizer": "rows.optim",
    "RowStats": "policy",
    "RowwiseAdagrad": "rows.optim",
    "SkipConfig": "config",
    "Statistics": "tiers.statistics",
    "TableConfig": "config",
    "TierConfig": "config",
    "TierView": "policy",
    "TieredEmbeddingBag": "embedding",
    "TrainConfig": "config",
    "concatenate": "batch",
    "one_hot_batch": "batch",
}

__all__ = [
    "NEVER",
    "SGD",
    "Adagrad",
    "Adam",
    "AdaptiveError",
    "Batch",
    "Counter",
    "Origin",
    "Planned",
    "Policy",
    "RowOptimizer",
    "RowStats",
    "RowwiseAdagrad",
    "SkipConfig",
    "Statistics",
    "TableConfig",
    "TierConfig",
    "TierView",
    "TieredEmbeddingBag",
    "TrainConfig",
    "concatenate",
    "one_hot_batch",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `adaptive-train --help` need not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'adaptive' has no attribute {name!r}")
    return getattr(importlib.import_module(f"adaptive.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """So that completion offers names that nobody has used yet."""
    return sorted({*globals(), *__all__})
