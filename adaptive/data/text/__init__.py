"""Text formats: delimited files with a schema, Criteo, user-item pairs."""
