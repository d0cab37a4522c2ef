"""Sources of batches: built-in streams, text files, sequences; `open_dataset` opens any.

The loops over bytes and ids are in `data.kernels`; `Batch` itself is in `adaptive.batch`.
"""
