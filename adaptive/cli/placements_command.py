"""`adaptive-train placements`: compare placements of the tables on machines."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adaptive.cli import command_options as options
from adaptive.cli.flags import listed, load_contenders, with_flags
from adaptive.cli.output import make_folders, note, own_stdout, print_document, write_study
from adaptive.cli.profile_command import TIERED

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.studies.placements.placement_study import PlacementStudy


@with_flags("--policy", "--out", "--steps", "--epochs", "--eval-every", "--skip", "--preset")
def placements(
    *,
    machine: options.Machines = "dual-cpu,big-basin,zion",
    preset: options.Shapes = None,
    placements: options.Placements = "device,host,remote,tables,lfu,scratchpipe,fae,hotline",
    sweep: options.ShapeSweep = None,
    measure: options.Measure = False,
    time_steps: options.TimeSteps = 50,
    out: options.StudyFolder = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Model the throughput of table placements on machines that you may not have.

    The model uses the rates of the machines and the skew of the data (the built-in stream, or --data). With --measure,
    the placements that exist here are also trained on this machine, and the report shows the model's error. After
    Ctrl-C, the report includes what was trained.
    """
    from adaptive.studies.machines import HERE, load_machine
    from adaptive.studies.placements import placement_study as study
    from adaptive.studies.placements.shape import load_shape, parse_sweep
    from adaptive.studies.plots import need_matplotlib
    from adaptive.studies.profile.step_profile import StepLength
    from adaptive.system import StopRequest, stop_request

    keys = {text.partition("=")[0].strip() for text in sets or []}
    is_sized = flags.get("flag_device_rows") is not None or "tier.device_rows" in keys or config is not None
    more = {} if is_sized else {"tier.device_rows": (TIERED, "placements")}

    def load(policy: str, point: Sequence[str]) -> "tuple[str, TrainConfig]":
        words = [*(sets or []), *point]
        (contender,) = load_contenders(policy, words, flags, config, flag="--placements", more=more)
        return contender.label, contender.config

    if out is not None:
        need_matplotlib("--out")
    names, requested = _named("--machine", machine), _named("--placements", placements)
    sweeps = [parse_sweep(text) for text in sweep or ()]
    if preset is not None and flags.get("flag_batch_size") is not None:
        raise typer.BadParameter("expected --sweep batch_size=... with --preset, got --batch-size")
    presets = [load_shape(name) for name in _named("--preset", preset)] if preset is not None else []
    specs = {name: load_machine(name) for name in names if name != HERE}
    study.check_request(requested, sweeps, is_measured=measure)
    for base in presets:
        study.points_of(base, sweeps)
    make_folders(*filter(None, [out]))
    with own_stdout():
        model = study.open_model(load, StepLength(steps=time_steps))
        points = study.trained_points(model, sweeps) if measure else []
        here = study.measure_machine(model, on_progress=note) if HERE in names or measure else None
        machines = [spec for spec in (specs.get(name, here) for name in names) if spec is not None]
        shapes, locality = presets or [model.shape], study.locality_of(model)
        result = study.compare_placements(shapes, machines, requested, locality, sweeps=sweeps)
    with stop_request() if measure else nullcontext(StopRequest()) as stop:
        if here is not None and measure:
            with own_stdout():
                measured = study.measure_placements(
                    *(model, requested, points, here, locality), is_stopped=lambda: bool(stop), on_progress=note
                )
            result = replace(result, measured=measured, was_stopped=bool(stop))
        _write(result, out, as_json=as_json)
        stop.raise_exit()


def _write(result: "PlacementStudy", out: Path | None, *, as_json: bool) -> None:
    from adaptive.studies.placements.placement_report import draw_placements, placements_document

    document = placements_document(result)
    if out is not None:
        write_study(out, "placements", result, document)
        draw_placements(result, out)
    print_document(result, document, as_json=as_json)


def _named(flag: str, text: str) -> tuple[str, ...]:
    """Return the names in a list.

    Raises:
        BadParameter: if there are none.
    """
    if not (names := listed(text)):
        raise typer.BadParameter(f"{flag}: expected names separated by commas, got {text!r}")
    return names
