"""The synthetic stream in other shapes than Criteo Kaggle's, and that its default shape is what it was before."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive.data.kernels import synthetic as kernels
from adaptive.data.synthetic import (
    CRITEO_KAGGLE,
    Synthetic,
    SyntheticConfig,
    Teacher,
    bayes_auc,
    cardinalities,
    large_fields,
    make_fields,
    table_sizes,
)

# SHA-256 of dense inputs, ids, offsets and labels. They may change only with `GENERATOR`.
DIGESTS: list[tuple[dict[str, Any], int, str]] = [
    ({}, 0, "94149751b76c8fad4b93f65aaac28f1e357c1fe9e83d0a776c28ce123676b854"),
    ({}, 1500, "3605730ecd4da2bdf17d9b50d8e7a96fdb764641d1874ea75ef267ebf4dc7c01"),
    ({"setting": "hard", "seed": 3}, 0, "562420f69a4e17313d04a26d9ae33bc0aaee91f3732cb896b87952b028abc514"),
    (
        {"drift_at": 0.5, "num_train": 4000, "num_eval": 1000, "rows": 100_000, "seed": 1},
        1500,
        "3197d6946b7d411c1bf258c385046c4b6b2734e0a64a62d823b07b887dc7bf41",
    ),
]
SHAPES = [
    {"num_dense": 0, "tables": 4},
    {"num_dense": 1, "tables": 4, "lookups": 5, "setting": "hard"},
    {"num_dense": 2, "tables": 21},
    {"num_dense": 64, "tables": 128, "lookups": 3},
    {"num_dense": 102, "tables": 204, "rows": 100_000},
]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))


def open_stream(shape: dict[str, Any], **more: Any) -> Synthetic:
    return Synthetic(SyntheticConfig.model_validate({"positive_rate": 0.25, "num_train": 400_000, **shape, **more}))


@pytest.mark.parametrize(("settings", "start", "digest"), DIGESTS)
def test_the_default_shape_is_bit_for_bit_what_it_was(settings: dict[str, Any], start: int, digest: str) -> None:
    batch, _ = open_stream(settings).samples(start, start + 3000)
    actual = hashlib.sha256()
    for array in (batch.dense, batch.ids, batch.offsets, batch.labels):
        actual.update(array.tobytes())
    assert actual.hexdigest() == digest


@pytest.mark.nightly
@shapes
def test_a_shape_has_its_features_rows_rates_and_bags(shape: dict[str, Any]) -> None:
    data = open_stream(shape)
    lookups = shape.get("lookups", 1)
    batch, probability = data.samples(200_000, 230_000)
    assert (data.num_dense, batch.dense.shape) == (shape["num_dense"], (30_000, shape["num_dense"]))
    assert batch.num_features == len(data.features) == shape["tables"]
    assert sum(feature.num_embeddings for feature in data.features) == data.config.rows
    assert (np.diff(batch.offsets) == lookups).all()
    for feature, rows in enumerate(data.features):
        ids = batch.ids[batch.feature_span(feature)]
        assert ids.min() >= 0 and ids.max() < rows.num_embeddings
    assert batch.labels.mean() == pytest.approx(0.25, abs=0.015)
    assert bayes_auc(np.sort(probability)) == pytest.approx(0.8, abs=0.008)


@pytest.mark.parametrize("tables", [4, 5, 26, 27, 128, 204, 1024])
@pytest.mark.parametrize("rows", [100_000, 1_100_000, 100_000_000])
def test_any_number_of_tables_repeats_the_sizes_of_kaggle(tables: int, rows: int) -> None:
    sizes, full = np.array(table_sizes(rows, tables)), np.array(cardinalities(tables))
    assert full.tolist() == [CRITEO_KAGGLE[table % 26] for table in range(tables)]
    assert sizes.sum() == rows and len(sizes) == tables and (sizes >= 3).all()
    assert (sizes <= table_sizes(2 * rows, tables)).all()
    large = large_fields(SyntheticConfig(rows=rows, tables=tables))
    assert large.any() and (~large).sum() >= 2  # the teacher draws pairs of small tables
    np.testing.assert_array_equal(sizes[~large], full[~large])
    assert sizes[large].min() >= full[~large].max()


@pytest.mark.parametrize("shape", [{"num_train": 100_000}, {"tables": 5, "lookups": 7, "num_train": 20_000}], ids=str)
def test_singletons_occur_at_most_once_in_training(shape: dict[str, Any]) -> None:
    """In bags too, and all that fit into the training stream."""
    data = open_stream(shape)
    fields, lookups = make_fields(data.config), data.config.num_train * data.config.lookups
    ids = data.samples(0, data.config.num_train)[0].ids.reshape(len(fields), -1)
    assert (fields["singletons"] > 0).tolist() == large_fields(data.config).tolist()
    for field, row in zip(fields, ids, strict=True):
        ranks = np.arange(field["popular"], field["size"])
        counts = np.bincount(row, minlength=field["size"])[(ranks * field["stride"] + field["offset"]) % field["size"]]
        assert counts.max(initial=0) <= 1
        available = len(ranks) * (1 - field["default_limit"] / 2**32) * lookups / float(field["period"])
        assert counts.sum() == pytest.approx(available, rel=0.05, abs=1)


def test_the_lookups_of_a_bag_are_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where features do not agree on popular ids, a feature's lookups are those of as many one-hot samples."""
    monkeypatch.setattr("adaptive.data.synthetic.CORRELATION", 0.0)
    shape = {"tables": 4, "num_train": 100_000, "singleton_share": 0.0}
    bags = open_stream({**shape, "lookups": 4}).samples(0, 1000)[0]
    singles = open_stream(shape).samples(0, 4000)[0]
    np.testing.assert_array_equal(bags.ids, singles.ids)


def slow_signal(teacher: Teacher, ids: NDArray[np.int64], dense: NDArray[np.float32], b: int) -> list[float]:
    """The three parts of one sample's logit, as the teacher's docstring says them."""

    def bag(field: int, key: np.uint64) -> float:
        effects = [kernels.effect(teacher.fields[field], key, int(i), False) for i in ids[field, b]]
        return float(sum(effects)) / math.sqrt(len(effects))

    fields, x = teacher.fields, dense[b].astype(np.float64)
    main = sum(teacher.main[f] * bag(f, fields[f]["main_key"]) for f in range(len(fields)))
    pairs = sum(
        pair["weight"] * bag(pair["first"], fields[pair["first"]]["factor_key"][k])
        * bag(pair["second"], fields[pair["second"]]["factor_key"][k])
        for pair in teacher.pairs
        for k in range(2)
    )  # fmt: skip
    rest = float(teacher.linear @ x)
    curves: list[Callable[[], float]] = [lambda: math.sin(1.5 * x[1]), lambda: x[2] * x[3], lambda: abs(x[4])]
    rest += sum(0.5 * curve() for curve, needed in zip(curves, (2, 4, 5), strict=True) if len(x) >= needed)
    for product in teacher.products:
        rest += (
            product["weight"] * bag(product["field"], fields[product["field"]]["product_key"]) * x[product["column"]]
        )
    return [main, pairs, rest]


@shapes
def test_the_signal_is_what_the_teacher_says(shape: dict[str, Any]) -> None:
    data = open_stream(shape)
    batch, _ = data.samples(0, 8)
    ids = batch.ids.reshape(len(data.features), 8, -1)
    actual = data._teacher.signal(ids, batch.dense, first_drifted=8)
    expected = [slow_signal(data._teacher, ids, batch.dense, b) for b in range(8)]
    np.testing.assert_allclose(actual.T, expected, rtol=1e-5, atol=1e-6)
