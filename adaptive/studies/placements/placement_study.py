"""`compare_placements`: placements of shapes on machines, modelled; and those that exist here, measured."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

from adaptive.data.dataset import Dataset
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import AdaptiveError, ConfigError
from adaptive.studies.machines import MachineSpec
from adaptive.studies.placements.shape import Shape, with_values
from adaptive.studies.profile.data_profile import DataQuestion, profile_data
from adaptive.studies.profile.step_profile import Case, StepLength, measure
from adaptive.studies.step_model import PLACEMENTS, POLICIES, Locality, Placed, StepModel, rates_of
from adaptive.training.build import open_data

SCHEMA: Final = 1
KIND: Final = "placements"
Sweep = tuple[str, Sequence[str]]  # a key of a shape, and its values
MOST_POINTS: Final = 400
SHARES: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75)
SAMPLES: Final = 200_000


def compare_placements(
    shapes: Sequence[Shape],
    machines: Sequence[MachineSpec],
    placements: Sequence[str],
    locality: Locality,
    *,
    sweeps: Sequence[Sweep] = (),
    watts: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The record.

    Raises:
        ConfigError: for a placement that nobody knows, watts of no machine, too many sweeps.
    """
    check_asked(placements, sweeps, [machine.name for machine in machines], watts or ())
    power = {machine.name: (watts or {}).get(machine.name, machine.watts) for machine in machines}
    lines = [
        _line(shape, machine, placement, locality, power[machine.name], point)
        for base in shapes
        for point, shape in points_of(base, sweeps)
        for machine in machines
        for placement in placements
    ]
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "locality": locality.source,
        "sweep": [key for key, _ in sweeps],
        "shapes": [{**shape.model_dump(), "table_bytes": shape.table_bytes} for shape in shapes],
        "machines": [
            {"name": one.name, "source": one.source, "note": one.note, "watts": power[one.name]} for one in machines
        ],
        "lines": _against_host(lines),
    }


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
        raise ConfigError(f"--sweep: needed one or two keys, found {len(keys)}")
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
    found = [dict(zip(keys, values, strict=True)) for values in product(*(values for _, values in sweeps))]
    return [(point, with_values(shape, list(point), list(point.values())) if point else shape) for point in found]


def _line(
    shape: Shape, machine: MachineSpec, placement: str, locality: Locality, watts: float | None, point: dict[str, str]
) -> dict[str, Any]:
    rates = rates_of(machine)
    placed = StepModel(shape, rates, locality).placed(placement)
    return {
        "shape": shape.name,
        **point,
        "machine": machine.name,
        "placement": placement,
        "kind": "modelled",
        "batch_size": shape.batch_size,
        **_speed(placed, shape.batch_size, watts),
    }


def _speed(placed: Placed, batch_size: int, watts: float | None) -> dict[str, Any]:
    speed = batch_size / placed.step_ms * 1e3 if placed.step_ms else None
    return {
        "fits": placed.fits,
        "ms": placed.step_ms,
        "samples_per_s": speed,
        "limited_by": placed.limit,
        "parts_ms": placed.parts_ms,
        "samples_per_s_per_watt": speed / watts if speed and watts else None,
        "note": placed.note,
    }


def _against_host(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each line with its speed over that of `host` with the same shape on the same machine."""

    def key(line: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(line[name] for name in line if name in ("shape", "machine", *_swept(line)))

    host = {key(line): line["samples_per_s"] for line in lines if line["placement"] == "host"}
    for line in lines:
        base = host.get(key(line))
        line["of_host"] = line["samples_per_s"] / base if base and line["samples_per_s"] else None
    return lines


def _swept(line: Mapping[str, Any]) -> list[str]:
    return [name for name in line if name in ("num_dense", "num_sparse", "hash_size", "lookups", "mlp", "batch_size")]


def measure_placements(
    make_case: Callable[[str], Case],
    placements: Sequence[str],
    shape: Shape,
    machine: MachineSpec,
    locality: Locality,
    length: StepLength,
    *,
    dataset: Dataset | None = None,
    stopped: Callable[[], bool] = lambda: False,
    told: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Train the placements that exist here, and put the model's answer beside what was measured.

    Args:
        make_case: from the policy of a placement its settings.
        placements: those that exist nowhere here are left out.
        shape: of the model that is trained.
        machine: with this machine's rates.
        locality: of the data that are trained.
        length: of each training.
        dataset: that of all settings, if it is open: opening may read all files.
        stopped: the placements that are not begun when it says yes are left out.
        told: called with a line before each training.
    """
    found = []
    for placement in placements:
        if placement not in POLICIES:
            continue
        if stopped():
            break
        told(f"training {placement}")
        label, config = make_case(POLICIES[placement])
        try:
            measured = measure(config, length, open_data(config) if dataset is None else dataset)
        except AdaptiveError as error:  # one that cannot be here does not stop the others
            found.append({"placement": placement, "kind": "measured", "fits": False, "note": str(error)})
            continue
        share = measured["device_share"]
        placed = StepModel(shape, rates_of(machine), locality, device_share=share).placed(placement)
        ms = measured["step_ms"]
        found.append(
            {
                "placement": placement,
                "policy": label,
                "kind": "measured",
                "fits": True,
                "ms": ms,
                "samples_per_s": config.batch_size / ms * 1e3,
                "modelled_ms": placed.step_ms,
                "error": placed.step_ms / ms - 1 if placed.step_ms else None,
                "device_share": share,
                "note": placed.note,
            }
        )
    return found


def locality_of(dataset: Dataset, group: Group, row_bytes: int, source: str) -> Locality:
    """Counted in the first samples of the data (measured)."""
    budgets = tuple((f"{share:g}", max(int(share * group.num_rows), 1)) for share in SHARES)
    return from_profile(profile_data(dataset, group, row_bytes, DataQuestion(SAMPLES, budgets)), source)


def from_profile(data: Mapping[str, Any], source: str) -> Locality:
    """Of what `profile_data` found.

    A budget below what is seen of the rows may be larger than all that were seen: the rest of the curve is theirs.
    """
    each = data["lookups"] / data["samples"]
    sizes = {
        float(size): found / (each * float(size)) for size, found in data["reuse"]["distinct_by_batch_size"].items()
    }
    return Locality(
        source=source,
        shares=tuple(one["rows_that_fit"] / data["rows"] for one in data["hot"]),
        lookups=tuple(one["lookup_share"] for one in data["hot"]),
        inputs=tuple(one["hot_input_share"] for one in data["hot"]),
        sizes=tuple(sizes),
        distinct=tuple(sizes.values()),
    )
