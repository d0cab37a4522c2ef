"""Policies trained side by side on the same data, and a verdict on what skipping cost. One training is in `runs`."""
