"""Planning: which rows lie where, batch by batch. It decides and keeps the books: no value of a row, no torch.

The words of this room, each with one meaning everywhere in the code (`docs/explanation/design.md` has the
others):

    row         one vector of a table, with its optimizer state. *Global* rows are numbered through all tables, as
                policies see them; *group* rows within a group, *owned* rows among those of it
                that a rank owns (`Group.group_rows`, `owned_rows`); a process alone owns all.
    group       the tables of one width, which share slots. A *lane* is a group with its tiers and its planner.
    slot        a place for a row on the device, 0 ... num_slots - 1.
    code        where a row lies, kept in its record: slot + 1 on the device, -1 on the host, 0 still at its initial
                value, which is stored nowhere.
    location    what kernels are given: a slot (>= 0), or ~row on the host (< 0).
    lookup     one id in a batch. `Lookups` is what a batch asks for: its *distinct rows*, its *bags* (lookups that
                are pooled into one vector) and its lookups by row.
    plan        what is decided about one batch before it is trained: moves, pooling, row updates.
    number      of a batch in training order, from 0. A *position* is one in the data, which a policy may regroup.
    held        needed by a batch that is planned and not trained yet. *Idle*: on the device and not held.
    promoted    has come onto the device. *Demoted*: has left it. *Victim*: a slot whose row is to leave.
    write back  copy a changed row to the host; *fetch*: copy a row to the device. *Dirty*: changed since it came.
    late        gets a slot while batches in flight update it on the host; fetched when training comes to its batch.
    part        a run of samples of one batch, pooled and differentiated alone (a micro-batch).
    watched     in the hot set, so that the row's movement is known. *Entry*: a watched row's number in the set.
    snapshot    a copy of a watched row; *drift*: how far the row has moved since then.
    saturated   at rest, by the skip rule's answer: its updates are left out, or wait.
    deferred    its gradient waits in a *sum*, which is *due* at a later *visit* (a batch that looks the row up).
    fate        of a row's gradient in one batch: update now, due, waits, skipped.
    tally       (tables, counters) what one batch's plan counts; see `Counter`.

Which thread owns what: everything here belongs to whoever plans: the look-ahead thread, or the training thread if there
is none. Others read the records under the pipeline's lock. Feedback from training comes in at a fixed age.

Read first: `layout` (how things are numbered), `lookups` (what a batch asks for), `planner` (what is decided about it).
"""
