"""Model placements of shapes on machines, and measure those that exist here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Final

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.layout import Group, make_groups_without_keys
from adaptive.embeddings.planning.sizing import row_bytes
from adaptive.errors import AdaptiveError, ConfigError
from adaptive.models.factory import model_config
from adaptive.models.model_settings import TowerConfig
from adaptive.optim import study_optimizer
from adaptive.studies.machines import MachineSpec
from adaptive.studies.placements.shape import Shape, swept_settings, with_values
from adaptive.studies.profile import DataProfile
from adaptive.studies.profile.data_profile import DataQuestion, profile_data
from adaptive.studies.profile.step_profile import Case, StepLength, measure, measured_machine, profile_step
from adaptive.studies.step_model import PLACEMENTS, POLICIES, Locality, StepModel, rates_of
from adaptive.training.components import build_tables, inputs_of, open_data

SCHEMA: Final = 1
KIND: Final = "placements"
Sweep = tuple[str, Sequence[str]]  # a key of a shape, and its values
MAX_POINTS: Final = 400
SHARES: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75)
SAMPLES: Final = 200_000


@dataclass(frozen=True)
class PlacedShape:
    """The shape of a model; `hash_size` is the mean number of rows of a table."""

    name: str
    source: str
    ours: str
    num_dense: int
    num_sparse: int
    lookups: int
    hash_size: int
    bottom_mlp: str
    top_mlp: str
    table_bytes: int


@dataclass(frozen=True)
class PlacedMachine:
    """A machine and the source of its numbers."""

    name: str
    source: str
    note: str
    watts: float | None


@dataclass(frozen=True)
class ModelledPlacement:
    """One placement of a shape on a machine; numbers are None if it does not fit.

    Attributes:
        point: swept key -> value.
        of_host: throughput over that of all tables in main memory; None if those do not fit.
        limited_by: the largest part of the step.
    """

    shape: str
    point: Mapping[str, str]
    machine: str
    placement: str
    batch_size: int
    fits: bool
    step_ms: float | None
    samples_per_s: float | None
    of_host: float | None
    limited_by: str
    parts_ms: Mapping[str, float] | None
    samples_per_s_per_watt: float | None
    note: str


@dataclass(frozen=True)
class MeasuredPlacement:
    """One placement trained here; `error_share` is modeled over measured time, minus 1."""

    placement: str
    point: Mapping[str, str]
    batch_size: int
    fits: bool
    note: str
    policy: str = ""
    step_ms: float | None = None
    samples_per_s: float | None = None
    modelled_ms: float | None = None
    error_share: float | None = None
    device_share: float | None = None


@dataclass(frozen=True)
class PlacementStudy:
    """The object that `adaptive-train placements --json` prints."""

    locality: str
    sweep: Sequence[str]
    shapes: Sequence[PlacedShape]
    machines: Sequence[PlacedMachine]
    lines: Sequence[ModelledPlacement]
    measured: Sequence[MeasuredPlacement] = field(default_factory=list)
    was_stopped: bool = False
    schema: int = SCHEMA
    kind: str = KIND


def compare_placements(
    shapes: Sequence[Shape],
    machines: Sequence[MachineSpec],
    placements: Sequence[str],
    locality: Locality,
    *,
    sweeps: Sequence[Sweep] = (),
) -> PlacementStudy:
    """Model every placement of every shape, at each point of the sweeps, on every machine.

    Raises:
        ConfigError: for an unknown placement, or too many points.
    """
    check_request(placements, sweeps)
    lines = []
    for base in shapes:
        for point, shape in points_of(base, sweeps):
            for machine in machines:
                model = StepModel(shape, rates_of(machine), locality)
                lines += _lines(shape, point, machine, placements, model)
    return PlacementStudy(
        locality=locality.source,
        sweep=[key for key, _ in sweeps],
        shapes=[
            PlacedShape(**shape.model_dump(exclude={"width", "batch_size"}), table_bytes=shape.table_bytes)
            for shape in shapes
        ],
        machines=[PlacedMachine(machine.name, machine.source, machine.note, machine.watts) for machine in machines],
        lines=lines,
    )


def check_request(placements: Sequence[str], sweeps: Sequence[Sweep], *, is_measured: bool = False) -> None:
    """Check a request before data are read.

    Args:
        placements, sweeps: as requested.
        is_measured: placements are also to be trained here.

    Raises:
        ConfigError: as in `compare_placements`, or if no placement can be trained.
    """
    unknown = [name for name in placements if name not in PLACEMENTS]
    if unknown or not placements:
        raise ConfigError(f"--placements: expected some of {', '.join(PLACEMENTS)}, got {','.join(unknown)!r}")
    keys = [key for key, _ in sweeps]
    if len(keys) > 2:
        raise ConfigError(f"--sweep: expected one or two keys, got {len(keys)}")
    if len(keys) == 2 and keys[0] == keys[1]:
        raise ConfigError(f"--sweep: expected two different keys, got {keys[0]} again. List its values in one --sweep")
    number = prod(len(values) for _, values in sweeps)
    if number > MAX_POINTS:
        raise ConfigError(f"--sweep: expected at most {MAX_POINTS} points, got {number:,}")
    if is_measured and not set(placements) & set(POLICIES):
        raise ConfigError(f"--measure: expected one of {', '.join(POLICIES)}, got {', '.join(placements)}")


def points_of(shape: Shape, sweeps: Sequence[Sweep]) -> list[tuple[dict[str, str], Shape]]:
    """Return the points of the sweeps as (keys and values, shape).

    Raises:
        ConfigError: for a value that no shape can have.
    """
    keys = [key for key, _ in sweeps]
    points = [dict(zip(keys, values, strict=True)) for values in product(*(values for _, values in sweeps))]
    return [(point, with_values(shape, list(point), list(point.values())) if point else shape) for point in points]


def _lines(
    shape: Shape,
    point: Mapping[str, str],
    machine: MachineSpec,
    placements: Sequence[str],
    model: StepModel,
) -> list[ModelledPlacement]:
    """Model the placements of one shape on one machine."""
    host_ms = model.placed("host").step_ms if "host" in placements else None
    lines = []
    for placement in placements:
        placed = model.placed(placement)
        speed = shape.batch_size / placed.step_ms * 1e3 if placed.step_ms else None
        lines.append(
            ModelledPlacement(
                shape=shape.name,
                point=point,
                machine=machine.name,
                placement=placement,
                batch_size=shape.batch_size,
                fits=placed.fits,
                step_ms=placed.step_ms,
                samples_per_s=speed,
                of_host=host_ms / placed.step_ms if host_ms and placed.step_ms else None,
                limited_by=placed.limit,
                parts_ms=placed.parts_ms,
                samples_per_s_per_watt=speed / machine.watts if speed and machine.watts else None,
                note=placed.note,
            )
        )
    return lines


# --- the user's model, trained on this machine ------------------------------------------------------------------------

LoadCase = Callable[[str, Sequence[str]], Case]
"""Returns the case of a policy with further KEY=VALUE settings."""
TrainedPoint = tuple[dict[str, str], Shape, list[str]]
"""Swept key -> value, the shape at this point, and settings that give the trained model this shape."""


@dataclass(frozen=True)
class LocalModel:
    """The model and data of the user's settings.

    Attributes:
        load: the case of a policy.
        length: of each training.
        row_bytes: bytes of a row with its optimizer state.
    """

    load: LoadCase
    length: StepLength
    config: TrainConfig
    dataset: Dataset
    shape: Shape
    group: Group
    row_bytes: int


def open_model(load: LoadCase, length: StepLength) -> LocalModel:
    """Open the data of the settings and derive the shape of their model.

    Raises:
        AdaptiveError: if the data cannot be read, or the model is no DLRM of one width.
    """
    _, config = load("lfu", ())
    dataset = open_data(config)
    tower = model_config(config.model, config.model_options, inputs_of(dataset))
    if not isinstance(tower, TowerConfig) or tower.widths or tower.row_dtypes:
        raise ConfigError(
            f"placements: expected a DLRM whose tables have one width and dtype, got model={config.model}. Leave out "
            "--model, model.widths and model.row_dtypes"
        )
    (group,) = make_groups_without_keys(tower.format_rows(build_tables(dataset, tower.embedding_dim)), config.seed)
    batch = next(dataset.train(256))
    features = len(dataset.features)
    shape = Shape(
        name="yours",
        num_dense=dataset.num_dense,
        num_sparse=features,
        lookups=max(1, round(len(batch.ids) / (batch.num_samples * features))),
        hash_size=max(1, group.num_rows // features),
        width=tower.embedding_dim,
        bottom_mlp="-".join(map(str, tower.bottom_mlp)),
        top_mlp="-".join(map(str, tower.top_mlp)),
        batch_size=config.batch_size,
    )
    return LocalModel(
        load, length, config, dataset, shape, group, row_bytes=row_bytes(group, study_optimizer(config.optimizer))
    )


def trained_points(model: LocalModel, sweeps: Sequence[Sweep]) -> list[TrainedPoint]:
    """Return the points of the sweeps with the settings to train them.

    Raises:
        ConfigError: if a sweep changes the shape of data in files.
    """
    fixed = sorted({key for key, _ in sweeps} - {"batch_size", "mlp"})
    if fixed and model.config.data != "synthetic":
        raise ConfigError(
            f"--measure with --sweep: expected batch_size or mlp for data {model.config.data}, got {fixed[0]}, which "
            "only the built-in stream can vary"
        )
    shape = model.shape
    return [
        (point, swept, swept_settings(point, shape.num_sparse, shape.width))
        for point, swept in points_of(shape, sweeps)
    ]


def measure_machine(model: LocalModel, *, on_progress: Callable[[str], None]) -> MachineSpec:
    """Measure this machine's rates by training `hybrid` and `lfu`."""
    on_progress("measuring this machine")
    steps = profile_step([model.load("hybrid", ()), model.load("lfu", ())], model.length, dataset=model.dataset)
    return measured_machine(
        steps,
        value_bytes=model.shape.value_bytes,
        row_bytes=model.row_bytes,
        plan_factor=1.0,
    )


def measure_placements(
    model: LocalModel,
    placements: Sequence[str],
    points: Sequence[TrainedPoint],
    machine: MachineSpec,
    locality: Locality,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> list[MeasuredPlacement]:
    """Train the placements that exist here at every point, next to the model's prediction.

    Args:
        model: the user's model and data.
        placements: those without a policy are left out.
        points: from `trained_points`.
        machine: this machine's rates.
        locality: of the data.
        is_stopped: asked before each training; the remaining ones are left out.
        on_progress: called with a line before each training.
    """
    dataset = None if model.config.data == "synthetic" else model.dataset  # points change the built-in stream
    results = []
    for (point, shape, sets), placement in product(points, (name for name in placements if name in POLICIES)):
        if is_stopped():
            break
        on_progress(f"training {placement} {', '.join(f'{key}={value}' for key, value in point.items())}".rstrip())
        label, config = model.load(POLICIES[placement], sets)
        result = MeasuredPlacement(placement, point, config.batch_size, fits=False, note="", policy=label)
        try:
            step = measure(label, config, model.length, open_data(config) if dataset is None else dataset)
        except AdaptiveError as error:  # a placement that does not fit does not stop the others
            results.append(replace(result, note=str(error)))
            continue
        share, ms = step.device_share, step.step_ms
        placed = StepModel(shape, rates_of(machine), locality, device_share=share).placed(placement)
        results.append(
            replace(
                result,
                fits=True,
                note=placed.note,
                step_ms=ms,
                samples_per_s=config.batch_size / ms * 1e3,
                modelled_ms=placed.step_ms,
                error_share=placed.step_ms / ms - 1 if placed.step_ms else None,
                device_share=share,
            )
        )
    return results


def locality_of(model: LocalModel) -> Locality:
    """Count the locality of the model's data in their first samples (measured)."""
    rows = model.group.num_rows
    budgets = tuple((f"{share:g}", max(int(share * rows), 1)) for share in SHARES)
    data = profile_data(model.dataset, model.group, model.row_bytes, DataQuestion(SAMPLES, budgets))
    return from_profile(data, f"data {model.config.data}")


def from_profile(data: DataProfile, source: str) -> Locality:
    """Return the locality in a data profile.

    A budget below the number of rows may exceed the rows that were seen, which then are all hot.
    """
    lookups = data.lookups / data.samples
    sizes = {float(size): rows / (lookups * float(size)) for size, rows in data.reuse.distinct_by_batch_size.items()}
    return Locality(
        source=source,
        shares=tuple(budget.rows_that_fit / data.rows for budget in data.hot),
        lookups=tuple(budget.lookup_share or 0.0 for budget in data.hot),
        inputs=tuple(budget.hot_input_share or 0.0 for budget in data.hot),
        sizes=tuple(sizes),
        distinct=tuple(sizes.values()),
    )
