"""User-item lists: pairs, negatives, hold-out, ids out of range."""

from pathlib import Path

import numpy as np
import pytest
from support.builders import csv_data

from adaptive.batch import concatenate
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.errors import ConfigError, InputError

SCHEMAS = Path(__file__).parents[3] / "adaptive" / "data" / "schemas"


def opened(tmp_path, text, *, num_users=10, num_items=50, num_negatives=2, **options):
    sizes = f"num_users = {num_users}\nnum_items = {num_items}\nnum_negatives = {num_negatives}\n"
    return csv_data(tmp_path, f'format = "user_items"\n{sizes}', text, **options)


def samples(batches):
    batch = concatenate(list(batches))
    users, items = batch.ids.reshape(2, -1)
    return list(zip(users.tolist(), items.tolist(), batch.labels.astype(int).tolist(), strict=True)), batch


LISTS = "0 1 2 3\n4 7\n9 \n5 6 6\n"
PAIRS = [(0, 1), (0, 2), (0, 3), (4, 7), (5, 6), (5, 6)]


def test_each_pair_is_followed_by_its_negatives(tmp_path):
    data = opened(tmp_path, LISTS)
    assert [(f.name, f.num_embeddings) for f in data.features] == [("user", 10), ("item", 50)]
    actual, batch = samples(data.train(4))
    assert [sample[:2] for sample in actual[::3]] == PAIRS
    assert [sample[2] for sample in actual] == [1, 0, 0] * 6
    for n, (user, item, is_positive) in enumerate(actual):
        assert user == PAIRS[n // 3][0]
        assert is_positive or (user, item) not in PAIRS
    assert batch.origin.lines.tolist() == [1] * 9 + [2] * 3 + [4] * 6
    assert data.num_train_samples() == 18
    assert batch.dense.shape == (18, 0)
    assert not data.rejects()


def test_batches_have_the_size_asked_for(tmp_path):
    data = opened(tmp_path, LISTS)
    assert [batch.num_samples for batch in data.train(4)] == [4, 4, 4, 4, 2]
    assert samples(data.train(4))[0] == samples(data.train(1000))[0]


def test_negatives_depend_on_seed_epoch_and_pair_only(tmp_path):
    once = samples(opened(tmp_path, LISTS).train(5))[0]
    assert samples(opened(tmp_path, LISTS).train(5))[0] == once
    assert samples(opened(tmp_path, LISTS).train(5, epoch=1))[0] != once
    assert samples(opened(tmp_path, LISTS, seed=1).train(5))[0] != once
    turned = samples(opened(tmp_path, "5 6 6\n4 7\n0 3 2 1\n").train(5))[0]
    assert sorted(turned) == sorted(once)


def test_negatives_are_drawn_evenly(tmp_path):
    text = "".join(f"{user} 0\n" for user in range(1000))
    actual = samples(opened(tmp_path, text, num_users=1000, num_items=11, num_negatives=4).train(512))[0]
    counts = np.bincount([item for _, item, is_positive in actual if not is_positive])
    assert counts[0] == 0
    assert counts[1:].min() > 320  # 400 expected, standard deviation 19
    assert counts[1:].max() < 480


def test_a_user_with_all_items_gets_negatives_all_the_same(tmp_path):
    actual = samples(opened(tmp_path, "0 0 1\n", num_items=2).train(10))[0]
    assert [is_positive for *_, is_positive in actual] == [1, 0, 0, 1, 0, 0]


def test_holdout_is_a_random_share_of_all_users_pairs(tmp_path):
    text = "".join(f"{user} " + " ".join(map(str, range(40))) + "\n" for user in range(50))
    data = opened(tmp_path, text, num_users=50, holdout=0.25)
    train = {sample[:2] for sample in samples(data.train(100))[0] if sample[2]}
    evaluation = {sample[:2] for sample in samples(data.evaluation(100))[0] if sample[2]}
    assert len(train) + len(evaluation) == 2000
    assert not train & evaluation
    assert 420 < len(evaluation) < 580  # 500 expected, standard deviation 19
    assert {user for user, _ in evaluation} == set(range(50))
    assert data.num_train_samples() == 3 * len(train)
    assert samples(data.evaluation(7))[0] == samples(data.evaluation(100))[0]


def test_evaluation_by_file(tmp_path):
    (tmp_path / "test.txt").write_text("1 2\n")
    data = opened(tmp_path, LISTS, eval_data=str(tmp_path / "test.txt"))
    actual, batch = samples(data.evaluation(10))
    assert actual[0] == (1, 2, 1)
    assert len(actual) == 3
    assert batch.origin.where(0) == f"{tmp_path / 'test.txt'}:1"


def test_shuffled_pairs(tmp_path):
    text = "".join(f"{user} {user} {user + 10}\n" for user in range(10))
    plain = samples(opened(tmp_path, text).train(8))[0]
    data = opened(tmp_path, text, shuffle_buffer=60)
    first, second = samples(data.train(8))[0], samples(data.train(8, epoch=1))[0]
    assert sorted(first) == sorted(plain) != first
    assert first == samples(data.train(8))[0] != second
    assert [batch.num_samples for batch in data.train(8)] == [8] * 7 + [4]


@pytest.mark.parametrize(
    ("line", "feature", "bad"), [("0 50", "item", 50), ("10 1", "user", 10), ("0 1 -1", "item", -1)]
)
def test_ids_out_of_range(tmp_path, line, feature, bad):
    data = opened(tmp_path, f"1 1\n{line}\n")
    with pytest.raises(InputError, match=rf"data\.csv:2: expected an id from .* for {feature}, got {bad}"):
        list(data.train(10))
    data = opened(tmp_path, f"1 1\n{line}\n", out_of_range="oov")
    assert [f.num_embeddings for f in data.features] == [11, 51]
    actual = samples(data.train(10))[0]
    assert ({"user": 10, "item": 50}[feature]) in {sample[feature == "item"] for sample in actual if sample[2]}
    assert all(item < 50 for _, item, is_positive in actual if not is_positive)


def test_bad_lines_and_no_pairs(tmp_path):
    data = opened(tmp_path, "0 1\nx 1\n1 2\n", max_bad_fraction=0.5)
    assert len(samples(data.train(10))[0]) == 6
    assert data.rejects() == {"number": 1}
    with pytest.raises(InputError, match="expected pairs, got none"):
        list(opened(tmp_path, "").train(1))
    with pytest.raises(ConfigError, match=r"expected no data\.time_split"):
        opened(tmp_path, LISTS, time_split=1)


def test_gowalla(real_data):
    folder = real_data / "gowalla"
    options = DataOptions(schema_path=SCHEMAS / "gowalla.toml", eval_data=str(folder / "test.txt.gz"))
    data = open_dataset(f"csv:{folder / 'derived' / 'train_from_s_adj_mat.txt.gz'}", options)
    pairs = sum(int(batch.labels.sum()) for batch in data.evaluation(1 << 16))
    assert pairs == 217_242
    assert data.num_train_samples() == 5 * 810_128
    first = next(iter(data.train(4096)))
    assert first.labels.reshape(-1)[: 5 * 819].reshape(-1, 5)[:, 0].all()
    assert first.labels.sum() == 820
