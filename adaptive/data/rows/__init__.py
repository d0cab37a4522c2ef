"""Samples as rows of fields: formats, vocabularies, splits, rejects."""
