"""`adaptive-train eval`, `predict`, `export`: commands that read runs."""

import sys

from adaptive.cli import options
from adaptive.cli.options import given_sets
from adaptive.cli.output import own_stdout, print_result
from adaptive.system import loading_libraries


def evaluate(
    run: options.RunArgument,
    data: options.EvalData = None,
    group_by: options.GroupBy = None,
    sets: options.ReadingSets = None,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate the saved weights of a run.

    Works in any folder. Rows in files stay in files.
    """
    settings = given_sets(sets)
    with loading_libraries():
        from adaptive.training.runs import evaluate_run

    with own_stdout():
        result = evaluate_run(run, data=data, group_by=group_by, settings=settings, stream=sys.stderr)
    print_result(result, as_json=as_json)


def predict(
    run: options.RunArgument,
    out: options.ScoresFile,
    data: options.EvalData = None,
    with_: options.WithColumns = None,
    sets: options.ReadingSets = None,
    as_json: options.AsJson = False,
) -> None:
    """Write one score per sample: the probability that its label is 1.

    Works in any folder. Rows in files stay in files. A bad line stops it, unless --set data.max_bad_fraction=SHARE
    allows bad lines, which then get no score.
    """
    settings = given_sets(sets)
    with loading_libraries():
        from adaptive.serving import predict_run

    with own_stdout():
        result = predict_run(
            run, out, data=data, columns=tuple(filter(None, (with_ or "").split(","))), settings=settings
        )
    print_result(result, as_json=as_json)


def export(
    run: options.RunArgument,
    out: options.ExportFolder,
    row_dtype: options.ExportRows = "float32",
    check: options.ExportCheck = None,
    sets: options.ReadingSets = None,
    as_json: options.AsJson = False,
) -> None:
    """Export a run as plain nn.EmbeddingBag tables, with code that computes scores.

    The code needs only torch and numpy. Tables are written piece by piece, so they may be larger than memory.
    """
    settings = given_sets(sets)
    from adaptive.serving import export_run

    with own_stdout():
        result = export_run(run, out, row_dtype=row_dtype, check=check, settings=settings)
    print_result(result, as_json=as_json)
