"""Models: the dense part, from pooled vectors to logits."""
