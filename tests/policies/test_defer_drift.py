"""The skip rule `defer` after a drift: rows that move again wait for nothing, within three of their own intervals."""

import numpy as np
import pytest
import torch
from builders import batch_of
from contract import row_stats
from helpers import planner_of

from adaptive import SGD, RowwiseAdagrad, SkipConfig, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.policies.lfu import LFU
from adaptive.policies.rules.defer import Defer

NUM_ROWS, LOOK_UPS = 20, 64  # look-ups of a row between two snapshots, in as many batches


@pytest.mark.parametrize("by", ["least", "movement"])
@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), RowwiseAdagrad(lr=0.05)], ids=["sgd", "rowwise_adagrad"])
def test_a_drift_frees_the_rows_that_it_touches_and_no_others(by: str, optimizer: SGD | RowwiseAdagrad) -> None:
    """Every row comes in every batch and walks to and fro; then every other row is drawn one way."""
    table = TableConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=4, init_bound=1.0)
    batch = batch_of([[row] for row in range(NUM_ROWS)])
    rule = f"defer+by={by}+warmup=0"
    skip = SkipConfig(rule=rule, interval=8, hot_rows="100%", min_accesses=LOOK_UPS, feedback_delay=4)
    tier, drift_at, random = TierConfig(device_rows="100%", device="cpu"), 16 * LOOK_UPS, np.random.default_rng(0)
    scale = 0.001 if isinstance(optimizer, SGD) else 1.0
    waits = []
    with TieredEmbeddingBag([table], tier, policy=LFU(), optimizer=optimizer, skip=skip) as embeddings:
        skipper = planner_of(embeddings).skipper
        assert skipper is not None
        for planned in embeddings.look_ahead([batch] * (drift_at + 3 * LOOK_UPS), depth=2):
            gradients = random.standard_normal((NUM_ROWS, 4)).astype(np.float32)
            if planned.number >= drift_at:
                gradients[::2] = 10
            (embeddings(planned)["t"] * torch.from_numpy(scale * gradients)).sum().backward()
            embeddings.step()
            hot = skipper.hot
            waits.append(hot.waits[np.argsort(hot.rows[: hot.num_entries])])
    before = np.array(waits[drift_at - 4 * LOOK_UPS : drift_at])
    assert (before > 0).mean() > 0.9
    after = np.array(waits[drift_at:])
    assert (after[:, ::2] == 0).any(axis=0).all(), "freed within three intervals"
    assert (after[:, 1::2] > 0).mean() > 0.9


def test_a_row_moves_again_if_it_moves_three_times_as_much_as_usual_and_until_that_is_usual() -> None:
    """Over 16 visits: 0.4 usually, so 0.1 a visit. An old measurement says what it said when it was new."""
    rule = Defer(by="movement", bound=1.0, at_most=8)
    found = []
    for drift in (0.4, 0.4, 0.8, 1.5, 1.5, 2.0, 2.0, 3.0, 0.4):
        found.append(int(rule.visits(row_stats(1, drift=[drift], drift_visits=[16]))[0]))
    # usual 0.1, -, 0.125; 0.375 is not more than three times that; 0.188; -; 0.266; -; 0.387; falls
    assert found == [8, 8, 8, 7, 7, 4, 4, 1, 8]
    assert int(rule.visits(row_stats(1, drift=[6.0], drift_visits=[16]))[0]) == 1
    assert rule.state_dict()["moving"].tolist() == [True]
    assert int(rule.visits(row_stats(1, drift=[6.0], drift_visits=[16]))[0]) == 1, "nothing new"
    assert int(rule.visits(row_stats(1, drift=[0.5], drift_visits=[16]))[0]) == 8
    assert rule.state_dict()["moving"].tolist() == [False]


def test_what_is_usual_is_restored() -> None:
    rule, restored = Defer(by="movement", bound=1.0), Defer(by="movement", bound=1.0)
    rule.visits(row_stats(3, drift=[0.4, 0.8, np.nan], drift_visits=[16] * 3))
    restored.load_state_dict(rule.state_dict())
    again = row_stats(3, drift=[1.3, 0.9, 0.3], drift_visits=[16] * 3)
    assert rule.visits(again).tolist() == restored.visits(again).tolist() == [1, 16, 16]
    assert Defer(by="visits").state_dict() == {}
