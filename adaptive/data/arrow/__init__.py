"""Columns in Arrow's memory format, with the schemas of delimited text: Parquet, frames."""
