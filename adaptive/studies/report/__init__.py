"""One HTML page of what a command left: runs, a comparison, profiles, simulations. It needs no server and no network.

`html_report.KINDS` says what can be shown; `run_page` and `study_pages` make the blocks of a `Document` of it, and
`adaptive.studies.charts` draws.
"""
