"""Kernels for rows on the CPU, in files of the same names as their twins for the GPU.

Letters: B bags, N lookups, V output vectors, U rows to update, D width of a row, S width of its state.

A *location* tells where a row is: `>= 0` a slot of the device tier, `< 0` row `~location` of the host tier.
Arguments that belong together are tuples:

    bags      vectors (B,) int32, starts (B + 1,) int64, inverse (N,) int32, locations of distinct rows (int64), scales
              (N,) float32 or empty (all 1): bag b sums the rows at locations[inverse[p]] of its lookups p
    lookups   locations (U,) int64, each row once; segments (U + 1,) int64, start of each row's lookups, none empty;
              vectors (int32, rows of the gradients) and scales (float32, or empty: all 1) of these; gradients (V, D)
    tiers     device_weights, device_state, host_weights, host_state: (rows, D) and (rows, S), float32 or bfloat16
    rule      kind, settings and corrections of an optimizer, see `steps`
    results   keys (U,) uint64 that round bfloat16 (`rounding`), or empty: to nearest; norms (1 or 2, U) float32, which
              receive the L2 norm of each change and, in a second line, that of the row before it

Both tiers are passed to every kernel, so a bag is summed in lookup order wherever its rows are; this is why
placement cannot change the numbers. Sums over a row are taken in four fixed parts, so results do not depend on the
machine. Work on whole rows is written with `vector.row_ops` and `vector.row_sums`: LLVM vectorizes a loop of
unknown length for long rows, and would leave a row of 16 values to the scalar remainder.
"""
