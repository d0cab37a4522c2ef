"""`adaptive-train reproduce`: reproduce figures and tables of papers."""

import functools
import io
import json
import shlex
import signal
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer
from typer import Abort

from adaptive.cli import command_options as options
from adaptive.cli.flags import given_sets
from adaptive.cli.output import make_folders, note, own_stdout, print_result


def reproduce(
    context: typer.Context,
    paper: options.Paper = None,
    listing: options.ListPapers = False,
    quick: options.Quick = False,
    seeds: options.PaperSeeds = None,
    data: options.Data = None,
    schema: options.Schema = None,
    out: options.PaperFolder = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
) -> None:
    """Reproduce a paper's figures and tables, and check its claims.

    Prints the commands, their tables, and the claims that come out, do not, or are not available here, with the
    reason. Writes the same as report.md. After Ctrl-C, it reports the finished commands.

    Every number is marked as measured, modeled or from the paper. Claims are checked on your data, so other data may
    give other answers.
    """
    from adaptive.errors import ConfigError, OutputError
    from adaptive.studies.plots import need_matplotlib
    from adaptive.studies.reproduce.paper import load_paper, paper_names
    from adaptive.studies.reproduce.reproduction import SEEDED, command_lines
    from adaptive.studies.reproduce.reproduction import reproduce as run_commands

    if listing:
        papers = [load_paper(name) for name in paper_names()]
        texts = ["\n    ".join([f"{p.name}: {p.title}", *(c.shows for c in p.commands)]) for p in papers]
        keys = ("name", "title", "source")
        facts = [{key: getattr(p, key) for key in keys} | {"commands": list(map(vars, p.commands))} for p in papers]
        print_result({"papers": facts}, table="\n".join(texts), as_json=as_json)
        return
    if paper is None:
        raise ConfigError(f"reproduce: expected a paper, one of {', '.join(paper_names())}. See --list")
    chosen = load_paper(paper)
    if schema is not None and data is None:
        raise ConfigError(
            f"--schema: expected --data with it, got only --schema {schema}. The built-in stream has no schema"
        )
    if seeds is not None and not any(command.verb in SEEDED for command in chosen.commands):
        raise ConfigError(f"--seeds: expected a paper that compares policies, got {chosen.name}. Leave --seeds out")
    given_sets(sets)
    folder = out or Path("runs") / f"reproduce-{chosen.name}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"expected a new or empty folder, got {folder}. Choose another with --out")
    need_matplotlib("reproduce")
    make_folders(folder)
    more = [*(["--data", data] if data is not None else []), *(["--schema", str(schema)] if schema else [])]
    more += [word for text in sets or () for word in ("--set", text)]
    lines = command_lines(chosen, folder, quick=quick, seeds=seeds, more=more)
    for _, words in lines:
        note(f"adaptive-train {shlex.join(words)}")
    run = functools.partial(_run, context.find_root().command)
    with own_stdout():
        result = run_commands(chosen, lines, folder, run, quick=quick, on_progress=note)
    print_result(result, as_json=as_json)
    if result["stopped_by"] is not None:
        note(f"stopped: {folder} has the results of the finished commands")
        raise SystemExit(result["stopped_by"])


FAILURES = 128  # exit codes above are those of signals


def _run(command: Any, words: Sequence[str]) -> dict[str, Any]:
    """Run a command and return the object that it prints with `--json`.

    Raises:
        StoppedError: if a signal ended it.
    """
    from adaptive.studies.reproduce.reproduction import StoppedError

    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            code = command.main([*words, "--json"], prog_name="adaptive-train", standalone_mode=False)
    except (KeyboardInterrupt, Abort) as interrupted:
        raise StoppedError(128 + signal.SIGINT) from interrupted
    except SystemExit as ended:
        if not isinstance(ended.code, int) or ended.code <= FAILURES:
            raise
        code = ended.code
    if isinstance(code, int) and code > FAILURES:
        raise StoppedError(code)
    record: dict[str, Any] = json.loads(printed.getvalue())
    return record
