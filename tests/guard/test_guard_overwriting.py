"""Rows given other values in the middle of a training on a device that is several batches behind the host."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "tiers"))

from simulated_training import CASES, Arrays, Case, Run, simulated, small_buffers

AFTER = 9  # batches, whatever is under way


class Overwritten(Run):
    """Takes over the values that the whole training ends with, where rows that wait have been settled."""

    def __init__(
        self, case: Case, random: np.random.Generator, values: Arrays, device: str, *, looks: bool = True
    ) -> None:
        super().__init__(case.build(device), case.depth, random, {}, case.shrinks)
        self.values, self.looks = values, looks

    def look_around(self) -> None:
        if self.embeddings._pipeline.trained == AFTER:
            self.embeddings.overwrite_rows(self.values)
            if self.looks:
                self.assert_overwritten()
        super().look_around()

    def assert_overwritten(self) -> None:
        found = self.embeddings.state_arrays()
        for name, value in self.values.items():
            if name.endswith((".weights", ".state")):
                rows, theirs = (arrays[name.split(".")[0] + ".changed"] for arrays in (found, self.values))
                assert np.isin(theirs, rows).all()
                assert np.array_equal(found[name][np.isin(rows, theirs)], value), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.policy.__name__}-{case.depth}-{case.way}")
def test_the_order_of_streams_does_not_matter(case: Case) -> None:
    values = Run(case.build("cpu"), case.depth, np.random.default_rng(0), {}, False).train()
    expected = Overwritten(case, np.random.default_rng(0), values, "cpu").train()
    for seed in range(3):
        with simulated(seed) as simulation, small_buffers(case.ample):
            looks = seed == 0  # that waits for everything
            found = Overwritten(case, simulation.random, values, "cpu-torch", looks=looks).train()
        for name, value in expected.items():
            assert np.array_equal(found[name], value, equal_nan=value.dtype.kind == "f"), (seed, name)
    assert not all(np.array_equal(expected[name], value) for name, value in values.items() if "watched" not in name)
