"""What happens to rows on the CPU: a file for each kind of work, under the same name as its twin for the GPU.

Letters: B bags, N look-ups, V output vectors, U rows to update, D width of a row, S width of its state.

A *location* says where a row lies: `>= 0` a slot of the device tier, `< 0` row `~location` of the host tier.
Both tiers are passed to every kernel, so a bag is summed in look-up order wherever its rows lie; this is why
placement cannot change the numbers. Sums over a row are taken in four fixed parts, so results do not depend on the
machine. What is done to whole rows is written with `vector.row_ops` and `vector.row_sums`: LLVM vectorises a loop of
unknown length for long rows, and a row of 16 values would be left to the scalar remainder.
"""
