"""`TieredEmbeddingBag` and its parts: planning, tiers, engine."""
