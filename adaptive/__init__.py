"""Train recommendation models whose embedding tables do not fit the accelerator."""

import importlib
from typing import TYPE_CHECKING, Any

from adaptive import former_names

if TYPE_CHECKING:
    from adaptive.batch import Batch, Origin, concatenate, one_hot_batch
    from adaptive.config import SkipConfig, TableConfig, TierConfig, TrainConfig
    from adaptive.counters import Counter
    from adaptive.data.dataset import Dataset, Feature
    from adaptive.data.open import open_dataset
    from adaptive.data.options import DataOptions
    from adaptive.data.synthetic.config import SyntheticConfig
    from adaptive.data.synthetic.stream import Synthetic
    from adaptive.embedding.module import TieredEmbeddingBag
    from adaptive.engine.statistics import Statistics
    from adaptive.errors import AdaptiveError
    from adaptive.evaluation import Evaluation, evaluate
    from adaptive.models.dlrm import DLRM, DLRMConfig
    from adaptive.models.tbsm import TBSM, TBSMConfig
    from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
    from adaptive.own.comparing import compare_policies
    from adaptive.own.guarding import Guard
    from adaptive.own.recording import Recording
    from adaptive.own.simulating import simulate_policies
    from adaptive.planned import Planned
    from adaptive.planning.access_log import AccessLog
    from adaptive.policy import NEVER, Deferral, Policy, RowStats, SkipRule, TierView
    from adaptive.ranks.ddp_hook import sum_in_order
    from adaptive.ranks.torch_transport import TorchRanks
    from adaptive.ranks.traffic import RankTraffic
    from adaptive.runs.loading import LoadedRun, load_run

_HOMES = {
    "AccessLog": "planning.access_log",
    "Adagrad": "optim",
    "Adam": "optim",
    "AdaptiveError": "errors",
    "Batch": "batch.batch",
    "Counter": "counters",
    "DLRM": "models.dlrm",
    "DLRMConfig": "models.dlrm",
    "DataOptions": "data.options",
    "Dataset": "data.dataset",
    "Deferral": "policy",
    "Evaluation": "evaluation",
    "Feature": "data.dataset",
    "Guard": "own.guarding",
    "LoadedRun": "runs.loading",
    "NEVER": "policy",
    "Origin": "batch.batch",
    "Planned": "planned",
    "Policy": "policy",
    "RankTraffic": "ranks.traffic",
    "Recording": "own.recording",
    "RowOptimizer": "optim",
    "RowStats": "policy",
    "RowwiseAdagrad": "optim",
    "SGD": "optim",
    "SkipConfig": "config",
    "SkipRule": "policy",
    "Statistics": "engine.statistics",
    "Synthetic": "data.synthetic.stream",
    "SyntheticConfig": "data.synthetic.config",
    "TBSM": "models.tbsm",
    "TBSMConfig": "models.tbsm",
    "TableConfig": "config",
    "TierConfig": "config",
    "TierView": "policy",
    "TieredEmbeddingBag": "embedding.module",
    "TorchRanks": "ranks.torch_transport",
    "TrainConfig": "config",
    "compare_policies": "own.comparing",
    "concatenate": "batch.joining",
    "evaluate": "evaluation",
    "load_run": "runs.loading",
    "one_hot_batch": "batch.batch",
    "open_dataset": "data.open",
    "simulate_policies": "own.simulating",
    "sum_in_order": "ranks.ddp_hook",
}

__all__ = [
    "DLRM",
    "NEVER",
    "SGD",
    "TBSM",
    "AccessLog",
    "Adagrad",
    "Adam",
    "AdaptiveError",
    "Batch",
    "Counter",
    "DLRMConfig",
    "DataOptions",
    "Dataset",
    "Deferral",
    "Evaluation",
    "Feature",
    "Guard",
    "LoadedRun",
    "Origin",
    "Planned",
    "Policy",
    "RankTraffic",
    "Recording",
    "RowOptimizer",
    "RowStats",
    "RowwiseAdagrad",
    "SkipConfig",
    "SkipRule",
    "Statistics",
    "Synthetic",
    "SyntheticConfig",
    "TBSMConfig",
    "TableConfig",
    "TierConfig",
    "TierView",
    "TieredEmbeddingBag",
    "TorchRanks",
    "TrainConfig",
    "compare_policies",
    "concatenate",
    "evaluate",
    "load_run",
    "one_hot_batch",
    "open_dataset",
    "simulate_policies",
    "sum_in_order",
]
__version__ = "0.1.0"

former_names.register()


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `adaptive-train --help` need not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'adaptive' has no attribute {name!r}")
    return getattr(importlib.import_module(f"adaptive.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """So that completion offers names that nobody has used yet."""
    return sorted({*globals(), *__all__})
