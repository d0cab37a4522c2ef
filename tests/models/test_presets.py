"""Presets: shapes that papers name, as settings that any other setting beats."""

from pathlib import Path

import pytest
import torch

from adaptive.errors import ConfigError
from adaptive.models.paper_presets import PRESETS
from adaptive.training.components import build, open_data
from adaptive.training.settings import load_settings

SMALL = ["data.synthetic.rows=100000", "data.synthetic.num_train=2000", "data.synthetic.num_eval=0", "batch_size=64"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_built_and_trains_a_batch(name: str) -> None:
    preset = PRESETS[name]
    config, origins = load_settings(flags={"preset": name}, sets=[*SMALL, "tier.device_rows=100%"])
    assert config.preset == name and origins["model_options.embedding_dim"] == f"preset {name}"
    steps = 21 if name == "rmc1" else 1
    num_dense, tables = preset.get("data.synthetic.num_dense", 1), preset.get("data.synthetic.tables", 3)
    dataset = open_data(config)
    parts = build(config, dataset)
    with parts.embeddings as embeddings:
        assert len(parts.tables) == tables
        assert {table.embedding_dim for table in parts.tables} == {preset["model.embedding_dim"]}
        for planned in embeddings.look_ahead([next(iter(dataset.train(64)))], depth=0):
            assert planned.batch.dense.shape == (64, num_dense * steps)
            assert len(planned.batch.ids) == 64 * tables * steps
            logits = parts.model(planned.dense, embeddings.stack(planned))
            logits.sum().backward()
            embeddings.step()
        assert torch.isfinite(logits).all()


def test_anything_given_beats_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('preset = "rmc4"\n[data.synthetic]\nlookups = 3\n')
    config, origins = load_settings(
        file=file,
        environ={"ADAPTIVE_DATA__SYNTHETIC__NUM_DENSE": "7"},
        sets=["model.top_mlp=8-1"],
        flags={"model.embedding_dim": "4", "model.bottom_mlp": "7-4"},
    )
    assert config.data_options == {"synthetic": {"num_dense": 7, "tables": 21, "lookups": 3}}
    assert config.model_options == {"embedding_dim": 4, "bottom_mlp": "7-4", "top_mlp": "8-1"}
    assert origins["data_options.synthetic.tables"] == "preset rmc4"
    assert origins["data_options.synthetic.lookups"] == f"{file}:data.synthetic.lookups"
    assert load_settings(file=file, sets=["preset=rmc3"])[0].data_options["synthetic"]["tables"] == 26
    assert load_settings(file=file, sets=["preset=null"])[0].model_options == {}


def test_a_run_record_repeats_the_shape(tmp_path: Path) -> None:
    first, _ = load_settings(flags={"preset": "rmc3"}, sets=["data.synthetic.tables=30"])
    record = tmp_path / "run.json"
    record.write_text(f'{{"config": {first.model_dump_json()}}}')
    assert load_settings(file=record)[0] == first


def test_wrong_names_get_the_list() -> None:
    with pytest.raises(
        ConfigError, match=r"preset \(--set\): expected one of rmc1, .*, mlperf, got 'rmc-2'; did you mean"
    ):
        load_settings(sets=["preset=rmc-2"])
    with pytest.raises(ConfigError, match=r"expected one of rmc1, rmc2.*got 'rmc9'; did you mean rmc") as caught:
        load_settings(flags={"preset": "rmc9"}, sets=["batch_size=0"])
    assert "batch_size" in str(caught.value)  # all mistakes at once


def test_rmc1_brings_its_model_its_optimizer_and_sequences() -> None:
    config, origins = load_settings(flags={"preset": "rmc1"})
    assert (config.model, config.data) == ("tbsm", "sequences")
    assert (origins["model"], origins["data"]) == ("preset rmc1", "model tbsm")
    assert (config.optimizer.name, config.optimizer.lr) == ("adagrad", 0.05)
    assert (config.dense_optimizer.name, config.dense_optimizer.lr) == ("adagrad", 0.05)
    other, _ = load_settings(flags={"preset": "rmc1", "data": "taobao:x"}, sets=["optimizer.name=sgd"])
    assert (other.data, other.optimizer.name, other.model) == ("taobao:x", "sgd", "tbsm")
