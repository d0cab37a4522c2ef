"""`TieredEmbeddingBag`: embedding tables in two tiers, as an `nn.Module` (`module`); its parts by what they are for."""

from adaptive.embedding.module import TieredEmbeddingBag

__all__ = ["TieredEmbeddingBag"]
