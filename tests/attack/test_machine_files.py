"""Machine files and shapes of somebody else: an error that names the file, or numbers that there are."""

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support.attacks import Campaign, attack, told

from adaptive.studies.machines import PRESETS, load_machine
from adaptive.studies.placements.shape import SHAPES, load_shape
from adaptive.studies.step_model import (
    PLACEMENTS,
    Locality,
    StepModel,
    Traffic,
    described,
    expected_ms,
    rates_of,
    step_ms,
)

pytestmark = attack

MEASURED: Final = """name = "here"
[measured]
device = 2e9
host = 1e9
move = 5e8
dense_ms = 3.0
flops_per_sample = 100.0
batch_size = 10
overlap_staged = 0.5
overlap_host = 0.25
plan_factor = 2.0
vectors_cross = false
depth = 4
"""
VALUES: Final = ("0", "-1", "nan", "inf", "1e308", "1e-308", "9" * 25, "true", '"x"', '"1e400GB"', '""', "[]", "{}",
                 "0x10", "1979-05-27", '"\\u0000"', "[1, 2]", '"16GB"', "-0.0", "1" * 400)  # fmt: skip
LOCALITY: Final = Locality("drawn", (0.1,), (0.5,), (0.2,), (64.0, 2048.0), (0.9, 0.5))
TRAFFIC: Final = Traffic(
    lookups=1000, lookup_hits=800, rows=500, row_hits=400, vectors=1000, host_vectors=0, fetched=100, written_back=60,
    value_bytes=64, row_bytes=68,
)  # fmt: skip


def mutated(text: str, rng: np.random.Generator) -> str:
    """Values replaced, lines dropped, doubled or in another order, bytes flipped."""
    lines = text.splitlines()
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(lines)))
        key, equals, _ = lines[at].partition("=")
        match int(rng.integers(5)):
            case 0 | 1 if equals:
                lines[at] = f"{key}= {VALUES[int(rng.integers(len(VALUES)))]}"
            case 2 if len(lines) > 1:
                del lines[at]
            case 3:
                lines.insert(int(rng.integers(len(lines))), lines[at])
            case _ if lines[at]:
                place = int(rng.integers(len(lines[at])))
                lines[at] = lines[at][:place] + chr(int(rng.integers(1, 0x250))) + lines[at][place + 1 :]
    return "\n".join(lines)


def machine(path: str) -> list[float | None]:
    spec = load_machine(path)
    found: list[float | None] = []
    shape = load_shape("rmc1")
    for placement in PLACEMENTS:
        placed = StepModel(shape, rates_of(spec), LOCALITY).placed(placement)
        found += [placed.step_ms, *(placed.parts_ms or {}).values()]
    here = described(spec, flops_per_sample=200.0, batch_size=20)
    return [*found, *asdict(step_ms(TRAFFIC, here, staged=True, plan_ms=1.0)).values(),
            expected_ms(TRAFFIC, here, staged=True, plan_ms=1.0, read_ms=1.0, depth=4)]  # fmt: skip


def shape(path: str) -> list[float | None]:
    model = StepModel(load_shape(path), rates_of(load_machine("zion")), LOCALITY)
    return [model.placed(placement).step_ms for placement in PLACEMENTS]


@pytest.mark.parametrize(("folder", "read"), [(PRESETS, machine), (SHAPES, shape)])
def test_somebodys_file_of_a_machine_or_a_shape(
    tmp_path: Path, folder: Path, read: Callable[[str], list[float | None]]
) -> None:
    texts = [path.read_text() for path in sorted(folder.glob("*.toml"))] + [MEASURED] * (read is machine)
    path, campaign = tmp_path / "drawn.toml", Campaign(f"mutated files of {folder.name}", 60)
    for _, rng in campaign.tries():
        path.write_text(mutated(texts[int(rng.integers(len(texts)))], rng))
        found: list[Any] = []
        message = told(lambda: found.extend(read(str(path))), codes=(2,))  # noqa: B023
        campaign.came("told" if message else "read")
        assert all(one is None or (math.isfinite(one) and one >= 0) for one in found), (path.read_text(), found)
