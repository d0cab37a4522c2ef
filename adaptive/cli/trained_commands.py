"""`adaptive-train eval`, `predict`, `export` and `report`: evaluate a run, score samples, export it, show it."""

import sys
from contextlib import nullcontext
from pathlib import Path

from adaptive.cli import command_options as options
from adaptive.cli.flags import given_sets
from adaptive.cli.launching import launch_ranks, refuse_within_ranks, settings_for_ranks
from adaptive.cli.output import check_folders, own_stdout, print_result


def evaluate(
    run: options.RunArgument,
    data: options.EvalData = None,
    group_by: options.GroupBy = None,
    ranks: options.Ranks = None,
    sets: options.ReadingSets = None,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate the saved weights of a run.

    May be called in any folder. Rows lie where the run had them: those in files stay in files. Ranks give the numbers
    of one process.
    """
    settings = given_sets(sets)
    config = settings_for_ranks(run, ranks)
    if ranks is not None:
        refuse_within_ranks()
        launch_ranks(ranks, None)
    from adaptive.embeddings.ranks import ALONE
    from adaptive.training.runs import evaluate_run
    from adaptive.training.runs.distributed import launched_readers

    with own_stdout(), nullcontext(ALONE) if config is None else launched_readers(config) as group:
        stream = sys.stderr if group.is_first else None
        result = evaluate_run(run, data=data, group_by=group_by, settings=settings, stream=stream, ranks=group)
    if group.is_first:
        print_result(result, as_json=as_json)


def predict(
    run: options.RunArgument,
    out: options.ScoresFile,
    data: options.EvalData = None,
    sets: options.ReadingSets = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict: one score for each sample, in the order of the data; the probability that its label is 1.

    May be called in any folder. Rows lie where the run had them: those in files stay in files. A bad line ends it,
    unless --set data.max_bad_fraction=SHARE lets it pass, without a score.
    """
    settings = given_sets(sets)
    from adaptive.serving import predict_run

    with own_stdout():
        result = predict_run(run, out, data=data, settings=settings)
    print_result(result, as_json=as_json)


def export(
    run: options.RunArgument,
    out: options.ExportFolder,
    to: options.ExportFormat = "torch",
    sets: options.ReadingSets = None,
    as_json: options.AsJson = False,
) -> None:
    """Export a run: tables of plain nn.EmbeddingBags, dense part and id maps, with the code that scores by them.

    The code needs torch and numpy only; of an ONNX file, which takes batches of any size, onnxruntime and numpy.
    Tables are written piece by piece: a table may be larger than memory.
    """
    settings = given_sets(sets)
    from adaptive.serving import export_run

    with own_stdout():
        result = export_run(run, out, to=to, settings=settings)
    print_result(result, as_json=as_json)


def report(
    paths: options.ReportPaths,
    out: options.ReportFile = Path("report.html"),
    as_json: options.AsJson = False,
) -> None:
    """Make one HTML page of runs, a comparison, profiles or simulations. It opens from the file, without a server or a
    network.

    Quality, curves, stages of a step, tier movement, traffic, what was skipped, what the policy reports, the guard's
    decisions, bad lines, settings, versions. Needs the extra 'report': matplotlib.
    """
    from adaptive.studies.report.html_report import write_report

    check_folders(out)
    with own_stdout():
        result = write_report(paths, out)
    print_result(result, as_json=as_json)
