"""Loops over bytes and ids: the tokenizer, Arrow, checksums, the synthetic stream."""
