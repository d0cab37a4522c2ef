"""An export that disagrees with its run is refused by row and column, and is not written."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving.test_from_parquet import LISTS, write_lists
from support.served import lines, trained, write_csv
from support.toy import toy_config

from adaptive.errors import OutputError
from adaptive.serving import export_run, exporting, scoring
from adaptive.serving.sample_values import ExportFacts, FeatureFacts
from adaptive.training.runs import train_run

Change = Callable[[list[FeatureFacts]], Sequence[FeatureFacts]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run on lists, nulls and "NA" as a value, with half of its rows for evaluation."""
    monkeypatch.chdir(tmp_path)
    write_lists(Path("train.parquet"), np.random.default_rng(3), 600, 30)
    Path("schema.toml").write_text(LISTS)
    options = {"schema_path": "schema.toml", "holdout": 0.5}
    train_run(toy_config(out="run", data="parquet:train.parquet", data_options=options, tier={"device_rows": "100%"}))
    return "run"


def test_every_export_is_checked(run: str) -> None:
    result = export_run(run, "served")
    assert 200 < result.checked_rows < 400 and result.largest_difference < 1e-6 and result.not_checked == ""


def test_without_the_data_an_export_says_that_it_is_not_checked(run: str) -> None:
    Path("train.parquet").unlink()
    result = export_run(run, "served")
    assert result.checked_rows == 0 and "train.parquet" in result.not_checked and Path("served").is_dir()


def test_text_and_ids_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path)
    assert export_run(run, "served", check=str(write_csv(Path("new.csv"), lines(1200, seed=7)))).checked_rows == 1000
    train_run(toy_config(out="stream", data_options={"synthetic": {"num_train": 300, "num_eval": 200}}))
    assert export_run("stream", "plain").checked_rows == 200


def swapped(features: list[FeatureFacts]) -> list[FeatureFacts]:
    one, other = features[0], features[2]
    return [
        replace(one, name=other.name, bag=True),
        features[1],
        replace(other, name=one.name, bag=False),
        *features[3:],
    ]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda fs: [replace(fs[0], key="text"), *fs[1:]],
            r"user: expected the input of the run, got another one from",
        ),
        (lambda fs: [fs[0], replace(fs[1], null=["", "NA"]), *fs[2:]], r"tags: expected the input of the run, .*'NA'"),
        (swapped, r"(user|items): expected the input of the run"),
        (lambda fs: [*fs[:2], replace(fs[2], bag=False), fs[3]], r"items: expected a 64-bit integer, got \["),
    ],
    ids=["kind", "null", "swapped", "list"],
)
def test_a_wrong_rule_is_named(run: str, monkeypatch: pytest.MonkeyPatch, change: Change, match: str) -> None:
    facts_of = exporting.facts_of

    def wrong(*given: Any) -> tuple[ExportFacts, Any]:
        facts, keys = facts_of(*given)
        return replace(facts, features=change(list(facts.features))), keys

    monkeypatch.setattr(exporting, "facts_of", wrong)
    with pytest.raises(OutputError, match=match) as caught:
        export_run(run, "served")
    assert "train.parquet[row group 0]:" in str(caught.value) and "was not written" in str(caught.value)
    assert [path.name for path in Path.cwd().iterdir() if "served" in path.name] == []


def test_other_weights_are_found(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All inputs agree, but not the score."""
    load = scoring.load

    def spoiled(folder: str | Path) -> scoring.Model:
        model = load(folder)
        last = [tensor for name, tensor in model.named_parameters() if name.startswith("dense.")][-1]
        last.requires_grad_(False).add_(0.5)
        return model

    monkeypatch.setattr(scoring, "load", spoiled)
    with pytest.raises(OutputError, match=r"expected the score 0\.\d+, got 0\.\d+ from the same inputs"):
        export_run(run, "served")
