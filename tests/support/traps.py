"""Helpers of the tests of traps: a small table, optimizers, tiers with invalid copies poisoned."""

from collections.abc import Sequence

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policy import Policy
from support.helpers import Scattered

TABLE = (TableConfig(name="t", num_embeddings=60, embedding_dim=4),)
OPTIMIZERS = [SGD(lr=0.5), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]


def build(
    tables: Sequence[TableConfig] = TABLE,
    policy: type[Policy] | Policy = Scattered,
    *,
    optimizer: RowOptimizer = SGD(lr=0.5),  # noqa: B008 (immutable)
    **tier: object,
) -> TieredEmbeddingBag:
    settings = {"device_rows": "100%", "poison": True, "when_full": "reduce_lookahead", "device": "cpu"} | tier
    return TieredEmbeddingBag(tables, TierConfig.model_validate(settings), policy=policy, optimizer=optimizer)
