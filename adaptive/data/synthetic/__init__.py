"""The built-in stream: skewed ids, correlated fields, labels of a teacher."""
