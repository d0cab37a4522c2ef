"""One HTML page of what a command left: runs, a comparison, profiles, simulations. It needs no server and no network.

`html_report.KINDS` says what can be shown: a kind of record, how it is told from others, and a function that makes the
blocks of a `Document` of it. `adaptive.studies.charts` draws.
"""
