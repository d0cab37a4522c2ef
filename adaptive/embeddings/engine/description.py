"""What tables in two tiers are, in a few lines: what `repr` shows of a module."""

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.optim import RowOptimizer

MOST_TABLES = 12  # that are told one by one


def describe(pipeline: Pipeline, tier: TierConfig, optimizer: RowOptimizer, device_rows: str) -> str:
    """Lines of text: tables with sizes, device rows and why so many, where rows lie, policy and optimizer."""
    tables = [table for group in pipeline.groups for table in group.tables]
    lines = [*map(_table, tables[:MOST_TABLES])]
    if len(tables) > MOST_TABLES:
        lines.append(f"and {len(tables) - MOST_TABLES} more tables")
    lines.append(device_rows)
    lines.append(f"device {pipeline.mover.device}, host {tier.host}")
    policy = pipeline.policy_caller.policy
    rule = "" if policy.rule is None else f", skip rule {type(policy.rule).__name__}"
    lines.append(f"policy {type(policy).__name__}{rule}, optimizer {optimizer}")
    return "\n".join(lines)


def _table(table: TableConfig) -> str:
    own = "" if table.feature_names == (table.name,) else f" by {', '.join(table.feature_names)}"
    return f"{table.name}: {table.num_embeddings:,} x {table.embedding_dim}, {table.pooling}{own}"
