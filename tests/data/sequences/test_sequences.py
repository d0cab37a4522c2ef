"""The built-in stream of sequences: layout, determinism, and that its probabilities are what its labels follow."""

from typing import Any

import numpy as np
import pytest

from adaptive.batch import concatenate
from adaptive.data.data_options import DataOptions, SequencesConfig
from adaptive.data.open import open_dataset
from adaptive.data.sequences import BIAS, GAIN, Stream
from adaptive.errors import ConfigError
from adaptive.training.quality import exact_auc

SMALL: dict[str, Any] = {"users": 50, "items": 330, "categories": 20, "num_train": 1000, "num_eval": 300}


def test_layout() -> None:
    data = open_dataset("sequences", DataOptions(sequences=SMALL, history=4))
    assert (data.steps, data.num_dense, data.num_train_samples()) == (5, 5, 1000)
    assert {f.name: f.num_embeddings for f in data.features[4::5]} == {"user_4": 50, "item_4": 330, "category_4": 20}
    batch = next(data.train(64))
    users, items, categories = batch.ids.reshape(3, 5, 64)
    assert (users == users[0]).all() and (items % 20 == categories).all() and items.max() < 330
    np.testing.assert_array_equal(batch.dense[7], np.arange(5, dtype=np.float32) / np.float32(5))


def test_samples_do_not_depend_on_how_they_are_read() -> None:
    data = open_dataset("sequences", DataOptions(sequences=SMALL))
    whole = concatenate([*data.train(1000), *data.evaluation(1000)])
    pieces = concatenate([*data.train(7), *data.evaluation(64)])
    for name in ("ids", "dense", "labels"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))
    other = open_dataset("sequences", DataOptions(sequences={**SMALL, "seed": 1}))
    assert (next(other.train(100)).ids != next(data.train(100)).ids).any()
    assert data.fingerprint() != other.fingerprint()


def test_probabilities_follow_from_history_and_candidate_alone() -> None:
    stream = Stream(SequencesConfig(**{**SMALL, "num_train": 40_000}), history=10)
    batch, probability = stream.draw(np.arange(40_000))
    categories = batch.ids.reshape(3, 11, -1)[2]
    share = (categories[:-1] == categories[-1]).mean(axis=0)
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-(BIAS + GAIN * share))), rtol=1e-12)
    assert abs(batch.labels.mean() - probability.mean()) < 0.01
    assert exact_auc(probability.astype(np.float32), batch.labels) > 0.8  # of the best prediction
    assert exact_auc(-categories[-1].astype(np.float32), batch.labels) < 0.7  # the candidate alone says less


def test_wrong_settings_of_the_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least as many items as categories = 20, got items = 5"):
        SequencesConfig(items=5, categories=20)
    with pytest.raises(ConfigError, match="history"):
        DataOptions(history=0)
    assert all(field.description for field in SequencesConfig.model_fields.values())
