"""`adaptive-train predict RUN`: scores of samples."""

from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli.output import AsJson, ReadingSets, RunArgument, given_sets, own_stdout, print_result


def predict(
    run: RunArgument,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Written when it is whole: .csv, .parquet (needs pyarrow) or .npy.", show_default=False
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Data to score, such as csv:PATH, with or without labels; a path alone is of the run's kind. Default: "
            "the run's own evaluation part.",
            show_default=False,
        ),
    ] = None,
    sets: ReadingSets = None,
    as_json: AsJson = False,
) -> None:
    """Predict: one score for each sample, in the order of the data; the probability that its label is 1.

    May be called in any folder. Rows lie where the run had them: those in files stay in files. A bad line ends it,
    unless --set data.max_bad_fraction=SHARE lets it pass, without a score.
    """
    settings = given_sets(sets)
    from adaptive.serving import predict_run

    with own_stdout():
        found = predict_run(run, out, data=data, settings=settings)
    print_result(found, as_json=as_json)
