"""Data sets: built-in streams, text, Parquet, arrays, sequences, prepared data.

`open_dataset` opens any of them. Loops over bytes and ids are in `data.kernels`; `Batch` is in `adaptive.batch`.
"""
