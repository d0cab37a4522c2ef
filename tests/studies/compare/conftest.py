"""Comparisons in this folder train a small data set."""

import pytest
from support.toy import ToyData

import adaptive.studies.compare.comparison_runs
import adaptive.training.runs


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (adaptive.training.runs.training, adaptive.studies.compare.comparison_runs):
        monkeypatch.setattr(module, "open_data", lambda config, run_directory=None: ToyData(num_train=320))
