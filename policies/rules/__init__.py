"""Skip rules, which decide on skipped and deferred updates: one rule, one file."""
