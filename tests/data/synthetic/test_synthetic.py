"""The synthetic stream: what it promises (rates, skew, drift, reproducibility) and its kernels as plain Python."""

import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from support.builders import assert_same_batches

from adaptive.batch import Batch
from adaptive.data import synthetic
from adaptive.data.kernels import synthetic as kernels
from adaptive.data.synthetic import Synthetic, SyntheticConfig, bayes_auc
from adaptive.errors import ConfigError, InputError

Make = Callable[..., Synthetic]


@pytest.fixture(scope="module")
def make() -> Make:
    """Opens a stream, once per configuration: setting one up takes half a second."""
    opened: dict[SyntheticConfig, Synthetic] = {}

    def make_(**values: object) -> Synthetic:
        config = SyntheticConfig.model_validate(values)
        if config not in opened:
            opened[config] = Synthetic(config)
        return opened[config]

    return make_


def ids_of(batch: Batch) -> NDArray[np.int64]:
    return batch.ids.reshape(26, -1)


def counts_of(data: Synthetic, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Look-ups of every row of all tables."""
    counts = [np.bincount(ids[f], minlength=feature.num_embeddings) for f, feature in enumerate(data.features)]
    return np.concatenate(counts)


def assert_same(actual: Batch, expected: Batch) -> None:
    assert_same_batches([actual], [expected])


# Acceptance: what every seed must be like.


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("setting", "rate"), [("easy", 0.03), ("easy", 0.22), ("hard", 0.005), ("skewed", 0.03)])
def test_every_seed_has_the_same_positive_rate_and_bayes_auc(make: Make, setting: str, rate: float, seed: int) -> None:
    """Within 4 standard errors: of drawing labels, and of probabilities here and in the calibration's 200,000."""
    batch, probability = make(setting=setting, positive_rate=rate, seed=seed).samples(200_000, 400_000)
    size = len(probability)
    scatter = probability.std() / math.sqrt(size)
    assert probability.mean() == pytest.approx(rate, abs=4 * math.sqrt(2) * scatter)
    drawn = math.sqrt((probability * (1 - probability)).sum()) / size
    assert batch.labels.mean() == pytest.approx(probability.mean(), abs=4 * drawn)
    assert bayes_auc(np.sort(probability)) == pytest.approx(0.8, abs=0.003)


def test_positive_rate_changes_labels_only(make: Make) -> None:
    (few, p), (many, q) = (make(positive_rate=rate).samples(0, 5000) for rate in (0.01, 0.25))
    np.testing.assert_array_equal(few.ids, many.ids)
    np.testing.assert_array_equal(few.dense, many.dense)
    assert (p < q).all()
    assert (few.labels <= many.labels).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("setting", "low", "high"), [("skewed", 0.77, 0.83), ("easy", 0.1, 0.3)])
def test_four_of_five_skewed_samples_are_hot(make: Make, seed: int, setting: str, low: float, high: float) -> None:
    """Counted: samples all of whose rows are among the 7% that are looked up most."""
    data = make(setting=setting, seed=seed)
    ids = ids_of(data.samples(0, 400_000)[0])
    counts = counts_of(data, ids)
    hot = np.zeros(len(counts), bool)
    hot[np.argsort(-counts, kind="stable")[: round(0.07 * len(counts))]] = True
    starts = np.cumsum([0, *(feature.num_embeddings for feature in data.features)])[:-1]
    assert low <= hot[ids + starts[:, None]].all(axis=0).mean() <= high


def test_labels_are_drawn_with_their_probability(make: Make) -> None:
    batch, probability = make().samples(0, 400_000)
    for low in np.arange(0.0, 0.9, 0.1):
        inside = (probability >= low) & (probability < low + 0.1)
        error = 4 * 0.5 / math.sqrt(inside.sum())
        assert batch.labels[inside].mean() == pytest.approx(probability[inside].mean(), abs=error)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_top_one_percent_of_all_rows_serves_most_lookups(make: Make, seed: int) -> None:
    """Of all rows, whether ever looked up or not."""
    data = make(seed=seed)
    counts = np.sort(counts_of(data, ids_of(data.samples(0, 400_000)[0])))[::-1]
    top = counts[: len(counts) // 100].sum() / counts.sum()
    assert 0.75 <= top <= 0.88


def test_dense_inputs_are_normal_and_the_first_is_correlated(make: Make) -> None:
    data = make()
    batch, _ = data.samples(0, 100_000)
    assert batch.dense.shape == (100_000, 13)
    np.testing.assert_allclose(batch.dense.mean(axis=0), 0.0, atol=0.02)
    np.testing.assert_allclose(batch.dense.std(axis=0), 1.0, atol=0.02)
    latent = np.empty(100_000)
    kernels.draw_normals(data._latent_key, 0, latent)
    correlations = [np.corrcoef(latent, column)[0, 1] for column in batch.dense.T]
    np.testing.assert_allclose(correlations, [0.8] + [0.0] * 12, atol=0.02)


def test_popular_ids_occur_together_by_the_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    def share_of_all_popular(correlation: float) -> float:
        monkeypatch.setattr(synthetic, "CORRELATION", correlation)
        data = Synthetic(SyntheticConfig(num_train=50_000))
        ids = ids_of(data.samples(0, 50_000)[0])
        hot = [np.bincount(row).argsort()[::-1][:1000] for row in ids]
        return float(np.all([np.isin(row, top) for row, top in zip(ids, hot, strict=True)], axis=0).mean())

    assert share_of_all_popular(0.8) > 2 * share_of_all_popular(0.0)


# Reproducibility.


@settings(deadline=None)
@given(start=st.integers(0, 499_000), sizes=st.lists(st.integers(0, 300), min_size=1, max_size=3))
def test_blocks_equal_the_whole(make: Make, start: int, sizes: list[int]) -> None:
    data = make(drift_at=0.5)
    whole, probability = data.samples(start, start + sum(sizes))
    first = 0
    for size in sizes:
        block, part = data.samples(start + first, start + first + size)
        assert_same(block, whole.take(np.arange(first, first + size)))
        np.testing.assert_array_equal(part, probability[first : first + size])
        first += size


def test_streams_are_equal_exactly_if_their_seeds_are() -> None:
    config = SyntheticConfig(seed=7)
    (first, p), (second, q) = (Synthetic(config).samples(0, 1000) for _ in range(2))
    assert_same(first, second)
    np.testing.assert_array_equal(p, q)
    other, _ = Synthetic(SyntheticConfig(seed=8)).samples(0, 1000)
    assert (other.labels != first.labels).any()
    assert abs(np.corrcoef(other.dense[:, 1], first.dense[:, 1])[0, 1]) < 0.15


def test_batches_cover_the_samples_of_their_part_in_order(make: Make) -> None:
    data = make(num_train=1000, num_eval=300)
    train = list(data.train(256))
    assert [batch.num_samples for batch in train] == [256, 256, 256, 232]
    assert data.num_train_samples() == 1000
    assert_same(train[3], data.samples(768, 1000)[0])
    for again, batch in zip(data.train(256, epoch=1), train, strict=True):
        assert_same(again, batch)
    (evaluation,) = data.evaluation(512)
    assert_same(evaluation, data.samples(1000, 1300)[0])
    assert [*make(num_train=1000, num_eval=0).evaluation(512)] == []


@pytest.mark.parametrize("samples", [5, 500, 777])
def test_several_threads_make_the_same_batches(samples: int) -> None:
    config = SyntheticConfig(rows=100_000, num_train=samples, num_eval=100)
    one, three = Synthetic(config), Synthetic(config, threads=3)
    for expected, batch in zip(one.train(10), three.train(10), strict=True):
        assert_same_batches([batch], [expected])


def test_threads_end_with_the_consumer() -> None:
    before = threading.active_count()
    batches = Synthetic(SyntheticConfig(rows=100_000), threads=3).train(10)
    next(batches)
    assert threading.active_count() == before + 3
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_training_samples_do_not_depend_on_num_eval(make: Make) -> None:
    (few, p), (many, q) = (make(num_eval=n).samples(399_000, 400_000) for n in (100_000, 3_000_000))
    assert_same(few, many)
    np.testing.assert_array_equal(p, q)


def test_features_and_fingerprint(make: Make) -> None:
    data = make(seed=2)
    assert [feature.name for feature in data.features[:2]] == ["C1", "C2"]
    assert (len(data.features), data.num_dense) == (26, 13)
    actual = data.fingerprint()
    assert actual["source"] == "synthetic"
    assert actual["seed"] == 2
    assert (
        SyntheticConfig.model_validate({k: v for k, v in actual.items() if k not in ("source", "generator")})
        == data.config
    )


# Tables and popularity.


@pytest.mark.parametrize("rows", [100_000, 1_100_000, 100_000_000])
def test_ids_lie_in_their_tables_and_reach_far_into_them(make: Make, rows: int) -> None:
    data = make(rows=rows, drift_at=0.5, num_train=400_000)
    ids = ids_of(data.samples(150_000, 250_000)[0])
    sizes = np.array([feature.num_embeddings for feature in data.features])
    assert (ids.min(axis=1) >= 0).all()
    assert (ids.max(axis=1) < sizes).all()
    assert (ids.max(axis=1) > 0.9 * sizes - 3).all()


def test_six_features_have_a_giant_default_id_0(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(make().samples(0, 50_000)[0])
    monkeypatch.setattr(synthetic, "DEFAULT_SHARE", 0.0)
    plain = ids_of(Synthetic(SyntheticConfig()).samples(0, 50_000)[0])
    share = (ids == 0).mean(axis=1)
    giant = share > 0.29
    assert giant.sum() == 6
    assert ((plain == 0).mean(axis=1) < share)[giant].all()
    others = ids[~giant] == plain[~giant]
    assert others.all()


# Drift.


def test_drift_changes_effects_only_and_only_after_it(make: Make) -> None:
    (before, p), (after, q) = (make(drift_at=at, num_train=400_000).samples(190_000, 210_000) for at in (None, 0.5))
    np.testing.assert_array_equal(after.ids, before.ids)
    np.testing.assert_array_equal(after.dense, before.dense)
    np.testing.assert_array_equal(q[:10_000], p[:10_000])
    np.testing.assert_array_equal(after.labels[:10_000], before.labels[:10_000])
    assert (q[10_000:] != p[10_000:]).mean() > 0.99
    assert 0.3 < np.corrcoef(p[10_000:], q[10_000:])[0, 1] < 0.95


def test_evaluation_lies_behind_a_drift_at_the_end_of_training(make: Make) -> None:
    moved, still = make(drift_at=1.0, num_train=400_000), make(num_train=400_000)
    np.testing.assert_array_equal(moved.samples(399_000, 400_000)[1], still.samples(399_000, 400_000)[1])
    assert (moved.samples(400_000, 401_000)[1] != still.samples(400_000, 401_000)[1]).mean() > 0.99


# Errors.


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"rows": 99_999}, "rows"),
        ({"setting": "medium"}, "setting"),
        ({"positive_rate": 0.004}, "positive_rate"),
        ({"positive_rate": 0.5}, "positive_rate"),
        ({"drift_at": 1.1}, "drift_at"),
        ({"tables": 3}, "tables"),
        ({"sed": 1}, "sed"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        SyntheticConfig.model_validate(settings)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 1_600_001)])
def test_samples_outside_the_stream_are_refused(make: Make, start: int, stop: int) -> None:
    with pytest.raises(InputError, match=rf"expected samples within \[0, 1600000\), got \[{start}, {stop}\)"):
        make().samples(start, stop)


def test_batch_size_below_one_is_refused_at_once(make: Make) -> None:
    with pytest.raises(ConfigError, match="batch_size: expected 1 or more, got 0"):
        make().train(0)
