"""`adaptive-train placements`: which placement of the tables, which machine."""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptive.cli.compare_command import Config, load_contenders, without, write_text
from adaptive.cli.flags import OUTPUT
from adaptive.cli.output import AsJson, Sets, note, own_stdout, print_result
from adaptive.cli.profile_command import TIERED, listed, make_folders

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.data.dataset import Dataset
    from adaptive.studies.machines import MachineSpec
    from adaptive.studies.placements.shape import Shape

PLACEMENTS = "Placements"


@without("--policy", "--out", "--steps", "--epochs", "--eval-every", "--skip", "--preset", "--batch-size")
def placements(
    *,
    machine: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Machines: dual-cpu, big-basin, zion, v100-pcie3, a100, h200; here (measured now); or machine files.",
            rich_help_panel=PLACEMENTS,
        ),
    ] = "dual-cpu,big-basin,zion",
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Shapes of models: rmc1 to rmc4, syn-m1, syn-m2, m1prod to m3prod, mlperf, sweep; or TOML files. "
            "Without it: the model and data of the other options.",
            rich_help_panel=PLACEMENTS,
        ),
    ] = None,
    placements: Annotated[
        str, typer.Option(metavar="LIST", help="Placements to compare.", rich_help_panel=PLACEMENTS)
    ] = "device,host,remote,tables,lfu,scratchpipe,fae,hotline",
    batch_size: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Samples of a step, else the shape's.", rich_help_panel=PLACEMENTS),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=LIST",
            help="Vary num_dense, num_sparse, hash_size, lookups, mlp (64^2,1024^4) or batch_size; once or twice.",
            rich_help_panel=PLACEMENTS,
        ),
    ] = None,
    watts: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=WATTS", help="Power of a machine; may be repeated.", rich_help_panel=PLACEMENTS),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Train the placements that exist here, too; with --sweep at each of its points.",
            rich_help_panel=PLACEMENTS,
        ),
    ] = False,
    time_steps: Annotated[
        int, typer.Option(min=5, metavar="STEPS", help="--measure: steps of each.", rich_help_panel=PLACEMENTS)
    ] = 50,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="DIR", help="Write tables.", rich_help_panel=OUTPUT)
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="DIR", help="Draw placements.png (needs 'report').", rich_help_panel=OUTPUT),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write placements.json there, tables and picture.", rich_help_panel=OUTPUT),
    ] = None,
    config: Config = None,
    sets: Sets = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Throughput, its limit, and throughput per watt of placements on machines that need not exist.

    Modelled from rates of the machines and from the skew of the data (the built-in stream's, or --data). --measure
    trains on this machine what can be trained here and tells how far the model was off; Ctrl-C keeps what is trained.
    """
    given = {text.partition("=")[0].strip() for text in sets or []}
    asked = flags.get("flag_device_rows") is not None or "tier.device_rows" in given or config is not None
    more = {} if asked else {"tier.device_rows": (TIERED, "placements")}

    def load(policy: str, point: Sequence[str] = ()) -> "tuple[str, TrainConfig]":
        (one,) = load_contenders(policy, [*(sets or []), *point], flags, config, flag="--placements", more=more)
        return one.label, one.config

    from adaptive.studies.charts import need_matplotlib
    from adaptive.studies.machines import HERE, load_machine
    from adaptive.studies.placements.placement_report import draw_placements, placements_document
    from adaptive.studies.placements.placement_study import (
        check_asked,
        compare_placements,
        locality_of,
        measure_placements,
        points_of,
    )
    from adaptive.studies.placements.shape import load_shape, parse_sweep
    from adaptive.studies.profile.step_profile import StepLength
    from adaptive.system import StopRequest, stop_request

    pictures = png or out
    if pictures is not None:
        need_matplotlib(f"{'--png' if png is not None else '--out'} needs")
    names, wanted = _named("--machine", machine), _named("--placements", placements)
    sizes = () if batch_size is None else _named("--batch-size", batch_size)
    power = _watts(watts or [])
    sweeps = [parse_sweep(text) for text in sweep or ()]
    if sizes and "batch_size" in dict(sweeps):
        raise typer.BadParameter("--batch-size and --sweep batch_size=... disagree; give one of them")
    presets = [load_shape(name) for name in _named("--preset", preset)] if preset is not None else []
    there = {name: load_machine(name) for name in names if name != HERE}
    of_machines = [there[name].name if name in there else HERE for name in names]
    check_asked(wanted, sweeps, of_machines, power, measured=measure)
    bases = _with_sizes(presets, sizes)
    for base in bases:
        points_of(base, sweeps)
    make_folders([folder for folder in (out, csv or out, png or out) if folder is not None])
    with own_stdout():
        _, settings = load("lfu")
        dataset, own, group, row_bytes = _data(settings)
        shapes = bases or _with_sizes([own], sizes)
        points = points_of(own, sweeps) if measure else []
        trained = [(point, one, _settings_of(point, settings, own)) for point, one in points]
        here = _here(load, dataset, own, row_bytes, time_steps) if "here" in names or measure else None
        machines = [there.get(name, here) for name in names]
        locality = locality_of(dataset, group, row_bytes, f"data {settings.data}")
        result = compare_placements(shapes, [*filter(None, machines)], wanted, locality, sweeps=sweeps, watts=power)
    with stop_request() if measure else nullcontext(StopRequest()) as stop:
        if measure and here is not None:
            length = StepLength(steps=time_steps)
            result["measured"] = []
            with own_stdout():
                for point, point_shape, words in trained:
                    at = ", ".join(f"{key}={value}" for key, value in point.items())
                    found = measure_placements(
                        partial(load, point=words),
                        wanted,
                        point_shape,
                        here,
                        locality,
                        length,
                        dataset=None if settings.data == "synthetic" else dataset,  # which --sweep changes
                        stopped=lambda: bool(stop),
                        told=partial(_told_at, at),
                    )
                    result["measured"] += [{**one, **point} for one in found]
            result["was_stopped"] = bool(stop)
        if out is not None:
            write_text(out / "placements.json", json.dumps(result, indent=1) + "\n")
        if (tables := csv or out) is not None:
            for name, text in placements_document(result).to_csv().items():
                write_text(tables / f"{name}.csv", text)
        if pictures is not None:
            draw_placements(result, pictures)
        print_result({**result, "table": placements_document(result).to_text()}, as_json=as_json)
        stop.raise_exit()


def _data(config: "TrainConfig") -> "tuple[Dataset, Shape, Any, int]":
    """The data, the shape of the model that would be trained on them, their tables, bytes of a row."""
    from adaptive.embeddings.planning.layout import make_groups
    from adaptive.embeddings.planning.sizing import row_bytes
    from adaptive.errors import ConfigError
    from adaptive.models.factory import model_config
    from adaptive.models.model_settings import TowerConfig
    from adaptive.optim import row_optimizer
    from adaptive.studies.placements.shape import Shape
    from adaptive.training.build import build_tables, inputs_of, open_data

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
    return dataset, shape, group, row_bytes(group, row_optimizer(config.optimizer))


def _told_at(at: str, line: str) -> None:
    note(f"{line} {at}".rstrip())


def _settings_of(point: dict[str, str], config: "TrainConfig", shape: "Shape") -> list[str]:
    """Settings with which what is trained has the point's shape."""
    from adaptive.errors import ConfigError
    from adaptive.studies.placements.shape import swept_settings

    strange = sorted(set(point) - {"batch_size", "mlp"})
    if strange and config.data != "synthetic":
        raise ConfigError(
            f"--measure with --sweep {strange[0]}: data {config.data} are as they are; needed batch_size or mlp, or "
            "the built-in stream"
        )
    return swept_settings(point, shape.num_sparse, shape.width)


def _here(load: Any, dataset: "Dataset", shape: "Shape", row_bytes: int, steps: int) -> "MachineSpec":
    """This machine's rates, measured by training `hybrid` and `lfu`."""
    from adaptive.studies.profile.step_profile import StepLength, measured_machine, profile_step

    note("measuring this machine")
    found = profile_step([load("hybrid"), load("lfu")], StepLength(steps=steps), dataset=dataset)
    return measured_machine(
        found, value_bytes=shape.value_bytes, row_bytes=row_bytes, features=shape.num_sparse, plan_factor=1.0
    )


def _named(flag: str, text: str) -> tuple[str, ...]:
    """What a list names.

    Raises:
        BadParameter: if it names nothing.
    """
    if not (found := listed(text)):
        raise typer.BadParameter(f"{flag} {text!r}: needed one or several, separated by commas")
    return found


def _with_sizes(shapes: "Sequence[Shape]", sizes: Sequence[str]) -> "list[Shape]":
    """Each shape with each batch size; as it is, if there are none."""
    from adaptive.studies.placements.shape import with_values

    return [with_values(one, ["batch_size"], [size]) for one in shapes for size in sizes] if sizes else [*shapes]


def _watts(texts: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            watts = float(number)
        except ValueError:
            watts = 0.0
        if name in found:
            raise typer.BadParameter(f"--watts {name}: given twice, as {found[name]:g} and {watts:g}")
        found[name] = watts
        if not (name and 0 < watts < math.inf):
            raise typer.BadParameter(f"--watts {text!r}: needed NAME=WATTS, such as big-basin=2900")
    return found
