"""Runs with `init_from`: day by day equals one run, vocabularies grow, mistakes are reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive import load_run
from adaptive.config import TrainConfig
from adaptive.data.rows.row_source import key_of
from adaptive.data.rows.vocabularies import load_vocabularies
from adaptive.errors import AdaptiveError, CheckpointError, ConfigError
from adaptive.training.runs import train_run

HASHED = 'label = { column = "click" }\ncategorical = [{ columns = ["user", "item"], hash_rows = 40 }]\n'
FITTED = 'label = { column = "click" }\ncategorical = [{ columns = ["user"], vocabulary = true }]\n'


def write_day(path: Path, first: int, last: int) -> Path:
    """512 clicks of users u<first> ... u<last - 1>; some fields are empty."""
    random = np.random.default_rng(last)
    users = random.integers(first, last, 512)
    lines = [f"{user % 2},{'' if number % 50 == 0 else f'u{user}'},{user % 7}" for number, user in enumerate(users)]
    path.write_text("click,user,item\n" + "\n".join(lines) + "\n")
    return path


def config(folder: Path, data: str, out: str, schema: str, **changed: Any) -> TrainConfig:
    (folder / "schema.toml").write_text(schema)
    return TrainConfig.model_validate(
        {
            "data": data,
            "data_options": {"schema_path": str(folder / "schema.toml")},
            "model_options": {"embedding_dim": 4, "top_mlp": [8, 1], "interaction": "cat"},
            "batch_size": 64,
            "out": str(folder / out),
            "tensorboard": False,
            "tier": {"device_rows": "100%"},
            **changed,
        }
    )


@pytest.fixture(name="days")
def days_fixture(tmp_path: Path) -> tuple[str, str]:
    return str(write_day(tmp_path / "1.csv", 0, 20)), str(write_day(tmp_path / "2.csv", 10, 30))


def weights(run: Path) -> dict[str, Any]:
    with load_run(run) as loaded:
        tables = {name: loaded.embeddings.rows.table_weights(name) for name in loaded.embeddings.table_names}
        return {**tables, **{name: value.numpy() for name, value in loaded.model.state_dict().items()}}


@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adagrad"])
def test_two_days_are_one_run_bit_for_bit(
    tmp_path: Path, days: tuple[str, str], optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first day has all samples from which the base rate is counted."""
    monkeypatch.setattr("adaptive.models.loss.BASE_RATE_SAMPLES", 512)
    options = {"optimizer": {"name": optimizer}, "dense_optimizer": {"name": "adam"}}
    train_run(config(tmp_path, f"csv:{days[0]},{days[1]}", "both", HASHED, **options))
    train_run(config(tmp_path, f"csv:{days[0]}", "first", HASHED, **options))
    train_run(config(tmp_path, f"csv:{days[1]}", "second", HASHED, init_from=str(tmp_path / "first"), **options))
    whole, found = weights(tmp_path / "both"), weights(tmp_path / "second")
    assert whole.keys() == found.keys()
    for name, value in whole.items():
        assert np.array_equal(value, found[name]), name


def test_new_ids_get_rows_behind_the_old_ones(tmp_path: Path, days: tuple[str, str]) -> None:
    """Rows of known ids, and of missing ones, are those of day 1 before day 2 trains, which it does at a rate near 0.
    No id of day 1 was unknown, so that row has the initial value of its new place."""
    train_run(config(tmp_path, f"csv:{days[0]}", "first", FITTED, optimizer={"name": "sgd"}))
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}}
    train_run(config(tmp_path, f"csv:{days[1]}", "second", FITTED, init_from=str(tmp_path / "first"), **still))
    before, after = weights(tmp_path / "first")["user"], weights(tmp_path / "second")["user"]
    old, new = (load_vocabularies(tmp_path / day / "vocabulary")["user"].keys.tolist() for day in ("first", "second"))
    assert new[: len(old)] == old and len(set(new)) == len(new)
    assert sorted(new) == sorted(key_of(f"u{user}") for user in range(30))
    assert np.array_equal(after[: len(old)], before[: len(old)])
    assert len(after) - len(new) == len(before) - len(old) > 0
    assert len(after) - len(new) == 2, "one for unknown ids, one for missing ones"
    assert np.array_equal(after[-1], before[-1])
    assert not np.array_equal(after[len(old)], before[len(old)]), "a new id's row is its own"


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"seed": 5}, ConfigError, "Set --seed 0"),
        ({"init_from": "nowhere"}, CheckpointError, "nowhere"),
        (
            {"model_options": {"embedding_dim": 8}},
            CheckpointError,
            "rows of width 4 as in .*, got .* of width 8 .init_from, table",
        ),
        (
            {"model_options": {"embedding_dim": 4, "top_mlp": [9, 1]}},
            CheckpointError,
            r"expected weights of this model and optimizer, got others: .*Use the settings of that run",
        ),
        (
            {"model": "dcn", "model_options": {"embedding_dim": 4}},
            CheckpointError,
            r"^expected model dlrm as in .*first, got dcn \(init_from\). Set --model dlrm, or omit --init-from$",
        ),
        (
            {"optimizer": {"name": "adam"}},
            CheckpointError,
            "^expected weights of this model and optimizer, got others",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, days: tuple[str, str], changed: dict[str, Any], kind: type[AdaptiveError], words: str
) -> None:
    train_run(config(tmp_path, f"csv:{days[0]}", "first", HASHED, steps=1))
    given = {"init_from": str(tmp_path / "first"), **changed}
    with pytest.raises(kind, match=f"(?s){words}"):
        train_run(config(tmp_path, f"csv:{days[1]}", "second", HASHED, **given))
