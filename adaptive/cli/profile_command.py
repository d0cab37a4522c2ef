"""`adaptive-train profile`: what the data look up, where a step's time goes, how hot rows come to rest."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive.cli import command_options as options
from adaptive.cli.flags import given_flags, listed, load_contenders, with_flags
from adaptive.cli.output import check_folders, make_folders, note, own_stdout, print_result, write_text

if TYPE_CHECKING:
    from adaptive.studies.profile import Profile

TIERED = "10%"  # of the rows on the device, where nobody says otherwise: else policies would have nothing to decide


@with_flags("--policy", "--out", "--steps", "--epochs", "--eval-every", "--skip")
def profile(
    *,
    sections: options.Sections = "data,step",
    samples: options.Samples = 1_000_000,
    memory: options.Memory = "1%,5%,10%,20%",
    sample: options.SampleShare = "5%",
    policies: options.Policies = "hybrid,device,lfu",
    time_steps: options.TimeSteps = 50,
    steps: options.MovementSteps = 400,
    every: options.MovementEvery = 50,
    link: options.PictureLink = "50GB/s",
    save: options.SaveMachine = None,
    out: options.StudyFolder = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Look before you train: skew, hot rows and inputs by memory, where a step's time goes, how rows come to rest.

    Everything is measured on your data and this machine. The device tier has 10% of the rows, unless you say otherwise.
    Ctrl-C keeps what is done.
    """
    keys = {text.partition("=")[0].strip() for text in sets or []} | set(given_flags(flags)[0])
    more = {} if "tier.device_rows" in keys or config else {"tier.device_rows": (TIERED, "profile")}
    with own_stdout():
        rivals = load_contenders(policies, sets or [], flags, config, more=more)
    cases = [(rival.label, rival.config) for rival in rivals]
    check_folders(save)
    from adaptive.studies.machines import write_machine
    from adaptive.studies.profile.data_profile import DataQuestion
    from adaptive.studies.profile.movement import MovementLength
    from adaptive.studies.profile.profile_report import profile_document
    from adaptive.studies.profile.profiling import Question
    from adaptive.studies.profile.profiling import profile as run_profile
    from adaptive.studies.profile.step_profile import StepLength, check_measurable
    from adaptive.studies.step_model import parse_rate
    from adaptive.system import stop_request
    from adaptive.training.components import open_data

    rate = parse_rate(link, name="--link")
    question = Question(
        parts=listed(sections),
        data=DataQuestion(samples=samples or None, sample_share=_share(sample)),
        memory=listed(memory),
        step=StepLength(steps=time_steps),
        movement=MovementLength(steps, every),
        with_rates=save is not None,
    )
    if save is not None:
        check_measurable(cases)
    make_folders(*filter(None, [out]))
    with own_stdout():
        dataset = open_data(cases[0][1])  # may read all files; nothing is done yet that a first Ctrl-C would keep
    with stop_request() as stop:
        with own_stdout():
            result, machine = run_profile(cases, question, dataset=dataset, stopped=lambda: bool(stop), told=note)
        if machine is not None and save is not None:
            write_machine(save, machine)
        elif save is not None:
            note(f"stopped before this machine's rates were measured: {save} was not written")
        if out is not None:
            _write(result, out, rate)
        print_result(asdict(result), table=profile_document(result).to_text(), as_json=as_json)
        stop.raise_exit()


def _share(sample: str) -> float:
    from adaptive.config import parse_sample
    from adaptive.errors import ConfigError

    try:
        share = parse_sample(sample)
    except ValueError as error:
        raise ConfigError(f"--sample: {error}") from error
    if not isinstance(share, float):
        raise ConfigError(f"--sample {sample!r}: expected a share of the inputs, such as 5%")
    return share


def _write(result: "Profile", out: Path, link: float) -> None:
    """Write the record, tables and, where matplotlib is installed, pictures."""
    from adaptive.errors import ConfigError
    from adaptive.studies.charts import need_matplotlib
    from adaptive.studies.profile.profile_report import draw_profile, profile_document

    write_text(out / "profile.json", json.dumps(asdict(result), indent=1) + "\n")
    for name, text in profile_document(result).to_csv().items():
        write_text(out / f"{name}.csv", text)
    try:
        need_matplotlib("pictures need")
    except ConfigError as error:
        note(f"no pictures: {error}")
        return
    draw_profile(result, out, link=link)
