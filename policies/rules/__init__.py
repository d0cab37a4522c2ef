"""Skip rules: which gradients are skipped or deferred, next to any policy. One rule per file; `resting` is shared."""
