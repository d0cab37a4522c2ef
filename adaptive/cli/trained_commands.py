"""`adaptive-train eval`, `predict` and `export RUN`: evaluate a trained run, score samples with it, export it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.launching import launch_ranks, refuse_within_ranks, settings_for_ranks
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
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Evaluate in so many processes on this machine, each with a part of the rows (docs/ranks.md); the "
            "numbers are those of one. Under torchrun leave it out.",
        ),
    ] = None,
    sets: ReadingSets = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the saved weights of a run.

    May be called in any folder. Rows lie where the run had them: those in files stay in files.
    """
    settings = given_sets(sets)
    of_run = settings_for_ranks(run, ranks)
    if ranks is not None:
        refuse_within_ranks()
        launch_ranks(ranks, None)
    from adaptive.training.runs import evaluate_run

    given: dict[str, Any] = {"data": data, "by": by, "settings": settings}
    with own_stdout():
        if of_run is None:
            found = evaluate_run(run, **given, stream=sys.stderr)
        else:
            from adaptive.training.runs.distributed import reading_ranks

            with reading_ranks(of_run) as together:
                stream = sys.stderr if together.is_first else None
                found = evaluate_run(run, **given, stream=stream, ranks=together)
                if not together.is_first:
                    return
    print_result(found, as_json=as_json)


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


def export(
    run: RunArgument,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="A new folder, made when all of it is written.", show_default=False)
    ],
    to: Annotated[str, typer.Option(metavar="torch|safetensors|onnx", help="File format of the tensors.")] = "torch",
    sets: ReadingSets = None,
    as_json: AsJson = False,
) -> None:
    """Export a run: tables of plain nn.EmbeddingBags, dense part and id maps, with the code that scores by them.

    The code needs torch and numpy only; of an ONNX file, which takes batches of any size, onnxruntime and numpy.
    Tables are written piece by piece: a table may be larger than memory.
    """
    settings = given_sets(sets)
    from adaptive.serving import export_run

    with own_stdout():
        found = export_run(run, out, to=to, settings=settings)
    print_result(found, as_json=as_json)
