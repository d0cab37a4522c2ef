"""Loops over bytes and ids: the tokenizer, Arrow, pairs, checksums, the synthetic stream."""
