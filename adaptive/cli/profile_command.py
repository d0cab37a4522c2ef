"""`adaptive-train profile`: what the data look up, where a step's time goes, how hot rows come to rest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.compare_command import Config, check_folders, load_contenders, without, write_text
from adaptive.cli.flags import OUTPUT, POLICY, given_flags
from adaptive.cli.output import AsJson, Sets, note, own_stdout, print_result

PROFILE = "Profile"
TIERED = "10%"  # of the rows on the device, where nobody says otherwise: else policies would have nothing to decide


def listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


@without("--policy", "--out", "--steps", "--epochs", "--eval-every", "--skip")
def profile(
    *,
    sections: Annotated[
        str, typer.Option(metavar="LIST", help="Parts: data, step, movement.", rich_help_panel=PROFILE)
    ] = "data,step",
    samples: Annotated[
        int,
        typer.Option(min=0, metavar="NUMBER", help="data: samples to count, at most; 0: all.", rich_help_panel=PROFILE),
    ] = 1_000_000,
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZES",
            help="data: memory for hot rows: bytes (512MiB), per cent of all rows (10%) or rows.",
            rich_help_panel=PROFILE,
        ),
    ] = "1%,5%,10%,20%",
    sample: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="data: share of the inputs for the sampled curve and FAE's estimate.",
            rich_help_panel=PROFILE,
        ),
    ] = "5%",
    policies: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="step: policies to train; their device tier has 10% of the rows unless --device-rows says else.",
            rich_help_panel=POLICY,
        ),
    ] = "hybrid,device,lfu",
    time_steps: Annotated[
        int,
        typer.Option(
            min=5,
            metavar="STEPS",
            help="step: steps of each policy, without look-ahead and with it.",
            rich_help_panel=PROFILE,
        ),
    ] = 50,
    steps: Annotated[
        int, typer.Option(min=1, metavar="STEPS", help="movement: steps to train.", rich_help_panel=PROFILE)
    ] = 400,
    every: Annotated[
        int,
        typer.Option(min=1, metavar="STEPS", help="movement: steps from reading to reading.", rich_help_panel=PROFILE),
    ] = 50,
    link: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="step.png: link with which what crosses is modelled without a GPU.",
            rich_help_panel=OUTPUT,
        ),
    ] = "50GB/s",
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the measured rates of this machine, which simulate and placements read as --machine FILE.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="DIR", help="Write a file a table.", rich_help_panel=OUTPUT)
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png", metavar="DIR", help="Draw the pictures (needs the extra 'report').", rich_help_panel=OUTPUT
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write profile.json there, and tables and pictures.", rich_help_panel=OUTPUT),
    ] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Look before you train: skew, hot rows and inputs by memory, where a step's time goes, how rows come to rest.

    Everything is measured on your data and this machine. Ctrl-C keeps what is done.
    """
    given = {text.partition("=")[0].strip() for text in sets or []} | set(given_flags(flags)[0])
    more = {} if "tier.device_rows" in given or config else {"tier.device_rows": (TIERED, "profile")}
    with own_stdout():
        rivals = load_contenders(policies, sets or [], flags, config, flag="--policies", more=more)
    check_folders(save)
    folders = [folder for folder in (out, csv or out, png or out) if folder is not None]
    from adaptive.config import parse_sample
    from adaptive.errors import ConfigError
    from adaptive.studies.charts import need_matplotlib
    from adaptive.studies.machines import write_machine
    from adaptive.studies.profile.data_profile import DataQuestion
    from adaptive.studies.profile.movement import MovementLength
    from adaptive.studies.profile.profile_report import profile_document
    from adaptive.studies.profile.profiling import Question
    from adaptive.studies.profile.profiling import profile as run_profile
    from adaptive.studies.profile.step_profile import StepLength, check_measurable
    from adaptive.studies.step_model import parse_rate
    from adaptive.system import stop_request
    from adaptive.training.build import open_data

    if png is not None:
        need_matplotlib()
    rate = parse_rate(link, name="--link")
    try:
        share = parse_sample(sample)
    except ValueError as error:
        raise ConfigError(f"--sample: {error}") from error
    if not isinstance(share, float):
        raise ConfigError(f"--sample {sample!r}: needed a share of the inputs, such as 5%")
    question = Question(
        parts=listed(sections),
        data=DataQuestion(samples=samples or None, sample_share=share),
        memory=listed(memory),
        step=StepLength(steps=time_steps),
        movement=MovementLength(steps, every),
        with_rates=save is not None,
    )
    cases = [(rival.label, rival.config) for rival in rivals]
    if save is not None:
        check_measurable(cases)
    make_folders(folders)
    with own_stdout():
        dataset = open_data(cases[0][1])  # may read all files; nothing is done yet that a first Ctrl-C would keep
    with stop_request() as stop:
        with own_stdout():
            result, machine = run_profile(cases, question, dataset=dataset, stopped=lambda: bool(stop), told=note)
        if machine is not None and save is not None:
            write_machine(save, machine)
            result["machine"] = machine.model_dump(exclude_none=True)
        elif save is not None:
            note(f"stopped before this machine's rates were measured: {save} was not written")
        _keep(result, out, csv or out, png or out, rate, must_draw=png is not None)
        print_result({**result, "table": profile_document(result).to_text()}, as_json=as_json)
        stop.raise_exit()


def make_folders(folders: list[Path]) -> None:
    from adaptive.errors import OutputError

    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"folder {folder} could not be made: {error.strerror}; name another one") from error


def _keep(
    result: Mapping[str, Any], out: Path | None, csv: Path | None, png: Path | None, link: float, *, must_draw: bool
) -> None:
    """Write the record, tables and pictures. Pictures that nobody asked for by --png need no matplotlib."""
    from adaptive.errors import ConfigError
    from adaptive.studies.charts import need_matplotlib
    from adaptive.studies.profile.profile_report import draw_profile, profile_document

    if out is not None:
        write_text(out / "profile.json", json.dumps(result, indent=1) + "\n")
    if csv is not None:
        for name, text in profile_document(result).to_csv().items():
            write_text(csv / f"{name}.csv", text)
    if png is not None:
        try:
            need_matplotlib()
        except ConfigError as error:
            if must_draw:
                raise
            note(f"no pictures: {error}")
            return
        draw_profile(result, png, link=link)
