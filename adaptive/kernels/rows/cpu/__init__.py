"""Kernels for rows on the CPU, in files of the same names as their twins for the GPU.

Letters: B bags, N lookups, V output vectors, U rows to update, D width of a row, S width of its state.

A *location* tells where a row is: `>= 0` a slot of the device tier, `< 0` row `~location` of the host tier.
Both tiers are passed to every kernel, so a bag is summed in lookup order wherever its rows are; this is why
placement cannot change the numbers. Sums over a row are taken in four fixed parts, so results do not depend on the
machine. Work on whole rows is written with `vector.row_ops` and `vector.row_sums`: LLVM vectorizes a loop of
unknown length for long rows, and would leave a row of 16 values to the scalar remainder.
"""
