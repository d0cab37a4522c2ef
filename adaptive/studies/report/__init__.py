"""One HTML page of what a command left: runs, a comparison, profiles, simulations. It needs no server and no network.

`kinds` says what can be shown: a kind of record, how it is told from others, and a function that makes
`blocks.Section`s of it. `page` alone makes HTML of sections, and escapes every text; `pictures` alone draws.
"""
