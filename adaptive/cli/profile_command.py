"""`adaptive-train profile`: profile the data, a training step, and hot rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive.cli import command_options as options
from adaptive.cli.flags import given_flags, listed, load_contenders, with_flags
from adaptive.cli.output import check_folders, make_folders, note, own_stdout, print_document, write_study, write_text

if TYPE_CHECKING:
    from adaptive.studies.profile import Profile

TIERED = "10%"  # default share of device rows here: with auto, policies may have nothing to decide


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
    save: options.SaveMachine = None,
    out: options.StudyFolder = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Profile your data and this machine before you train.

    Sections: data (access skew, hot rows and inputs by memory, row reuse), step (time by stage), and movement (how far
    hot rows still move). All numbers are measured. The device tier has 10% of the rows unless you set --device-rows.
    After Ctrl-C, profile reports the sections that finished.
    """
    keys = {text.partition("=")[0].strip() for text in sets or []} | set(given_flags(flags)[0])
    more = {} if "tier.device_rows" in keys or config else {"tier.device_rows": (TIERED, "profile")}
    with own_stdout():
        rivals = load_contenders(policies, sets or [], flags, config, more=more)
    cases = [(rival.label, rival.config) for rival in rivals]
    check_folders(save)
    from adaptive.studies.machines import machine_toml
    from adaptive.studies.profile.data_profile import DataQuestion
    from adaptive.studies.profile.movement import MovementLength
    from adaptive.studies.profile.profile_report import profile_document
    from adaptive.studies.profile.profiling import Question
    from adaptive.studies.profile.profiling import profile as run_profile
    from adaptive.studies.profile.step_profile import StepLength, check_measurable
    from adaptive.system import stop_request
    from adaptive.training.components import open_data

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
        dataset = open_data(cases[0][1])  # before signals are caught: it may read all files
    with stop_request() as stop:
        with own_stdout():
            result, machine = run_profile(
                cases, question, dataset=dataset, is_stopped=lambda: bool(stop), on_progress=note
            )
        if machine is not None and save is not None:
            write_text(save, machine_toml(machine))
        elif save is not None:
            note(f"{save} was not written: profile stopped before it measured this machine's rates")
        document = profile_document(result)
        if out is not None:
            write_study(out, "profile", result, document)
            _draw(result, out)
        print_document(result, document, as_json=as_json)
        stop.raise_exit()


def _share(sample: str) -> float:
    from adaptive.config import parse_sample
    from adaptive.errors import ConfigError

    try:
        share = parse_sample(sample)
    except ValueError as error:
        raise ConfigError(f"--sample: {error}, got {sample!r}") from error
    if not isinstance(share, float):
        raise ConfigError(f"--sample: expected a share of the inputs, such as 5%, got {sample!r}")
    return share


def _draw(result: "Profile", out: Path) -> None:
    """Write pictures if matplotlib is installed."""
    from adaptive.errors import ConfigError
    from adaptive.studies.plots import need_matplotlib
    from adaptive.studies.profile.profile_report import draw_profile

    try:
        need_matplotlib("pictures")
    except ConfigError as error:
        note(f"no pictures were written: {error}")
        return
    draw_profile(result, out)
