"""The quality guard: whether what a policy skips stays within a loss of AUC, judged while the run trains.

A *fork* is a copy of the run that skips nothing. Run and fork train the same batches side by side, then both predict
coming samples that neither has trained on. If the difference, carried to the end of the run, is within the budget, the
run goes on and the fork is dropped; if not, the run takes over the fork's values, as if nothing had been skipped, and
the policy may skip less from then on, or nothing. Skipping goes unwatched only at a level that has passed.

In a second pass over the data the held-back samples have been trained before, by both alike: what they then show is how
well the data are learnt by heart.
"""
