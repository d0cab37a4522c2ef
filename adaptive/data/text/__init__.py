"""Text as data: a tokeniser that tells file and line, columns by a schema, Criteo, pairs of users and items."""
