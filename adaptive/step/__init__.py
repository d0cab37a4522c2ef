"""What `Trainer` does in a step beside the passes: the check that it is finite, graphs of the dense part, the
update of dense weights."""
