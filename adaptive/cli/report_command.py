"""`adaptive-train report PATH...`: one HTML page of what other commands left."""

from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli.output import AsJson, own_stdout, print_result


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Run directories, a folder of runs, the directory of a comparison or a profile, or a file that "
            "simulate --json printed. Several of one kind stand side by side.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the page goes; a page that is there is replaced.")
    ] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Make one HTML page of runs, a comparison, profiles or simulations. It opens from the file, without a server or a
    network.

    Quality, curves, stages of a step, tier movement, traffic, what was skipped, what the policy reports, the guard's
    decisions, bad lines, settings, versions. Needs the extra 'report': matplotlib.
    """
    from adaptive.cli.compare_command import check_folders
    from adaptive.studies.report.html_report import write_report

    check_folders(out)
    with own_stdout():
        found = write_report(paths, out)
    print_result(found, as_json=as_json)
