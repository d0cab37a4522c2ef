"""For custom models and training loops what the command line has for its own: records, comparisons, simulations, a
guard. The functions behind the commands do it; these modules hand them what a custom loop has. See
docs/how-to/own-loop.md.
"""
