"""What authors of kernels write with: operations on whole rows, sums of rows, prefetching, vectors of 16 values."""
