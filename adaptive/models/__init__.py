"""Dense models: from dense inputs and pooled vectors to logits. Embedding tables are in `adaptive.embeddings`."""
