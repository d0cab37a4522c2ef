"""Rules that drop inputs by the inputs alone: the same inputs, batches and bits on any number of ranks."""

import signal
from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np
import pytest
from support.builders import batch_of
from support.thread_ranks import on_ranks
from support.toy import ToyData, toy_config

from adaptive import Batch
from adaptive.data.dataset import by_table
from adaptive.embeddings.ranks import Ranks
from adaptive.errors import ConfigError
from adaptive.training.components import build
from adaptive.training.runs.distributed import AgreedStop
from adaptive.training.runs.loop import DataPosition, Loop, Source
from adaptive.training.trainer import Trainer

RULES = ["predicted+factor=2+warmup=4", "adaptive.policies.random_drop:Drop+share=0.3"]
SIZE = 32


def train(ranks: Ranks, rule: str, *, depth: int = 2, left: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train the first or, if something is left of it, the second half of the data; what is left at the end."""
    data = by_table(ToyData(num_train=24 * SIZE))
    made = build(toy_config(batch_size=SIZE, policy="lfu", skip={"rule": rule}), data, (), ranks)
    with made.embeddings as embeddings:
        active = embeddings.policy.rule
        assert active is not None
        if left is not None:
            embeddings.rows.load_state_arrays(left["rows"])
            made.model.load_state_dict(left["model"])
            made.optimizer.load_state_dict(deepcopy(left["optimizer"]))  # which ranks, threads here, would share
            active.load_state_dict(left["rule"])
        batches: Iterator[Batch] = data.train(SIZE)
        half = islice(batches, 12) if left is None else islice(batches, 12, None)
        trainer = Trainer(embeddings, made.model, made.optimizer)
        trainer.train(half, depth=depth)
        assert 0 < active.dropped_inputs < active.seen_inputs
        return {
            "rows": embeddings.rows.state_arrays(),
            "tables": {table.name: embeddings.rows.table_weights(table.name) for table in made.tables},
            "model": deepcopy(made.model.state_dict()),
            "optimizer": deepcopy(made.optimizer.state_dict()),
            "rule": active.state_dict(),
            "quality": {**vars(trainer.recorder.log_loss), "counts": trainer.recorder.auc.counts},
        }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in ("tables", "model", "rule", "quality"):
        for name, values in one[part].items():
            np.testing.assert_array_equal(np.asarray(values), np.asarray(other[part][name]), err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_one_two_and_four_ranks_drop_alike(rule: str) -> None:
    """Also if another number of ranks continues, from what was left in the middle."""
    alone = on_ranks(1, lambda ranks: train(ranks, rule), blocks=4, gradients="sum")[0]
    whole = on_ranks(1, lambda ranks: train(ranks, rule, left=alone), blocks=4, gradients="sum")[0]
    for size, depth in ((2, 0), (4, 3)):
        halves = on_ranks(size, lambda ranks, depth=depth: train(ranks, rule, depth=depth), blocks=4, gradients="sum")
        for half in halves:
            assert_same(half, alone)
        left = halves[0]
        for results in on_ranks(
            size, lambda ranks, left=left: train(ranks, rule, left=left), blocks=4, gradients="sum"
        ):
            assert_same(results, whole)


def test_own_loops_do_not_pass_the_samples_of_all_ranks() -> None:
    def loop(ranks: Ranks) -> None:
        data = by_table(ToyData(num_train=SIZE))
        made = build(toy_config(batch_size=SIZE, policy="lfu", skip={"rule": RULES[0]}), data, (), ranks)
        made.embeddings.look_ahead(data.train(SIZE))

    with pytest.raises(ConfigError, match=r"look_ahead\(\): expected .* got skip rule Predicted, .*Trainer"):
        on_ranks(2, loop)


def test_ranks_that_stop_have_read_as_many_batches() -> None:
    """After a signal each reads on to where the one that was furthest ahead is."""
    sources = [Source(iter([batch_of([number]) for number in range(9)])) for _ in range(2)]
    streams = [source.stretch(8) for source in sources]
    for stream, taken in zip(streams, (2, 5), strict=True):
        assert len(list(islice(stream, taken))) == taken
    for source in sources:
        source.end_together(lambda taken: max(one.taken for one in sources))
        source.end_together(lambda taken: pytest.fail("asked twice"))
    assert [len(list(stream)) for stream in streams] == [3, 0] and [one.taken for one in sources] == [5, 5]


def stop(ranks: Ranks, signals: dict[int, int]) -> tuple[int, int, dict[str, Any]]:
    """Train until a signal reaches a rank in a step; batches read, samples seen by the rule, and its state."""
    data = by_table(ToyData(num_train=40 * SIZE))
    config = toy_config(batch_size=SIZE, policy="lfu", skip={"rule": RULES[0]}, depth=3)
    made = build(config, data, (), ranks)
    request = AgreedStop(ranks)

    def step(number: int) -> None:
        if signals.get(number) == ranks.rank:
            request.signal = signal.SIGTERM

    with made.embeddings as embeddings:
        trainer = Trainer(embeddings, made.model, made.optimizer, set_rates=step)
        loop = Loop(config, data, trainer, DataPosition())
        loop.run(request, save=lambda: None, evaluate=lambda: None)
        rule = embeddings.policy.rule
        assert rule is not None and bool(request)
        return loop.place.taken, rule.seen_inputs, rule.state_dict()


def test_a_signal_to_one_rank_leaves_equal_states() -> None:
    first, *others = on_ranks(3, lambda ranks: stop(ranks, {9: 1}), blocks=4, gradients="sum")
    assert 9 < first[0] < 40 and first[1] == first[0] * SIZE
    for other in others:
        assert other[:2] == first[:2]
        assert all(np.array_equal(other[2][name], values) for name, values in first[2].items())
