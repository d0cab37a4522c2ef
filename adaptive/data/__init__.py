"""Sources of batches: the built-in stream, and text files; `open_dataset` opens either.

The loops over bytes and ids are in `kernels.data`; `Batch` itself is in `adaptive.batch`.
"""
