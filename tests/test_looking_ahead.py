"""The iterator of `look_ahead`: passes and lengths, for loops of frameworks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.helpers import bags, step_all, sum_of

from adaptive import SGD, Batch, Planned, Recording, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError

TABLE = TableConfig(name="word", num_embeddings=9, embedding_dim=2)
BATCHES = [bags([1, 2], [3]), bags([3], [4, 4]), bags([0], [2])]


def one_table() -> TieredEmbeddingBag:
    return TieredEmbeddingBag([TABLE], TierConfig(device_rows="100%", poison=True), optimizer=SGD(lr=1.0))


def train(embeddings: TieredEmbeddingBag, planned: Planned) -> None:
    sum_of(embeddings(planned)).backward()
    embeddings.step()


def after(passes: int) -> np.ndarray:
    """The table after so many passes, each by a separate look-ahead."""
    embeddings = one_table()
    for _ in range(passes):
        step_all(embeddings, BATCHES)
    return embeddings.rows.table_weights("word")


@pytest.mark.parametrize("depth", [0, 2])
def test_one_look_ahead_for_several_passes(depth: int) -> None:
    """As a `DataLoader` that is made once."""
    embeddings = one_table()
    coming = embeddings.look_ahead(BATCHES, depth=depth)
    numbers = []
    for _ in range(3):
        for planned in coming:
            train(embeddings, planned)
            numbers.append(planned.number)
    assert numbers == list(range(9))
    assert np.array_equal(embeddings.rows.table_weights("word"), after(3))


def test_who_knows_the_length_need_not_ask_for_the_end() -> None:
    """A framework that asks for as many batches as there are, and then for the next pass."""
    embeddings = one_table()
    coming = embeddings.look_ahead(BATCHES, depth=2)
    for _ in range(2):
        iterator = iter(coming)
        for _ in range(len(coming)):
            train(embeddings, next(iterator))
    assert np.array_equal(embeddings.rows.table_weights("word"), after(2))


def test_a_pass_that_is_under_way_goes_on() -> None:
    embeddings = one_table()
    coming = embeddings.look_ahead(BATCHES)
    train(embeddings, next(coming))
    for planned in coming:
        train(embeddings, planned)
    assert np.array_equal(embeddings.rows.table_weights("word"), after(1))


def test_a_pass_that_was_closed_begins_anew() -> None:
    embeddings = one_table()
    coming = embeddings.look_ahead(BATCHES, depth=0)
    train(embeddings, next(coming))
    coming.close()
    assert next(coming, None) is None
    assert [planned.number for planned in coming if train(embeddings, planned) is None] == [1, 2, 3]


def test_after_an_error_the_next_pass_begins_at_the_start() -> None:
    embeddings = one_table()
    coming = embeddings.look_ahead([BATCHES[0], bags([9])], depth=0)
    for _ in range(2):
        train(embeddings, next(iter(coming)))
        with pytest.raises(InputError, match="9"):
            next(coming)


def test_batches_without_a_number_have_one_pass() -> None:
    def some() -> Iterator[Batch]:
        yield from BATCHES

    embeddings = one_table()
    coming = embeddings.look_ahead(some())
    with pytest.raises(TypeError, match="has no len"):
        len(coming)
    assert coming
    for planned in coming:
        train(embeddings, planned)
    assert list(coming) == []


@pytest.mark.parametrize("depth", [-1, 1.5, float("nan"), "4", None, True])
def test_a_depth_that_is_none_is_told_where_it_was_given(depth: Any) -> None:
    with pytest.raises(ConfigError, match=rf"depth: expected an integer of at least 0, got {depth!r}"):
        one_table().look_ahead([], depth=depth)


def test_a_recording_has_passes_and_a_number_too(tmp_path: Path) -> None:
    embeddings = one_table()
    with Recording(embeddings, tmp_path / "run") as record:
        coming = record.batches(embeddings.look_ahead(BATCHES))
        assert len(coming) == 3
        for _ in range(2):
            for planned in coming:
                vectors = embeddings(planned)
                sum_of(vectors).backward()
                embeddings.step()
                record.step(planned, 1.0, vectors["word"][:, 0].detach())
    assert json.loads((tmp_path / "run/run.json").read_text())["summary"]["steps"] == 6
