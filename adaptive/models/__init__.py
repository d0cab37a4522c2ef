"""Dense models: they map dense inputs and pooled vectors to logits."""
