"""`adaptive-train run`: train a model."""

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from adaptive.cli import options
from adaptive.cli.launching import launch_ranks
from adaptive.cli.options import given_flags, with_flags
from adaptive.cli.output import own_stdout, print_result
from adaptive.errors import ConfigError
from adaptive.system import is_rank, loading_libraries

LENGTHS, UNTIL = ("steps", "epochs"), "until"
CODE = ("policy", "skip.rule", "model")  # as in adaptive.plugins, which takes a second to import


@with_flags()
def run(
    *,
    config: options.Config = None,
    sets: options.Sets = None,
    follow: options.Follow = False,
    until: options.Until = None,
    dry_run: options.DryRun = False,
    resume: options.Resume = None,
    overwrite: options.Overwrite = False,
    auto_resume: options.AutoResumeRun = False,
    ranks: options.Ranks = None,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Train a model whose embedding tables are stored in two tiers.

    Settings are resolved in this order: flag, --set, environment variable (ADAPTIVE_TIER__DEVICE_ROWS), --config,
    --preset, default.
    """
    texts, names = given_flags(flags)
    for flag, text in {"follow": "true" if follow else None, "until": until}.items():
        if text is not None:
            texts[flag], names[flag] = text, f"--{flag}"
    if resume is not None:
        others = {"--config": config, "--set": sets, "--dry-run": dry_run, "--overwrite": overwrite}
        others |= {"--auto-resume": auto_resume}
        _refuse_changes(texts, names, [flag for flag, value in others.items() if value])
        _resume(resume, texts, ranks, verbose=verbose, as_json=as_json)
        return
    with loading_libraries():
        from adaptive.training.settings import load_settings

    settings, origins = load_settings(file=config, sets=sets or (), flags=texts, flag_names=names, environ=os.environ)
    if auto_resume and (overwrite or dry_run or settings.out is None):
        raise typer.BadParameter(
            "--auto-resume: expected --out DIR, the directory of the run, and no --overwrite or --dry-run"
        )
    if settings.data.startswith("parquet:") and find_spec("pyarrow") is None:  # libraries and kernels take seconds
        raise ConfigError(
            "data parquet: expected pyarrow, which is not installed. Run pip install 'adaptive-train[parquet]'"
        )
    if ranks is not None and not dry_run:
        launch_ranks(ranks)
    with loading_libraries():
        from adaptive.training.runs import auto_resume_run, plan_run, train_run
        from adaptive.training.runs.distributed import launched_peers

    with own_stdout():
        if dry_run:
            changed = {key: origin for key, origin in origins.items() if origin != "default"}
            result: Mapping[str, Any] = {**plan_run(settings), "settings_from": changed}
        else:
            with launched_peers(settings) as peers:
                is_first = peers is None or peers.is_first
                stream = sys.stderr if is_first else None
                if auto_resume:
                    result = auto_resume_run(settings, stream=stream, peers=peers)
                else:
                    result = train_run(settings, overwrite=overwrite, stream=stream, peers=peers)
            if not is_first:
                return
    print_result(result, as_json=as_json, verbose=verbose)


def _refuse_changes(texts: Mapping[str, str], names: Mapping[str, str], others: list[str]) -> None:
    """Check that a resumed run gets only another length, and the code that the user trusts."""
    wrong = [*others, *dict.fromkeys(names[key] for key in texts if key not in (*LENGTHS, UNTIL, *CODE))]
    if wrong:
        raise typer.BadParameter(
            f"--resume: expected only --steps, --epochs, --until or --json, got {', '.join(wrong)}. All other settings "
            "are those of the run; repeat --policy, --skip or --model only to confirm that you trust its code"
        )
    lengths = {key: text for key, text in texts.items() if key in LENGTHS}
    if bad := [
        f"{names[key]} {text}"
        for key, text in lengths.items()
        if not (text.isascii() and text.isdecimal() and int(text))
    ]:
        raise typer.BadParameter(f"expected a whole number above 0, got {', '.join(bad)}")


def _resume(run: Path, texts: Mapping[str, str], ranks: int | None, *, verbose: bool, as_json: bool) -> None:
    if ranks is not None:
        launch_ranks(ranks)
    with loading_libraries():
        from adaptive.storage.run_directory import read_record
        from adaptive.training.runs import resume_run
        from adaptive.training.runs.distributed import launched_peers
        from adaptive.training.runs.run_record import config_of

    changed: dict[str, Any] = {key: int(text) for key, text in texts.items() if key in LENGTHS}
    changed |= {key: texts[key] for key in texts if key == UNTIL}
    if code := {key: text for key, text in texts.items() if key in CODE}:
        changed["code"] = code
    with own_stdout(), launched_peers(config_of(read_record(run), run)) if is_rank() else nullcontext() as peers:
        is_first = peers is None or peers.is_first
        result = resume_run(run, **changed, stream=sys.stderr if is_first else None, peers=peers)
    if is_first:
        print_result(result, as_json=as_json, verbose=verbose)
