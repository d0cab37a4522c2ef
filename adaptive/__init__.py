"""Train recommendation models whose embedding tables do not fit the accelerator."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive.batch import Batch, Origin, concatenate, one_hot_batch
    from adaptive.batch.batch import Refill
    from adaptive.config import SkipConfig, TableConfig, TierConfig, TrainConfig
    from adaptive.counters import Counter
    from adaptive.data.data_options import DataOptions, SyntheticConfig
    from adaptive.data.dataset import Dataset, Feature
    from adaptive.data.open import open_dataset
    from adaptive.data.synthetic import Synthetic
    from adaptive.distributed.sharded_embedding_bag import ShardedEmbeddingBag
    from adaptive.embeddings.engine.statistics import Statistics
    from adaptive.embeddings.planned_batch import Planned
    from adaptive.embeddings.planning.access_log import AccessLog
    from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
    from adaptive.errors import AdaptiveError
    from adaptive.models.click_predictor import ClickPredictor
    from adaptive.models.dense.dlrm import DLRM, TBSM
    from adaptive.models.model_settings import DLRMConfig, TBSMConfig
    from adaptive.optim import FTRL, SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
    from adaptive.policy import (
        NEVER,
        SATURATED,
        ByRow,
        Calibrates,
        Follows,
        InputPolicy,
        InputRule,
        Policy,
        RowStats,
        SkipRule,
        TierView,
    )
    from adaptive.studies.policy_checks import check_policy
    from adaptive.training.evaluation import Evaluation, evaluate
    from adaptive.training.runs.loading import LoadedRun, load_run
    from adaptive.training.telemetry.recording import Recording

_PUBLIC_NAMES = {
    "batch.batch": "Batch Origin Refill concatenate one_hot_batch",
    "config": "SkipConfig TableConfig TierConfig TrainConfig",
    "counters": "Counter",
    "data.data_options": "DataOptions SyntheticConfig",
    "data.dataset": "Dataset Feature",
    "data.open": "open_dataset",
    "data.synthetic": "Synthetic",
    "distributed.sharded_embedding_bag": "ShardedEmbeddingBag",
    "embeddings.engine.statistics": "Statistics",
    "embeddings.planned_batch": "Planned",
    "embeddings.planning.access_log": "AccessLog",
    "embeddings.tiered_embedding_bag": "TieredEmbeddingBag",
    "errors": "AdaptiveError",
    "models.click_predictor": "ClickPredictor",
    "models.dense.dlrm": "DLRM TBSM",
    "models.model_settings": "DLRMConfig TBSMConfig",
    "optim": "Adagrad Adam FTRL RowOptimizer RowwiseAdagrad SGD",
    "policy": "ByRow Calibrates Follows InputPolicy InputRule NEVER Policy RowStats SATURATED SkipRule TierView",
    "studies.policy_checks": "check_policy",
    "training.evaluation": "Evaluation evaluate",
    "training.runs.loading": "LoadedRun load_run",
    "training.telemetry.recording": "Recording",
}
"""Module -> the public names it defines, all of which are imported when they are first used."""
_HOMES = {name: module for module, names in _PUBLIC_NAMES.items() for name in names.split()}

__all__ = [
    "DLRM",
    "FTRL",
    "NEVER",
    "SATURATED",
    "SGD",
    "TBSM",
    "AccessLog",
    "Adagrad",
    "Adam",
    "AdaptiveError",
    "Batch",
    "ByRow",
    "Calibrates",
    "ClickPredictor",
    "Counter",
    "DLRMConfig",
    "DataOptions",
    "Dataset",
    "Evaluation",
    "Feature",
    "Follows",
    "InputPolicy",
    "InputRule",
    "LoadedRun",
    "Origin",
    "Planned",
    "Policy",
    "Recording",
    "Refill",
    "RowOptimizer",
    "RowStats",
    "RowwiseAdagrad",
    "ShardedEmbeddingBag",
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
    "TrainConfig",
    "check_policy",
    "concatenate",
    "evaluate",
    "load_run",
    "one_hot_batch",
    "open_dataset",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `adaptive-train --help` need not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'adaptive' has no attribute {name!r}")
    return getattr(importlib.import_module(f"adaptive.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Include names that are not imported yet, for completion."""
    return sorted({*globals(), *__all__})
