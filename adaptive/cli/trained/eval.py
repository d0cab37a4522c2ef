"""`adaptive-train eval RUN`: repeat the final evaluation of a run, or evaluate it on other data."""

import sys
from typing import Annotated

import typer

from adaptive.cli.output import AsJson, ReadingSets, RunArgument, given_sets, own_stdout, print_result


def evaluate(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Evaluate on all samples of these data, such as csv:PATH; a path alone is of the run's kind. Default: "
            "the run's own evaluation part.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="FEATURE",
            help="Also GAUC, the mean AUC within the samples of each value of a feature, such as the user.",
            show_default=False,
        ),
    ] = None,
    sets: ReadingSets = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the saved weights of a run.

    May be called in any folder. Rows lie where the run had them: those in files stay in files.
    """
    settings = given_sets(sets)
    from adaptive.runs import evaluate_run

    with own_stdout():
        found = evaluate_run(run, data=data, by=by, settings=settings, stream=sys.stderr)
    print_result(found, as_json=as_json)
