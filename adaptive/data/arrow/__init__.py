"""Columns in Arrow's memory format as data: Parquet files and frames, by the schemas that delimited text has, too."""
