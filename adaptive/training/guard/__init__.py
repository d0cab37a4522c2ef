"""The quality guard: check during training that skipping costs no more AUC than a budget.

A *fork* is a copy of the run that skips nothing. Run and fork train the same batches, then both predict the next
samples, which neither has trained on. If the difference, extrapolated to the end of the run, is within the budget, the
run continues and the fork is dropped. If not, the run takes over the fork's values, as if nothing had been skipped, and
the policy may skip less from then on, or nothing. Only a level of skipping that has passed runs without a fork.

In a second pass over the data both have trained the held-back samples before, so the comparison then measures how well
the data are memorized.
"""
