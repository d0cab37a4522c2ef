"""Train recommendation models whose embedding tables do not fit the accelerator."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive.batch import Batch, Origin, concatenate, one_hot_batch
    from adaptive.config import SkipConfig, TableConfig, TierConfig, TrainConfig
    from adaptive.counters import Counter
    from adaptive.data.data_options import DataOptions, SyntheticConfig
    from adaptive.data.dataset import Dataset, Feature
    from adaptive.data.open import open_dataset
    from adaptive.data.synthetic.synthetic_stream import Synthetic
    from adaptive.embeddings.engine.statistics import Statistics
    from adaptive.embeddings.planned_batch import Planned
    from adaptive.embeddings.planning.access_log import AccessLog
    from adaptive.embeddings.ranks.torch_transport import TorchRanks, sum_in_order
    from adaptive.embeddings.ranks.traffic import RankTraffic
    from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
    from adaptive.errors import AdaptiveError
    from adaptive.models.dense.dlrm import DLRM, TBSM
    from adaptive.models.model_settings import DLRMConfig, TBSMConfig
    from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
    from adaptive.policy import NEVER, Policy, RowStats, SkipRule, TierView
    from adaptive.studies.own_loop.loop_guard import Guard
    from adaptive.studies.own_loop.loop_recording import Recording
    from adaptive.studies.own_loop.loop_studies import compare_policies, simulate_policies
    from adaptive.studies.policy_checks import check_policy, check_rule
    from adaptive.training.evaluation import Evaluation, evaluate
    from adaptive.training.runs.loading import LoadedRun, load_run

_HOMES = {
    "AccessLog": "embeddings.planning.access_log",
    "Adagrad": "optim",
    "Adam": "optim",
    "AdaptiveError": "errors",
    "Batch": "batch.batch",
    "Counter": "counters",
    "DLRM": "models.dense.dlrm",
    "DLRMConfig": "models.model_settings",
    "DataOptions": "data.data_options",
    "Dataset": "data.dataset",
    "Evaluation": "training.evaluation",
    "Feature": "data.dataset",
    "Guard": "studies.own_loop.loop_guard",
    "LoadedRun": "training.runs.loading",
    "NEVER": "policy",
    "Origin": "batch.batch",
    "Planned": "embeddings.planned_batch",
    "Policy": "policy",
    "RankTraffic": "embeddings.ranks.traffic",
    "Recording": "studies.own_loop.loop_recording",
    "RowOptimizer": "optim",
    "RowStats": "policy",
    "RowwiseAdagrad": "optim",
    "SGD": "optim",
    "SkipConfig": "config",
    "SkipRule": "policy",
    "Statistics": "embeddings.engine.statistics",
    "Synthetic": "data.synthetic.synthetic_stream",
    "SyntheticConfig": "data.data_options",
    "TBSM": "models.dense.dlrm",
    "TBSMConfig": "models.model_settings",
    "TableConfig": "config",
    "TierConfig": "config",
    "TierView": "policy",
    "TieredEmbeddingBag": "embeddings.tiered_embedding_bag",
    "TorchRanks": "embeddings.ranks.torch_transport",
    "TrainConfig": "config",
    "check_policy": "studies.policy_checks",
    "check_rule": "studies.policy_checks",
    "compare_policies": "studies.own_loop.loop_studies",
    "concatenate": "batch.batch_parts",
    "evaluate": "training.evaluation",
    "load_run": "training.runs.loading",
    "one_hot_batch": "batch.batch",
    "open_dataset": "data.open",
    "simulate_policies": "studies.own_loop.loop_studies",
    "sum_in_order": "embeddings.ranks.torch_transport",
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
    "check_policy",
    "check_rule",
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


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that `adaptive-train --help` need not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'adaptive' has no attribute {name!r}")
    return getattr(importlib.import_module(f"adaptive.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """So that completion offers names that nobody has used yet."""
    return sorted({*globals(), *__all__})
