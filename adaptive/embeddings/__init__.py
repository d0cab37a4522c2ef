"""`TieredEmbeddingBag` and everything behind it: planning, tiers, engine, exchange between ranks."""
