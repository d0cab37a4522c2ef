"""`adaptive-train run`: train a model."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.flags import OUTPUT, given_flags, with_flags
from adaptive.cli.output import SETTINGS, AsJson, Sets, print_result


@with_flags
def run(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings from a TOML or JSON file, or the run.json of an earlier run to repeat it.",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    sets: Sets = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print memory per tier and steps; write nothing.", rich_help_panel=OUTPUT),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the run directory if it is not empty.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train a model whose embedding tables lie in two tiers, under a policy.

    The first that gives a setting counts: flag, --set, environment (ADAPTIVE_TIER__DEVICE_ROWS), --config, default.
    """
    texts, names = given_flags(flags)
    from adaptive.settings import load_settings

    settings, origins = load_settings(file=config, sets=sets or (), flags=texts, flag_names=names, environ=os.environ)
    from adaptive.runs import plan_run, train_run

    if dry_run:
        given = {key: origin for key, origin in origins.items() if origin != "default"}
        print_result({**plan_run(settings), "settings_from": given}, as_json=as_json)
    else:
        print_result(train_run(settings, overwrite=overwrite, stream=sys.stderr), as_json=as_json)
