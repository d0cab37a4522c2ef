"""`adaptive-train compare`: train policies side by side, and say what skipping cost."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptive.cli.flags import FLAGS, OUTPUT, given_flags, with_flags
from adaptive.cli.output import SETTINGS, AsJson, Sets, note, own_stdout, print_result

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.studies.compare.comparison_runs import Outcome
    from adaptive.studies.compare.contenders import Contender

COMPARISON = "Comparison"

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Settings from a TOML or JSON file, or the run.json of an earlier run.",
        rich_help_panel=SETTINGS,
    ),
]


def without(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`with_flags`, less the flags that the command has an option of its own for, or no use."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        whole = with_flags(command)
        dropped = {flag.parameter: None for flag in FLAGS if flag.name in names or flag.panel in names}

        @functools.wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            whole(*args, **kwargs, **dropped)

        kept = [p for p in inspect.signature(whole).parameters.values() if p.name not in dropped]
        setattr(wrapper, "__signature__", inspect.Signature(kept))  # noqa: B010 (no such field)
        return wrapper

    return decorate


@without("--policy")
def compare(
    *,
    policies: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Policies to compare, such as hybrid,lru,slipstream+threshold=0.02. --set policy.NAME=VALUE goes to "
            "all that have such a parameter. The first that skips nothing is the control.",
            rich_help_panel=COMPARISON,
        ),
    ] = "hybrid,lru,slipstream",
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="NUMBER",
            help="Trainings of each policy, with --seed, --seed + 1, ...; also the built-in stream's seed.",
            rich_help_panel=COMPARISON,
        ),
    ] = 3,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LIST",
            help="Train every policy with each of these values of a setting that --set takes, such as "
            "batch_size=256,1024,4096; may be repeated: every combination. KEY+KEY=VALUE+VALUE,... varies keys "
            "together.",
            rich_help_panel=COMPARISON,
        ),
    ] = None,
    auc_budget: Annotated[
        float,
        typer.Option(min=0.0, metavar="AUC", help="Loss of AUC that a policy may cause.", rich_help_panel=COMPARISON),
    ] = 0.0005,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the tables as Markdown.", rich_help_panel=OUTPUT),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a line per policy.", rich_help_panel=OUTPUT)
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the runs of an earlier comparison.", rich_help_panel=OUTPUT),
    ] = False,
    auto_resume: Annotated[
        bool,
        typer.Option(
            "--auto-resume",
            help="Go on with the comparison in --out: keep its finished runs of the same settings, train what is "
            "missing (more --seeds, another policy, what was stopped).",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(hidden=True, help="Refused: compare trains in one process.", rich_help_panel=COMPARISON),
    ] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train every policy with the same data order and initial weights, and compare quality, speed and traffic.

    Policies that skip nothing must agree bit for bit, which is checked. A policy that drops inputs is shown beside
    random_drop at the share that it dropped, with the same seeds, without being asked. Each run is kept under --out
    (default runs/<date>-compare) as seed-<seed>/<policy>. A run that fails is told and does not stop the others; the
    exit code is then that of its error. Stopped by Ctrl-C, it compares the runs that are done; --auto-resume trains
    the rest.

    With --sweep policies are compared value by value, and a table over all values follows.
    """
    with own_stdout():
        rivals = _rivals(policies, sweep or [], sets or [], flags, config)
    _refuse_ranks(ranks, rivals)
    check_folders(markdown, csv)
    from adaptive.studies.compare.comparison_runs import claim, trainings

    if auto_resume and (overwrite or rivals[0].config.out is None):
        raise typer.BadParameter("--auto-resume needs the directory of the comparison, --out DIR, and no --overwrite")
    directory = claim(rivals[0].config.out, overwrite=overwrite, auto_resume=auto_resume)
    tell = functools.partial(_tell, directory, auc_budget, as_json=as_json, markdown=markdown, csv=csv)
    outcomes: list[Outcome] = []
    try:
        with own_stdout():
            for outcome in trainings(
                rivals, seeds, directory, overwrite=overwrite, auto_resume=auto_resume, stream=sys.stderr, told=note
            ):
                outcomes.append(outcome)
    except (SystemExit, KeyboardInterrupt):  # hours of training may be done
        if outcomes:
            done = sum(outcome.beside is None for outcome in outcomes)
            tell(outcomes, stopped=[f"stopped after {done} of {seeds * len(rivals)} runs; the others are missing here"])
        raise
    _refuse_problems([outcome.error for outcome in outcomes], tell(outcomes))


def _refuse_ranks(ranks: int | None, rivals: "Sequence[Contender]") -> None:
    """One process trains all policies in turn.

    Raises:
        ConfigError: if several are to, or settings are only for those.
    """
    from adaptive.embeddings.ranks.launch import is_rank
    from adaptive.errors import ConfigError

    blocks = next((one.config.ranks.blocks for one in rivals if one.config.ranks.blocks is not None), None)
    said = {f"--ranks {ranks}": ranks is not None, "torchrun": is_rank(), f"ranks.blocks={blocks}": blocks is not None}
    if given := [word for word, holds in said.items() if holds]:
        raise ConfigError(
            f"{', '.join(given)}: compare trains in one process: it holds runs against each other bit for bit, and one "
            "that fails must not stop the others. Train each policy with `adaptive-train run --ranks N --out DIR`, and "
            "see them side by side with `adaptive-train report DIR DIR`"
        )


def _rivals(
    policies: str, sweep: Sequence[str], sets: list[str], flags: Mapping[str, Any], config: Path | None
) -> "list[Contender]":
    """The policies with every combination of the values that are swept. All settings are checked here."""
    from adaptive.studies.compare.contenders import sweep_points

    given = {text.partition("=")[0].strip(): "--set" for text in sets} | given_flags(flags)[1]
    rivals: list[Contender] = []
    for swept in sweep_points(sweep, given):
        # parameters of policies go to those that have them, as those of --set do
        own = [f"{value.key}={value.text}" for value in swept if value.key.startswith("policy.")]
        more = {value.key: (value.text, value.place) for value in swept if not value.key.startswith("policy.")}
        found = load_contenders(policies, [*sets, *own], flags, config, flag="--policies", more=more)
        rivals += [replace(one, swept=swept) for one in found]
    return rivals


def _tell(
    directory: Path,
    auc_budget: float,
    outcomes: "Sequence[Outcome]",
    *,
    as_json: bool,
    markdown: Path | None,
    csv: Path | None,
    stopped: Sequence[str] = (),
) -> list[str]:
    """Keep and print what the runs say; returns the problems."""
    from adaptive.studies.compare.comparison_report import comparison_csv, comparison_document
    from adaptive.studies.compare.comparison_runs import write_record
    from adaptive.studies.compare.verdicts import judge

    result = judge(outcomes, auc_budget=auc_budget)
    problems = [*result.problems, *stopped]
    result = replace(result, problems=problems, out=str(directory))
    write_record(directory, result)
    document = comparison_document(result)
    print_result({**asdict(result), "table": f"{document.to_text()}\nruns: {directory}"}, as_json=as_json)
    for path, text in ((markdown, document.to_markdown), (csv, lambda: comparison_csv(result))):
        if path is not None:
            write_text(path, text())
    return problems


def _refuse_problems(errors: Sequence[Exception | None], problems: Sequence[str]) -> None:
    """Everything has been told; the exit code says that not all went well."""
    from adaptive.errors import PolicyError

    for error in errors:
        if error is not None:
            raise error
    if problems:
        raise PolicyError("; ".join(problems))


def load_contenders(
    policies: str,
    sets: list[str],
    given: Mapping[str, Any],
    file: Path | None,
    *,
    flag: str,
    more: Mapping[str, tuple[str, str]] | None = None,
) -> "list[Contender]":
    """The policies of the list with the settings that the command line gives them.

    Args:
        policies: the list, as given by `flag`.
        sets: KEY=VALUE.
        given: the command's flags, by parameter.
        file: of `--config`.
        flag: for messages.
        more: key -> value and flag of settings for which the command has an option of its own.
    """
    from adaptive.studies.compare.contenders import contenders
    from adaptive.training.settings import load_settings

    texts, names = given_flags(given)
    for key, (text, name) in (more or {}).items():
        texts[key], names[key] = text, name

    def load(label: str, spec: str, options: Mapping[str, str], sets: Sequence[str]) -> "TrainConfig":
        own = {f"policy.{name}": text for name, text in options.items()}
        flags = {**texts, "policy": spec, **own}
        flag_names = {**names, "policy": flag, **dict.fromkeys(own, f"{flag} {label}")}
        return load_settings(file=file, sets=sets, flags=flags, flag_names=flag_names, environ=os.environ)[0]

    return contenders(policies, sets, load)


def check_folders(*paths: Path | None) -> None:
    """Files that are to be written at the end have a folder now, which takes them.

    Raises:
        OutputError: if one has not.
    """
    from adaptive.errors import OutputError

    for path in filter(None, paths):
        parent = path.absolute().parent
        if not parent.is_dir():
            raise OutputError(f"{path} cannot be written: there is no folder {path.parent}")
        if path.is_dir():
            raise OutputError(f"{path} cannot be written: it is a folder; name a file")
        if not os.access(parent, os.W_OK):
            raise OutputError(f"{path} cannot be written: folder {path.parent} takes no new files")


def write_text(path: Path, text: str) -> None:
    """Write a file whole, or raise `OutputError`."""
    from adaptive.errors import OutputError
    from adaptive.storage.durable import write_atomic

    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise OutputError(f"{path} could not be written: {error}") from error
