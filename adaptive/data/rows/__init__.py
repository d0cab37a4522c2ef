"""Samples as rows of fields, whatever the file format: formats, vocabularies, splits, rejects."""
