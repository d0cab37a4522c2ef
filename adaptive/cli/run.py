"""`adaptive-train run`: train a model."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.flags import OUTPUT, given_flags, with_flags
from adaptive.cli.output import SETTINGS, AsJson, Sets, own_stdout, print_result


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
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUNDIR",
            help="Go on with a run that was stopped or killed, from its newest checkpoint; --set save_every=N makes "
            "them on the way. Its settings stay, but --steps and --epochs may be given.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the run directory if it is not empty.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train a model whose embedding tables lie in two tiers, under a policy.

    The first that gives a setting counts: flag, --set, environment (ADAPTIVE_TIER__DEVICE_ROWS), --config, --preset,
    default.
    """
    texts, names = given_flags(flags)
    if resume is not None:
        others = {"--config": config, "--set": sets, "--dry-run": dry_run, "--overwrite": overwrite}
        lengths = _lengths(texts, names, [flag for flag, value in others.items() if value])
        from adaptive.runs import resume_run

        with own_stdout():
            found = resume_run(resume, **lengths, stream=sys.stderr)
        print_result(found, as_json=as_json)
        return
    from adaptive.settings import load_settings

    settings, origins = load_settings(file=config, sets=sets or (), flags=texts, flag_names=names, environ=os.environ)
    from adaptive.runs import plan_run, train_run

    with own_stdout():
        if dry_run:
            given = {key: origin for key, origin in origins.items() if origin != "default"}
            found = {**plan_run(settings), "settings_from": given}
        else:
            found = train_run(settings, overwrite=overwrite, stream=sys.stderr)
    print_result(found, as_json=as_json)


def _lengths(texts: dict[str, str], names: dict[str, str], others: list[str]) -> dict[str, int]:
    """How long a run that is resumed is to be; whatever else is given is a mistake of the caller."""
    wrong = [*others, *dict.fromkeys(names[key] for key in texts if key not in ("steps", "epochs"))]
    if wrong:
        raise typer.BadParameter(
            f"--resume goes on with the settings of the run; {', '.join(wrong)} cannot be given with it, only --steps, "
            "--epochs and --json"
        )
    bad = [f"{names[key]} {text}" for key, text in texts.items() if not text.isdecimal() or int(text) < 1]
    if bad:
        raise typer.BadParameter(f"{', '.join(bad)}: a whole number from 1 on is needed")
    return {key: int(text) for key, text in texts.items()}
