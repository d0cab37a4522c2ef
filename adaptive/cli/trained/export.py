"""`adaptive-train export RUN`: a run as files for serving."""

from pathlib import Path
from typing import Annotated

import typer

from adaptive.cli.output import AsJson, ReadingSets, RunArgument, given_sets, own_stdout, print_result


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
