"""`adaptive-train run`: train a model."""

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from adaptive.cli.flags import OUTPUT, given_flags, with_flags
from adaptive.cli.launching import launch_ranks, refuse_within_ranks, settings_for_ranks
from adaptive.cli.output import SETTINGS, AsJson, Sets, own_stdout, print_result
from adaptive.errors import ConfigError

if TYPE_CHECKING:
    from adaptive.config import TrainConfig

LENGTHS = ("steps", "epochs")
CODE = ("policy", "skip.rule", "model")  # as in adaptive.plugins, which takes a second to import


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
            "them on the way. Its settings stay, but --steps and --epochs may be given. A policy or rule of its own "
            "that is a file or module must be named again: --policy, --skip.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the run directory if it is not empty.", rich_help_panel=OUTPUT),
    ] = False,
    auto_resume: Annotated[
        bool,
        typer.Option(
            "--auto-resume",
            help="Begin the run in --out, or resume it if it is there, on as many ranks as there are: for launchers "
            "that start the same command again (torchrun --max-restarts).",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Start so many processes on this machine, which train together (docs/ranks.md). Under torchrun, which "
            "starts them itself, leave it out.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    force_unlock: Annotated[
        bool,
        typer.Option(
            "--force-unlock",
            help="Use the run directory though a process of another machine or container seems to hold it: only if you "
            "know that it is gone.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train a model whose embedding tables lie in two tiers, under a policy.

    The first that gives a setting counts: flag, --set, environment (ADAPTIVE_TIER__DEVICE_ROWS), --config, --preset,
    default.
    """
    texts, names = given_flags(flags)
    taken: dict[str, Any] = {"force_unlock": True} if force_unlock else {}
    if resume is not None:
        others = {"--config": config, "--set": sets, "--dry-run": dry_run, "--overwrite": overwrite}
        others |= {"--auto-resume": auto_resume}
        changed = _changed(texts, names, [flag for flag, value in others.items() if value])
        of_run = settings_for_ranks(resume, ranks)
        if ranks is not None and of_run is not None:
            _launch(ranks, of_run)
        from adaptive.embeddings.ranks import ALONE
        from adaptive.training.runs import resume_run
        from adaptive.training.runs.distributed import these_ranks

        with own_stdout(), nullcontext(ALONE) if of_run is None else these_ranks(of_run) as together:
            is_first = together.is_first
            stream = sys.stderr if is_first else None
            found = resume_run(resume, **changed, **taken, stream=stream, ranks=together)
        if is_first:
            print_result(found, as_json=as_json)
        return
    from adaptive.training.settings import load_settings

    settings, origins = load_settings(file=config, sets=sets or (), flags=texts, flag_names=names, environ=os.environ)
    if auto_resume and (overwrite or dry_run or settings.out is None):
        raise typer.BadParameter(
            "--auto-resume needs the directory of the run, --out DIR, and no --overwrite or --dry-run"
        )
    _require_pyarrow(settings.data)
    if ranks is not None and not dry_run:
        _launch(ranks, settings)
    from adaptive.training.runs import auto_resume_run, plan_run, train_run
    from adaptive.training.runs.distributed import these_ranks

    with own_stdout():
        if dry_run:
            given = {key: origin for key, origin in origins.items() if origin != "default"}
            result: Mapping[str, Any] = {**plan_run(settings), "settings_from": given}
        else:
            with these_ranks(settings) as together:
                is_first = together.is_first
                stream = sys.stderr if is_first else None
                if auto_resume:
                    result = auto_resume_run(settings, **taken, stream=stream, ranks=together)
                else:
                    result = train_run(settings, overwrite=overwrite, **taken, stream=stream, ranks=together)
            if not is_first:
                return
    print_result(result, as_json=as_json)


def _require_pyarrow(data: str) -> None:
    """Refuse Parquet files without pyarrow now: libraries and kernels take seconds to load."""
    if data.startswith("parquet:") and find_spec("pyarrow") is None:
        raise ConfigError("parquet: needs pyarrow: pip install 'adaptive-train[parquet]'")


def _launch(ranks: int, settings: "TrainConfig") -> NoReturn:
    """Run the same command line in so many processes, and end as they do."""
    refuse_within_ranks()
    from adaptive.training.runs.distributed import refuse_by_settings

    refuse_by_settings(settings)  # once, and not by each rank
    launch_ranks(ranks, settings.ranks.blocks)


def _changed(texts: dict[str, str], names: dict[str, str], others: list[str]) -> dict[str, Any]:
    """How long a run that is resumed is to be, and whose code is trusted; whatever else is given is a mistake of the
    caller."""
    wrong = [*others, *dict.fromkeys(names[key] for key in texts if key not in (*LENGTHS, *CODE))]
    if wrong:
        raise typer.BadParameter(
            f"--resume goes on with the settings of the run; {', '.join(wrong)} cannot be given with it, only --steps, "
            "--epochs and --json, and --policy, --skip and --model to say that you trust the run's own"
        )
    lengths = {key: text for key, text in texts.items() if key in LENGTHS}
    bad = [
        f"{names[key]} {text}"
        for key, text in lengths.items()
        if not (text.isascii() and text.isdecimal() and int(text))
    ]
    if bad:
        raise typer.BadParameter(f"{', '.join(bad)}: a whole number from 1 on is needed")
    code = {key: text for key, text in texts.items() if key in CODE}
    return {**{key: int(text) for key, text in lengths.items()}, **({"code": code} if code else {})}
