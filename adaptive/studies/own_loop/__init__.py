"""For models and loops of one's own, what the command line has for its own: record, comparisons, simulations, a guard.

Nothing is done here a second time: `telemetry`, `compare`, `simulate` and `guard` do it, these modules hand them what a
loop of one's own has. See docs/own-loop.md.
"""
