"""`adaptive-train eval RUN`: repeat the final evaluation of a run."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli.output import AsJson, print_result


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished run.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Evaluate the saved weights of a run on its evaluation data."""
    from adaptive.runs import evaluate_run

    print_result(evaluate_run(run, stream=sys.stderr), as_json=as_json)
