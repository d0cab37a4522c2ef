"""Several processes that train together, each with a `TieredEmbeddingBag` for the rows that it owns."""
