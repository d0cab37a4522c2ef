"""`compare_placements`: placements of shapes on machines, modelled; and those that exist here, measured."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Final

from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import AdaptiveError, ConfigError
from adaptive.studies.machines import MachineSpec
from adaptive.studies.placements.shape import Shape, with_values
from adaptive.studies.profile import DataProfile
from adaptive.studies.profile.data_profile import DataQuestion, profile_data
from adaptive.studies.profile.step_profile import Case, StepLength, measure
from adaptive.studies.step_model import PLACEMENTS, POLICIES, Locality, StepModel, rates_of
from adaptive.training.components import open_data

SCHEMA: Final = 1
KIND: Final = "placements"
Sweep = tuple[str, Sequence[str]]  # a key of a shape, and its values
MOST_POINTS: Final = 400
SHARES: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75)
SAMPLES: Final = 200_000


@dataclass(frozen=True)
class PlacedShape:
    """The shape of a model; `hash_size`: rows of a table, on average."""

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
    """A machine, and where its numbers come from."""

    name: str
    source: str
    note: str
    watts: float | None


@dataclass(frozen=True)
class ModelledPlacement:
    """One placement of a shape on a machine; numbers are None if it cannot be.

    Attributes:
        point: swept key -> value.
        of_host: throughput over that of all tables in main memory; None if that cannot be.
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
    """One placement that was trained here, next to the model; `error_share`: of the model, over what was measured."""

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
    """What `adaptive-train placements --json` prints; `locality`: the data that hot rows and inputs were counted in."""

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
    watts: Mapping[str, float] | None = None,
) -> PlacementStudy:
    """Every placement of every shape, at each point of the sweeps, on every machine.

    Raises:
        ConfigError: for an unknown placement, watts of no machine, too many sweeps.
    """
    check_asked(placements, sweeps, [machine.name for machine in machines], watts or ())
    power = {machine.name: (watts or {}).get(machine.name, machine.watts) for machine in machines}
    lines = []
    for base in shapes:
        for point, shape in points_of(base, sweeps):
            for machine in machines:
                lines += _lines(shape, point, machine, placements, StepModel(shape, rates_of(machine), locality))
    return PlacementStudy(
        locality=locality.source,
        sweep=[key for key, _ in sweeps],
        shapes=[
            PlacedShape(**shape.model_dump(exclude={"width", "batch_size"}), table_bytes=shape.table_bytes)
            for shape in shapes
        ],
        machines=[PlacedMachine(one.name, one.source, one.note, power[one.name]) for one in machines],
        lines=[_with_watts(line, power[line.machine]) for line in lines],
    )


def check_asked(
    placements: Sequence[str],
    sweeps: Sequence[Sweep],
    machines: Sequence[str],
    watts: Iterable[str],
    *,
    measured: bool = False,
) -> None:
    """What can be told before data are read.

    Args:
        placements, sweeps: as asked for.
        machines: their names.
        watts: names of machines whose power is given.
        measured: some placements are to be trained here.

    Raises:
        ConfigError: see `compare_placements`; or if there is nothing to train.
    """
    wrong = [name for name in placements if name not in PLACEMENTS]
    if wrong or not placements:
        raise ConfigError(f"--placements {','.join(wrong)!r}: needed some of {', '.join(PLACEMENTS)}")
    if strangers := sorted(set(watts) - set(machines)):
        raise ConfigError(f"--watts {', '.join(strangers)}: not among the machines, {', '.join(machines)}")
    keys = [key for key, _ in sweeps]
    if len(keys) > 2:
        raise ConfigError(f"--sweep: expected one or two keys, got {len(keys)}")
    if len(keys) == 2 and keys[0] == keys[1]:
        raise ConfigError(f"--sweep {keys[0]}: given twice; give all its values at once, {keys[0]}=VALUE,VALUE,...")
    number = prod(len(values) for _, values in sweeps)
    if number > MOST_POINTS:
        raise ConfigError(f"--sweep: {number:,} points are more than {MOST_POINTS}")
    if measured and not set(placements) & set(POLICIES):
        raise ConfigError(
            f"--measure: none of {', '.join(placements)} can be trained here; needed one of {', '.join(POLICIES)}"
        )


def points_of(shape: Shape, sweeps: Sequence[Sweep]) -> list[tuple[dict[str, str], Shape]]:
    """Every point of the sweeps, as its keys and values, with its shape; the shape itself where nothing is swept.

    Raises:
        ConfigError: for a value that no shape has.
    """
    keys = [key for key, _ in sweeps]
    points = [dict(zip(keys, values, strict=True)) for values in product(*(values for _, values in sweeps))]
    return [(point, with_values(shape, list(point), list(point.values())) if point else shape) for point in points]


def _lines(
    shape: Shape, point: Mapping[str, str], machine: MachineSpec, placements: Sequence[str], model: StepModel
) -> list[ModelledPlacement]:
    """The placements of one shape on one machine."""
    host = model.placed("host").step_ms if "host" in placements else None
    lines = []
    for placement in placements:
        placed = model.placed(placement)
        lines.append(
            ModelledPlacement(
                shape=shape.name,
                point=point,
                machine=machine.name,
                placement=placement,
                batch_size=shape.batch_size,
                fits=placed.fits,
                step_ms=placed.step_ms,
                samples_per_s=shape.batch_size / placed.step_ms * 1e3 if placed.step_ms else None,
                of_host=host / placed.step_ms if host and placed.step_ms else None,
                limited_by=placed.limit,
                parts_ms=placed.parts_ms,
                samples_per_s_per_watt=None,
                note=placed.note,
            )
        )
    return lines


def _with_watts(line: ModelledPlacement, watts: float | None) -> ModelledPlacement:
    return replace(line, samples_per_s_per_watt=line.samples_per_s / watts if line.samples_per_s and watts else None)


@dataclass(frozen=True)
class MeasuredHere:
    """What is trained to measure placements, and the model next to it.

    Attributes:
        shape: of the model that is trained.
        machine: with this machine's rates.
        locality: of the data that are trained.
        length: of each training.
        dataset: that of all settings, if it is open: opening may read all files.
        point: swept key -> value of the shape.
    """

    shape: Shape
    machine: MachineSpec
    locality: Locality
    length: StepLength
    dataset: Dataset | None = None
    point: Mapping[str, str] = field(default_factory=dict)


def measure_placements(
    make_case: Callable[[str], Case],
    placements: Sequence[str],
    here: MeasuredHere,
    *,
    stopped: Callable[[], bool] = lambda: False,
    told: Callable[[str], None] = lambda line: None,
) -> list[MeasuredPlacement]:
    """Train the placements that exist here, and put the model's answer next to what was measured.

    Args:
        make_case: from the policy of a placement its settings.
        placements: those that exist nowhere here are left out.
        here: what is trained.
        stopped: the placements that are not begun when it says yes are left out.
        told: called with a line before each training.
    """
    results = []
    for placement in placements:
        if placement not in POLICIES:
            continue
        if stopped():
            break
        told(f"training {placement}")
        label, config = make_case(POLICIES[placement])
        result = MeasuredPlacement(placement, here.point, config.batch_size, fits=False, note="", policy=label)
        try:
            step = measure(label, config, here.length, open_data(config) if here.dataset is None else here.dataset)
        except AdaptiveError as error:  # one that cannot be here does not stop the others
            results.append(replace(result, note=str(error)))
            continue
        share, ms = step.device_share, step.step_ms
        placed = StepModel(here.shape, rates_of(here.machine), here.locality, device_share=share).placed(placement)
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


def locality_of(dataset: Dataset, group: Group, row_bytes: int, source: str) -> Locality:
    """Counted in the first samples of the data (measured)."""
    budgets = tuple((f"{share:g}", max(int(share * group.num_rows), 1)) for share in SHARES)
    return from_profile(profile_data(dataset, group, row_bytes, DataQuestion(SAMPLES, budgets)), source)


def from_profile(data: DataProfile, source: str) -> Locality:
    """From the counts of `profile_data`.

    A budget below what is seen of the rows may be larger than all that were seen: the rest of the curve is theirs.
    """
    each = data.lookups / data.samples
    sizes = {float(size): rows / (each * float(size)) for size, rows in data.reuse.distinct_by_batch_size.items()}
    return Locality(
        source=source,
        shares=tuple(budget.rows_that_fit / data.rows for budget in data.hot),
        lookups=tuple(budget.lookup_share or 0.0 for budget in data.hot),
        inputs=tuple(budget.hot_input_share or 0.0 for budget in data.hot),
        sizes=tuple(sizes),
        distinct=tuple(sizes.values()),
    )
