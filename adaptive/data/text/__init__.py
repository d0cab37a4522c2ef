"""Text formats: delimited files with a schema, Criteo."""
