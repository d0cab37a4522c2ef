"""`TieredEmbeddingBag` and its parts: planning, tiers, engine, exchange between ranks."""
