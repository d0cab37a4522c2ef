"""`adaptive-train placements`: which placement of the tables, which machine."""

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from adaptive.cli import command_options as options
from adaptive.cli.flags import listed, load_contenders, with_flags
from adaptive.cli.output import make_folders, note, own_stdout, print_result, write_text
from adaptive.cli.profile_command import TIERED

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.data.dataset import Dataset
    from adaptive.embeddings.planning.layout import Group
    from adaptive.studies.machines import MachineSpec
    from adaptive.studies.placements.placement_study import MeasuredPlacement, PlacementStudy
    from adaptive.studies.placements.shape import Shape
    from adaptive.studies.step_model import Locality

Load = Callable[..., "tuple[str, TrainConfig]"]  # of a policy, and of settings of a point of a sweep


@with_flags("--policy", "--out", "--steps", "--epochs", "--eval-every", "--skip", "--preset", "--batch-size")
def placements(
    *,
    machine: options.Machines = "dual-cpu,big-basin,zion",
    preset: options.Shapes = None,
    placements: options.Placements = "device,host,remote,tables,lfu,scratchpipe,fae,hotline",
    batch_size: options.BatchSizes = None,
    sweep: options.ShapeSweep = None,
    watts: options.Watts = None,
    measure: options.Measure = False,
    time_steps: options.TimeSteps = 50,
    out: options.StudyFolder = None,
    config: options.Config = None,
    sets: options.Sets = None,
    as_json: options.AsJson = False,
    **flags: Any,
) -> None:
    """Throughput, its limit, and throughput per watt of placements on machines that need not exist.

    Modelled from rates of the machines and from the skew of the data (the built-in stream's, or --data). --measure
    trains on this machine what can be trained here and tells how far the model was off; Ctrl-C keeps what is trained.
    """
    keys = {text.partition("=")[0].strip() for text in sets or []}
    is_sized = flags.get("flag_device_rows") is not None or "tier.device_rows" in keys or config is not None
    more = {} if is_sized else {"tier.device_rows": (TIERED, "placements")}

    def load(policy: str, point: Sequence[str] = ()) -> "tuple[str, TrainConfig]":
        words = [*(sets or []), *point]
        (contender,) = load_contenders(policy, words, flags, config, flag="--placements", more=more)
        return contender.label, contender.config

    from adaptive.studies.charts import need_matplotlib
    from adaptive.studies.machines import HERE, load_machine
    from adaptive.studies.placements.placement_study import check_asked, compare_placements, locality_of, points_of
    from adaptive.studies.placements.shape import load_shape, parse_sweep
    from adaptive.system import StopRequest, stop_request

    if out is not None:
        need_matplotlib("--out needs")
    names, wanted = _named("--machine", machine), _named("--placements", placements)
    sizes = () if batch_size is None else _named("--batch-size", batch_size)
    power, sweeps = _watts(watts or []), [parse_sweep(text) for text in sweep or ()]
    if sizes and "batch_size" in dict(sweeps):
        raise typer.BadParameter("--batch-size and --sweep batch_size=... disagree; give one of them")
    presets = [load_shape(name) for name in _named("--preset", preset)] if preset is not None else []
    specs = {name: load_machine(name) for name in names if name != HERE}
    check_asked(
        wanted, sweeps, [specs[name].name if name in specs else HERE for name in names], power, measured=measure
    )
    bases = _with_sizes(presets, sizes)
    for base in bases:
        points_of(base, sweeps)
    make_folders(*filter(None, [out]))
    with own_stdout():
        study = _open(load, time_steps)
        points = points_of(study.shape, sweeps) if measure else []
        trained = [(point, shape, _settings_of(point, study)) for point, shape in points]
        here = _here(study) if HERE in names or measure else None
        machines = [spec for spec in (specs.get(name, here) for name in names) if spec is not None]
        shapes = bases or _with_sizes([study.shape], sizes)
        locality = locality_of(study.dataset, study.group, study.row_bytes, f"data {study.config.data}")
        result = compare_placements(shapes, machines, wanted, locality, sweeps=sweeps, watts=power)
    with stop_request() if measure else nullcontext(StopRequest()) as stop:
        if measure and here is not None:
            with own_stdout():
                measured = _measured(study, wanted, here, locality, trained, lambda: bool(stop))
            result = replace(result, measured=measured, was_stopped=bool(stop))
        _write(result, out, as_json=as_json)
        stop.raise_exit()


def _write(result: "PlacementStudy", out: Path | None, *, as_json: bool) -> None:
    from adaptive.studies.placements.placement_report import draw_placements, placements_document

    document = placements_document(result)
    if out is not None:
        write_text(out / "placements.json", json.dumps(asdict(result), indent=1) + "\n")
        for name, text in document.to_csv().items():
            write_text(out / f"{name}.csv", text)
        draw_placements(result, out)
    print_result(asdict(result), table=document.to_text(), as_json=as_json)


@dataclass(frozen=True)
class _Study:
    """What would be trained: settings, data, the shape of the model, its tables, bytes of a row."""

    load: Load
    time_steps: int
    config: "TrainConfig"
    dataset: "Dataset"
    shape: "Shape"
    group: "Group"
    row_bytes: int


def _open(load: Load, time_steps: int) -> _Study:
    from adaptive.embeddings.planning.layout import make_groups
    from adaptive.embeddings.planning.sizing import row_bytes
    from adaptive.errors import ConfigError
    from adaptive.models.factory import model_config
    from adaptive.models.model_settings import TowerConfig
    from adaptive.optim import row_optimizer
    from adaptive.studies.placements.shape import Shape
    from adaptive.training.components import build_tables, inputs_of, open_data

    _, config = load("lfu")
    dataset = open_data(config)
    tower = model_config(config.model, config.model_options, inputs_of(dataset))
    if not isinstance(tower, TowerConfig) or tower.widths:
        raise ConfigError(
            f"placements knows the shape of a DLRM of one width, found model={config.model}: leave it out"
        )
    (group,) = make_groups(build_tables(dataset, tower.embedding_dim), config.seed)
    batch = next(dataset.train(256))
    shape = Shape(
        name="yours",
        num_dense=dataset.num_dense,
        num_sparse=len(dataset.features),
        lookups=max(1, round(len(batch.ids) / (batch.num_samples * len(dataset.features)))),
        hash_size=max(1, group.num_rows // len(dataset.features)),
        width=tower.embedding_dim,
        bottom_mlp="-".join(map(str, tower.bottom_mlp)),
        top_mlp="-".join(map(str, tower.top_mlp)),
        batch_size=config.batch_size,
    )
    return _Study(load, time_steps, config, dataset, shape, group, row_bytes(group, row_optimizer(config.optimizer)))


def _settings_of(point: dict[str, str], study: _Study) -> list[str]:
    """Settings with which what is trained has the point's shape."""
    from adaptive.errors import ConfigError
    from adaptive.studies.placements.shape import swept_settings

    strange = sorted(set(point) - {"batch_size", "mlp"})
    if strange and study.config.data != "synthetic":
        raise ConfigError(
            f"--measure with --sweep {strange[0]}: data {study.config.data} are as they are; expected batch_size or "
            "mlp, or the built-in stream"
        )
    return swept_settings(point, study.shape.num_sparse, study.shape.width)


def _here(study: _Study) -> "MachineSpec":
    """This machine's rates, measured by training `hybrid` and `lfu`."""
    from adaptive.studies.profile.step_profile import StepLength, measured_machine, profile_step

    note("measuring this machine")
    cases = [study.load("hybrid"), study.load("lfu")]
    step = profile_step(cases, StepLength(steps=study.time_steps), dataset=study.dataset)
    sizes = {"value_bytes": study.shape.value_bytes, "row_bytes": study.row_bytes}
    return measured_machine(step, **sizes, features=study.shape.num_sparse, plan_factor=1.0)


def _measured(
    study: _Study,
    placements: Sequence[str],
    here: "MachineSpec",
    locality: "Locality",
    points: "Sequence[tuple[dict[str, str], Shape, list[str]]]",
    stopped: Callable[[], bool],
) -> "list[MeasuredPlacement]":
    """Each placement trained at each point, whose settings are the last of the three."""
    from adaptive.studies.placements.placement_study import MeasuredHere, measure_placements
    from adaptive.studies.profile.step_profile import StepLength

    lines: list[MeasuredPlacement] = []
    for point, shape, words in points:
        place = ", ".join(f"{key}={value}" for key, value in point.items())
        files = None if study.config.data == "synthetic" else study.dataset  # --sweep changes the built-in stream
        trained = MeasuredHere(shape, here, locality, StepLength(steps=study.time_steps), files, point)
        load, told = partial(study.load, point=words), partial(_note_at, place)
        lines += measure_placements(load, placements, trained, stopped=stopped, told=told)
    return lines


def _note_at(place: str, line: str) -> None:
    note(f"{line} {place}".rstrip())


def _named(flag: str, text: str) -> tuple[str, ...]:
    """What a list names.

    Raises:
        BadParameter: if it names nothing.
    """
    if not (names := listed(text)):
        raise typer.BadParameter(f"{flag} {text!r}: expected one or several, separated by commas")
    return names


def _with_sizes(shapes: "Sequence[Shape]", sizes: Sequence[str]) -> "list[Shape]":
    """Each shape with each batch size; as it is, if there are none."""
    from adaptive.studies.placements.shape import with_values

    return [with_values(shape, ["batch_size"], [size]) for shape in shapes for size in sizes] if sizes else [*shapes]


def _watts(texts: list[str]) -> dict[str, float]:
    power: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            watts = float(number)
        except ValueError:
            watts = 0.0
        if name in power:
            raise typer.BadParameter(f"--watts {name}: given twice, as {power[name]:g} and {watts:g}")
        power[name] = watts
        if not (name and 0 < watts < math.inf):
            raise typer.BadParameter(f"--watts {text!r}: expected NAME=WATTS, such as big-basin=2900")
    return power
