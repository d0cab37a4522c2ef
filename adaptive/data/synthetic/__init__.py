"""The built-in stream: skewed ids, correlated fields, a teacher that labels them; the same for a seed anywhere."""
