"""One HTML page of the results of a command: runs, a comparison, profiles, simulations.

The page needs no server and no network. `html_report.KINDS` lists what a page can show, `run_page` and `study_pages`
build the blocks of its `Document`, and `adaptive.studies.charts` draws.
"""
