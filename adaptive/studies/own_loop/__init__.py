"""Records, comparisons and simulations for custom models and training loops.

These modules call the functions behind the commands with the parts of a custom loop. See docs/how-to/own-loop.md.
"""
