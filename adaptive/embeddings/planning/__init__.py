"""Planning: decides which rows are on the device, batch by batch, and keeps the books.

It has no value of a row and imports no torch, so that `simulate` uses it as it is.

How a row is numbered, step by step:

    id          number in its table, as the data have it.
    group row   numbered through the tables of one width, which form a *group*: first row of the table + id.
    code        a row's place and latest use: slot + 1 on the device; else 0 or less, with the latest batch and whether
                the host stores the row (`kernels.planning.books`).
    slot        a place for a row on the device, 0 ... num_slots - 1.
    location    for kernels: a slot (>= 0), or ~row on the host (< 0).
    global row  numbered through all tables, for policies and reports. `Group.to_global`, `from_global`.

Other words are those of `docs/reference/glossary.md`. Only code knows these:

    distinct    rows of a batch, each once. `Lookups` has them, the batch's bags, and its lookups by row.
    number      of a batch in training order, from 0. A *position* is one in the data, which a policy may regroup.
    admitted    got a slot. *Evicted*: lost it. (A key is admitted to a row.)
    entry       number of a hot row in the hot set.
    action      of a batch on a row's gradient: update the row, add it to the row's *sum* (defer), apply the sum, skip.
    tally       (tables, counters) counts of one batch's plan; see `Counter`.

Threads: everything here belongs to the planning thread, which is the look-ahead thread, or the training thread if there
is none. Others read the records under the pipeline's lock. Feedback from training arrives at a fixed age.

Read first: `layout` (numbering), `lookups` (what a batch reads), `planner` (what is decided about it).
"""
