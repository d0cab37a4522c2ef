"""Planning: decides which rows are on the device, batch by batch, and keeps the books.

It has no value of a row and imports no torch, so that `simulate` uses it as it is.

How a row is numbered, step by step:

    id          number in its table, as the data have it.
    group row   numbered through the tables of one width, which form a *group*: first row of the table + id.
    code        entry of the row's record: slot + 1 on the device, -1 on the host, 0 still at its initial value, which
                is stored nowhere.
    slot        a place for a row on the device, 0 ... num_slots - 1.
    location    for kernels: a slot (>= 0), or ~row on the host (< 0).
    global row  numbered through all tables, for policies and reports. `Group.to_global`, `from_global`.

The other words, each with one meaning everywhere (`docs/explanation/design.md` has those of the whole project):

    row         one vector of a table, with its optimizer state.
    lookup      one id in a batch. `Lookups` has a batch's *distinct rows*, its *bags* (lookups that are pooled into one
                vector) and its lookups by row.
    plan        everything decided about one batch before it is trained: moves, pooling, row updates.
    number      of a batch in training order, from 0. A *position* is one in the data, which a policy may regroup.
    held        needed by a planned batch that is not trained yet. *Idle*: on the device and not held.
    admitted    got a slot. *Evicted*: lost it.
    write back  copy a changed row to the host; *fetch*: copy a row to the device. *Dirty*: changed since fetched.
    late        gets a slot while batches in flight update it on the host; fetched right before its batch is trained.
    part        a run of samples of one batch, pooled and differentiated alone (a micro-batch).
    hot         in the hot set, so that the sizes of the row's updates are known. *Entry*: a hot row's number in the
                set.
    saturated   the row's latest updates moved it by less than 5% of its length each.
    deferred    the gradient is accumulated in a *sum*, which is applied at a later *visit* (a batch that looks the row
                up).
    action      of a batch on a row's gradient: update the row, defer, apply the sum, skip.
    tally       (tables, counters) counts of one batch's plan; see `Counter`.

Threads: everything here belongs to the planning thread, which is the look-ahead thread, or the training thread if there
is none. Others read the records under the pipeline's lock. Feedback from training arrives at a fixed age.

Read first: `layout` (numbering), `lookups` (what a batch reads), `planner` (what is decided about it).
"""
