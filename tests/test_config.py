"""Settings: sizes, closed keys, bounds, and that every field explains itself."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from adaptive import config as config_module
from adaptive.config import (
    Config,
    OptimizerConfig,
    ScheduleConfig,
    TableConfig,
    TierConfig,
    TrainConfig,
    parse_size,
)
from adaptive.errors import ConfigError

CONFIGS = [
    value
    for value in vars(config_module).values()
    if isinstance(value, type) and issubclass(value, Config) and value is not Config
]
every_config = pytest.mark.parametrize("model", CONFIGS, ids=lambda model: model.__name__)


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("0", 0),
        ("250", 250),
        (" 250 ", 250),
        ("5000", 1000),  # no more than there are
        ("10%", 100),
        ("0.01%", 1),  # a part of a row is a row
        ("33.3%", 333),
        ("100%", 1000),
        ("63B", 0),  # rows of 64 bytes: whole ones only
        ("64B", 1),
        ("1KiB", 16),
        ("1KB", 15),
        ("1.5KiB", 24),
        ("2GB", 1000),
        ("1TiB", 1000),
    ],
)
def test_sizes(text: str, rows: int) -> None:
    assert parse_size(text, row_bytes=64, num_rows=1000) == rows


@pytest.mark.parametrize(
    "text",
    ["", "ten", "-5", "+5", "1.5", "1e3", "1_000", "1,000", "10%%", "%", "MiB", "10 rows", "5iB", "5XB", "5kb", "5mib",
     "5M", "5 5", "nan", "inf", "101%", "1000.1%", "0x10"],
)  # fmt: skip
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size "):
        parse_size(text, row_bytes=64, num_rows=1000)


@pytest.mark.parametrize("value", ["5iB", "-1", "x", -5, 1.5, True, None])
def test_a_bad_size_is_a_bad_setting(value: Any) -> None:
    with pytest.raises(ConfigError, match="TierConfig: device_rows: "):
        TierConfig(device_rows=value)


@given(rows=st.integers(1, 2**40), percent=st.integers(0, 100))
def test_per_cent_are_rounded_up_and_never_too_many(rows: int, percent: int) -> None:
    found = parse_size(f"{percent}%", row_bytes=4, num_rows=rows)
    assert found == -(-rows * percent // 100)


# --- keys and values -------------------------------------------------------------------------------------------------


@every_config
def test_a_misspelt_key_is_told_with_the_nearest_one(model: type[Config]) -> None:
    """In our words: pydantic's own have a link to its pages, and no name that may have been meant."""
    name = max(model.model_fields, key=len)
    with pytest.raises(
        ConfigError, match=rf"^{model.__name__}: {name}z: unknown key \(did you mean {name}\?\)"
    ) as caught:
        model(**{f"{name}z": 1})
    assert "pydantic" not in str(caught.value)


@every_config
def test_every_setting_has_a_description(model: type[Config]) -> None:
    for name, setting in model.model_fields.items():
        nested = isinstance(setting.annotation, type) and issubclass(setting.annotation, BaseModel)
        assert setting.description or nested, f"{model.__name__}.{name}"


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (TableConfig, {"embedding_dim": 4097}),
        (TableConfig, {"pooling": "max"}),
        (TableConfig, {"init_bound": float("inf")}),
        (TableConfig, {"admit": 256}),
        (TableConfig, {"expire": 0}),
        (TableConfig, {"expire": "14 days"}),
        (TableConfig, {"when_full": "grow"}),
        (TierConfig, {"host": "mmap"}),
        (OptimizerConfig, {"lr": float("nan")}),
        (TrainConfig, {"depth": 65}),
    ],
)
def test_values_out_of_bounds(model: type[Config], values: dict[str, Any]) -> None:
    required = {"name": "t", "num_embeddings": 5, "embedding_dim": 4} if model is TableConfig else {}
    model.model_validate(required)
    with pytest.raises(ValidationError) as caught:
        model.model_validate(required | values)
    assert [error["loc"] for error in caught.value.errors()] == [tuple(values)]


def test_expiry_is_a_number_of_batches_or_a_time() -> None:
    def table(expire: int | str | None) -> TableConfig:
        return TableConfig(name="item", num_embeddings=5, embedding_dim=4, keys="int64", expire=expire)

    assert (table(7).expire_batches, table(7).expire_seconds) == (7, None)
    assert (table("7").expire_batches, table(None).expire_batches) == (7, None)
    times = {"90s": 90, "30m": 1800, "12h": 43_200, "14d": 1_209_600, "2w": 1_209_600}
    assert {text: table(text).expire_seconds for text in times} == times
    assert table("14d").expire_batches is None


def test_settings_of_keys_need_keys() -> None:
    """Without the check, a forgotten `keys` would train a table of fixed rows."""
    settings: dict[str, Any] = {"admit": 2, "expire": 9, "when_full": "error"}
    for name, value in settings.items():
        with pytest.raises(ValidationError, match=f'expected keys="int64" with {name}, got none'):
            TableConfig.model_validate({"name": "item", "num_embeddings": 5, "embedding_dim": 4, name: value})
    with pytest.raises(ConfigError, match="num_embeddings of at most 2147483646 with keys, got 2147483647"):
        TableConfig(name="item", num_embeddings=2**31 - 1, embedding_dim=4, keys="int64")


# --- schedules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"decay": "linear", "decay_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
        ({"decay": "linear", "decay_steps": 2, "decay_from": 1, "final": 0.5}, [1, 1, 0.75, 0.5, 0.5, 0.5]),
        ({"decay": "cosine", "decay_steps": 2}, [1, 0.5, 0, 0, 0, 0]),
        ({"decay": "power", "decay_steps": 4}, [1, 0.5625, 0.25, 0.0625, 0, 0]),
        ({"warmup": 2, "decay": "linear", "decay_steps": 4}, [0.5, 0.75, 0.5, 0.25, 0, 0]),
    ],
)
def test_the_factor_of_a_rate_in_each_step(schedule: dict[str, Any], factors: list[float]) -> None:
    found = ScheduleConfig.model_validate(schedule)
    assert [found.factor(step) for step in range(6)] == pytest.approx(factors)
    assert found.is_constant == (schedule == {})


def test_what_schedules_need_and_what_they_exclude() -> None:
    with pytest.raises(ConfigError, match="expected decay_steps with decay=linear, got none"):
        ScheduleConfig(decay="linear")
