"""What the tests of the guard share: settings small enough for the toy data, and whole runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive.policy import Policy
from adaptive.storage.checkpoint import Checkpoint, load_checkpoint
from adaptive.training.runs import train_run, training
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import GuardRecord, IntervalRecord, Record
from support import guarded_policies
from support.guarded_policies import Plain
from support.toy import ToyData, toy_config

Floats = NDArray[np.floating[Any]]

SAMPLES, BATCH = 5760, 32  # 180 batches
GUARD = {"budget": 0.0005, "warmup": 20, "steps": 30, "holdout": 600, "every": 60}
SKIP = {"interval": 4, "min_visits": 1, "min_accesses": 2, "hot_rows": "100%", "feedback_delay": 4}
LAX, STRICT = 1e6, 1e-9  # budgets that nothing breaks, and that everything breaks


def spec(policy: type[Policy]) -> str:
    return f"{guarded_policies.__file__}:{policy.__name__}"


@dataclass(frozen=True)
class Outcome:
    summary: dict[str, Any]
    saved: Checkpoint
    records: list[Record]

    @property
    def decisions(self) -> list[GuardRecord]:
        return [record for record in self.records if isinstance(record, GuardRecord)]

    @property
    def verdicts(self) -> list[str]:
        return [record.verdict for record in self.decisions]

    @property
    def numbers(self) -> dict[str, NDArray[Any]]:
        """All that was trained."""
        rows = {name: value for name, value in self.saved.rows.items() if name.endswith(("weights", "state"))}
        return rows | {name: value.numpy() for name, value in self.saved.dense.items()}

    def skipped_between(self, first: int, last: int) -> int:
        """Row updates left out in batches from `first` to before `last`; both must be ends of intervals."""
        records = [r for r in self.records if isinstance(r, IntervalRecord) and first < r.step <= last]
        return sum(counts.skipped_updates for record in records for counts in record.tables.values())


def run(
    out: Path,
    policy: type[Policy] | str,
    guard: dict[str, Any] | None = None,
    *,
    stream: TextIO | None = None,
    **changed: Any,
) -> Outcome:
    """A run on the toy data; `guard` are changes to `GUARD`, without which there is none."""
    settings = {
        "policy": policy if isinstance(policy, str) else spec(policy),
        "skip": SKIP,
        "out": str(out),
        "log_every": 10,
        "batch_size": BATCH,
    }
    settings |= {"guard": None if guard is None else GUARD | guard}
    return read(out, train_run(toy_config(**(settings | changed)), overwrite=True, stream=stream))


def read(out: Path, summary: dict[str, Any]) -> Outcome:
    """What a run has left in its directory."""
    return Outcome(summary, load_checkpoint(out / "weights"), read_metrics(out / "metrics.jsonl"))


def assert_same_numbers(found: Outcome, expected: Outcome) -> None:
    """Bit for bit."""
    assert found.numbers.keys() == expected.numbers.keys()
    for name, value in expected.numbers.items():
        np.testing.assert_array_equal(found.numbers[name], value, strict=True, err_msg=name)


# --- fixtures, for who imports them ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def toy_data(data: Any) -> None:
    data(SAMPLES)


@pytest.fixture(scope="module", name="plain")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """What skipping nothing trains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "open_data", lambda *_: ToyData(SAMPLES))
        return run(tmp_path_factory.mktemp("plain"), Plain)
