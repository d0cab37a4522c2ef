"""Building blocks of kernels: operations on rows, sums, prefetching, vectors of 16 values."""
