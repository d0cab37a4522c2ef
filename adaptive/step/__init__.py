"""What `Trainer` does in a step beside the passes: the check that it is finite, the update of dense weights."""
