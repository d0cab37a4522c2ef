"""Policies trained side by side on the same data, and what skipping cost."""
