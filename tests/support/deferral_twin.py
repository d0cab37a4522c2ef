"""Training with deferred updates in tables, and its slow twin: one array, row by row."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import reference
import torch
from reference import Floats

from adaptive import (
    SGD,
    Adagrad,
    Adam,
    Batch,
    Policy,
    RowOptimizer,
    RowwiseAdagrad,
    SkipConfig,
    TableConfig,
    TierConfig,
    TieredEmbeddingBag,
)
from adaptive.embeddings.planning.skipping import DROP_EVERY, FEW, PATIENCE
from support.skip_rules import Waits

MOST, WARMUP = 5, 3
OPTIMIZERS = [SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)]


class Defer(Policy):
    def __init__(self):
        self.rule = Waits(most=MOST, warmup=WARMUP)

    def score(self, rows):
        return rows.last_access


class DeferOnHost(Defer):
    misses = "host"


def train(
    table: TableConfig,
    batches: Iterable[Batch],
    policy: type[Policy],
    optimizer: RowOptimizer,
    skip: SkipConfig | None,
    *,
    rows: str = "100%",
    depth: int = 0,
    device: Any = "cpu",
) -> TieredEmbeddingBag:
    tier = TierConfig(device_rows=rows, device=device, poison=True)
    embeddings = TieredEmbeddingBag([table], tier, policy=policy, optimizer=optimizer, skip=skip)
    for planned in embeddings.look_ahead(batches, depth=depth):
        error = embeddings(planned)[table.name].sum(1) - planned.labels
        error.square().mean().backward()
        embeddings.step()
    return embeddings


def train_slowly(
    table: TableConfig, batches: Sequence[Batch], optimizer: RowOptimizer, skip: SkipConfig, capacity: int
) -> tuple[Floats, Floats, list[int]]:
    """(weights, state, hot rows at the end); the sums of the end are applied.

    Hot are the first `capacity` rows that were looked up `min_accesses` times. A gradient joins the sum of its row
    until as many of them have come together as `Waits` answered when it was called last. If the set is full, rows that
    have been away for `PATIENCE` times as long as usual leave it now and then, and their sums are applied.
    """
    weights, state = reference.initial_table(table, seed=0), reference.initial_states(table, optimizer)
    accesses, last = np.zeros(len(weights), np.int64), np.full(len(weights), -1)
    answers: dict[int, int] = {}  # of hot rows
    waiting: dict[int, tuple[int, reference.Deferred]] = {}

    def settle(row: int) -> None:
        _, total = waiting.pop(row, (0, None))
        if total is not None:
            reference.update_row(optimizer, weights[row], state[row], total.gradient, total.squares)

    for number, batch in enumerate(batches):
        if number % (DROP_EVERY * skip.interval) == 0 and len(answers) == capacity:
            away = {row: number - last[row] for row in answers}
            usual = {row: max((last[row] + 1) / accesses[row], 1) for row in answers}
            gone = [row for row in answers if away[row] >= skip.interval and away[row] > PATIENCE * usual[row]]
            if len(gone) >= max(1, capacity // FEW):
                for row in gone:
                    settle(row)
                    del answers[row]
        if number >= max(WARMUP, 1) and number % skip.interval == 0:
            answers = {row: 1 + row % MOST for row in answers}
        vectors = torch.tensor(weights[batch.ids], requires_grad=True)
        (vectors.sum(1) - torch.from_numpy(batch.labels)).square().mean().backward()
        gradients = np.asarray(vectors.grad)
        for row in dict.fromkeys(batch.ids.tolist()):
            gradient, count = reference.summed_gradient(gradients[batch.ids == row]), int((batch.ids == row).sum())
            accesses[row], last[row] = accesses[row] + count, number
            if row not in answers and accesses[row] >= skip.min_accesses and len(answers) < capacity:
                answers[row] = 1
            size, total = waiting.get(row, (0, None))
            waiting[row] = size + 1, reference.put_off(optimizer, gradient, total)
            if size + 1 >= answers.get(row, 1):
                settle(row)
    assert len(waiting) > 2
    for row in list(waiting):
        settle(row)
    return weights, state, list(answers)
