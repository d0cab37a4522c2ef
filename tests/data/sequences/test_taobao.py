"""Taobao's events as sequences: samples written out, against a slow twin, splits, other files, wrong input."""

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tbsm_twin import TwinSample, twin_samples

from adaptive.batch import Batch, concatenate
from adaptive.data.data_options import DataOptions
from adaptive.data.open import open_dataset
from adaptive.data.sequences import SequenceDataset
from adaptive.data.taobao import choose_candidates, draw_negatives
from adaptive.errors import ConfigError, InputError


def opened(path: Path, text: str | bytes, **options: Any) -> SequenceDataset:
    (path / "events.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    data = open_dataset(f"taobao:{path / 'events.csv'}", DataOptions(**options))
    assert isinstance(data, SequenceDataset)
    return data


def samples_of(data: SequenceDataset, batches: list[Batch]) -> list[TwinSample]:
    """Each sample in full; rows that only the twin's layout knows are not used."""
    batch = concatenate(batches)
    ids = batch.ids.reshape(3, data.steps, -1).transpose(2, 0, 1).tolist()
    assert batch.origin is not None
    rest = zip(ids, batch.labels.tolist(), batch.origin.lines.tolist(), strict=True)
    return [TwinSample(*one, int(label), line) for one, label, line in rest]


def log(user: int, items: list[int], *, start: int = 0) -> list[str]:
    """Events a second apart; item i is of category i % 3."""
    return [f"{user},{item},{item % 3},pv,{start + n}" for n, item in enumerate(items)]


# User 1 has eleven events, user 9 two: one candidate, the last event of user 1.
SMALL = "\n".join([*log(1, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]), *log(9, [30, 33])]) + "\n"


def test_a_small_log_written_out(tmp_path: Path) -> None:
    data = opened(tmp_path, SMALL, history=12)
    assert {f.name: f.num_embeddings for f in data.features[12::13]} == {"user_12": 3, "item_12": 15, "category_12": 5}
    assert data.tables == ("user",) * 13 + ("item",) * 13 + ("category",) * 13
    assert (data.num_dense, data.steps, data.num_train_samples()) == (13, 13, 2)
    (batch,) = data.train(10)
    np.testing.assert_array_equal(batch.dense, np.tile(np.arange(13, dtype=np.float32) / np.float32(13), (2, 1)))
    event, other = samples_of(data, [batch])
    # items 10 ... 20, 30, 33 are rows 0 ... 12, 13 is unknown, 14 is no item; categories 0, 1, 2 are rows
    assert event.items == [14, 14, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert event.categories == [4, 4, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert (event.users, event.label, event.line) == ([0] * 13, 1, 11)
    assert other.items[:-1] == event.items[:-1] and other.categories[:-1] == event.categories[:-1]
    assert other.items[-1] in (11, 12) and other.categories[-1] == 0 and other.label == 0
    assert batch.origin is not None and batch.origin.where(0) == f"{tmp_path / 'events.csv'}:11"
    assert list(data.evaluation(10)) == []


def test_a_log_in_any_order_of_lines_is_the_same(tmp_path: Path) -> None:
    lines = SMALL.splitlines()
    mixed = opened(tmp_path, "\n".join(lines[::-1]) + "\n", history=12)
    zipped = opened(tmp_path, gzip.compress(SMALL.encode()), history=12)
    first = next(opened(tmp_path, SMALL, history=12).train(9))
    assert first.ids.tolist() == next(mixed.train(9)).ids.tolist()
    assert mixed.fingerprint() != zipped.fingerprint()


logs = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 400), st.integers(0, 30)), min_size=25, max_size=150
)  # user, item, time


@given(events=logs, history=st.integers(1, 25), most=st.integers(1, 12), seed=st.integers(0, 3))
def test_samples_are_those_of_the_twin(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, int, int]], history: int, most: int, seed: int
) -> None:
    events = [*events, *[(1, 7, time) for time in range(11)], *[(5, item, 3) for item in range(500, 520)]]
    text = "".join(f"{user},{item},{item % 7},buy,{time}\n" for user, item, time in events)
    options = {"history": history, "candidates": most, "seed": seed}
    data = opened(tmp_path_factory.mktemp("log"), text, **options)
    assert samples_of(data, list(data.train(7))) == twin_samples(text, history=history, most=most, seed=seed)
    assert [batch.num_samples for batch in data.train(7)][:-1] == [7] * ((data.num_train_samples() - 1) // 7)


def test_how_many_candidates_users_have() -> None:
    sizes = [1, 10, 11, 20, 21, 30, 31, 40, 41, 300]
    starts = np.cumsum([0, *sizes])

    def counts(history: int, most: int) -> list[int]:
        chosen = choose_candidates(starts, history, most, 0)
        return [int(((chosen >= a) & (chosen < b)).sum()) for a, b in pairwise(starts)]

    assert counts(5, 10) == [0, 0, 1, 1, 3, 3, 6, 6, 10, 10]
    assert counts(20, 10) == [0, 0, 1, 1, 1, 3, 6, 6, 10, 10]  # as many as have 20 events before them, or the last
    assert counts(5, 2) == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2]


def test_draws_that_find_nothing() -> None:
    assert draw_negatives(3, 5, lambda k, pairs: k == 1, 0)[[1]].tolist() == [-1]
    assert (draw_negatives(300, 5, lambda k, pairs: pairs != 2, 0) == 2).all()


def test_holdout_keeps_what_comes_last(tmp_path: Path) -> None:
    text = "\n".join([*log(1, list(range(40)), start=0), *log(2, list(range(100, 140)), start=1000)]) + "\n"
    everything = samples_of(data := opened(tmp_path, text, history=3), list(data.train(100)))
    assert len(everything) == 24 and [one.users[0] for one in everything] == [0] * 12 + [1] * 12
    data = opened(tmp_path, text, history=3, holdout=0.5)
    parts = [samples_of(data, list(part)) for part in (data.train(5), data.evaluation(5))]
    assert parts == [everything[:12], everything[12:]]
    with pytest.raises(InputError, match=r"data.holdout: expected a share that .* got 0.99 of 24"):
        opened(tmp_path, text, history=3, holdout=0.99)


def test_evaluation_files_share_rows_and_have_an_unknown_row(tmp_path: Path) -> None:
    (tmp_path / "later.csv").write_text("\n".join(log(77, [10, 11, 999, *range(12, 20)])) + "\n")
    data = opened(tmp_path, SMALL, history=10, eval_data=str(tmp_path / "later.csv"))
    event, other = samples_of(data, list(data.evaluation(10)))
    assert event.users == [2] * 11  # the row for unknown users
    assert event.items == [0, 1, 13, 2, 3, 4, 5, 6, 7, 8, 9] and event.categories[:4] == [1, 2, 0, 0]
    assert other.items[-1] in (10, 11, 12)  # of the training items those that this user has no event with
    assert data.num_train_samples() == 2


def test_the_shuffle_moves_samples_and_loses_none(tmp_path: Path) -> None:
    text = "\n".join(log(1, list(range(100))) + log(2, list(range(200, 300)))) + "\n"
    plain = opened(tmp_path, text, history=4)
    mixed = opened(tmp_path, text, history=4, shuffle_buffer=1000)
    first, second = (samples_of(mixed, list(mixed.train(8, epoch=epoch))) for epoch in (0, 1))
    assert first != second and samples_of(mixed, list(mixed.train(8))) == first
    key = str
    assert sorted(first, key=key) == sorted(second, key=key) == sorted(samples_of(plain, list(plain.train(8))), key=key)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3,pv", r"events.csv:14: expected 5 columns, got 4: 1,2,3,pv"),
        ("1,x,3,pv,5", r"events.csv:14: expected a number for item, got 'x'"),
        ("1,,3,pv,5", r"events.csv:14: expected a value for item, got ''"),
        ("1,2,3,pv,noon", r"events.csv:14: expected a time for time, got 'noon'"),
        ("1,2,3,click,5", r"events.csv:14: expected one of pv, buy, cart, fav for behaviour"),
        ("1,2,3,,5", r"events.csv:14: "),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        opened(tmp_path, f"{SMALL}{line}\n")


def test_bad_lines_may_be_allowed_and_are_counted(tmp_path: Path) -> None:
    data = opened(tmp_path, f"{SMALL}1,2,3\n", history=12, max_bad_fraction=0.2)
    assert data.rejects() == {"columns": 1} and data.num_train_samples() == 2


def test_wrong_logs_and_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"events.csv: expected users with more than 10 .*, got 1 users with at most 2"
    ):
        opened(tmp_path, "\n".join(log(1, [1, 2])))
    with pytest.raises(InputError, match=r"events.csv:11: .* got user 1 with events for nearly every item"):
        opened(tmp_path, "\n".join(log(1, list(range(11)))))
    with pytest.raises(InputError, match=r"events.csv:2: expected a unix time in seconds, got 17\d{11}. Divide milli"):
        opened(tmp_path, "\n".join(log(1, [1, 2], start=1_760_000_000_000)))
    with pytest.raises(InputError, match=r"events.csv: expected rows, got no good one"):
        opened(tmp_path, "")
    with pytest.raises(ConfigError, match=r"data taobao: expected no data\.schema_path, got a value: the format"):
        opened(tmp_path, SMALL, schema_path=tmp_path / "a.toml")


def test_the_original_file(real_data: Path) -> None:
    path = real_data / "taobao-userbehavior-sample" / "UserBehavior.csv.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    data = open_dataset(f"taobao:{path}", DataOptions())
    assert isinstance(data, SequenceDataset)
    tables = dict(zip(data.tables, (feature.num_embeddings for feature in data.features), strict=True))
    assert tables == {"user": 43 + 1, "item": 3276 + 2, "category": 567 + 2}
    actual = samples_of(data, list(data.train(64)))
    assert actual == twin_samples(gzip.decompress(path.read_bytes()).decode(), history=20, most=10, seed=0)
    assert sum(sample.label for sample in actual) * 2 == len(actual) == data.num_train_samples()
