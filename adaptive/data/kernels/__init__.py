"""Loops over bytes and ids: the tokenizer, Arrow, the synthetic stream."""
