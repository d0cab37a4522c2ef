"""Ranks on simulated devices, which do work late and in any order that events allow: nothing crosses before it is
there, and no buffer is written while it is still sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
from support.helpers import LFU, LFUOnHost, random_batches
from support.rank_cases import TABLES, assert_same_rows
from support.simulated_streams import Simulation
from support.simulated_training import build_module, patched, small_buffers
from support.thread_ranks import on_ranks
from test_answers import POLICIES, WATCHED

from adaptive.config import TierConfig
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import Adagrad

BATCHES = tuple(random_batches(TABLES, 16, samples=5, seed=4))
NIGHTLY = pytest.mark.nightly


def trained(ranks: Ranks, device: str, policy: Any) -> dict[str, Any]:
    """A gradient is a multiple of the vector and a number of its block's first sample. It is worked out on the device,
    so that the host runs ahead."""
    tier = TierConfig(device=device, device_rows="60%", poison=True)  # type: ignore[arg-type]
    skip = None if policy in (LFU, LFUOnHost) else WATCHED
    embeddings = TieredEmbeddingBag(TABLES, tier, policy=policy(), optimizer=Adagrad(lr=0.1), skip=skip, ranks=ranks)
    compute = embeddings.runtime.pipeline.mover.compute
    for planned in embeddings.look_ahead([ranks.own_part(batch) for batch in BATCHES], depth=2):
        embeddings.optimizer._pending[planned.number] = planned
        slope = 0.25 + planned.number / 64
        for part, work in ((block, work) for block in planned.parts() for work in block.works):
            vectors = work.pool()
            gradients = compute.empty(tuple(vectors.shape))

            def differentiate(
                out: Any = gradients, like: Any = vectors, slope: float = slope, part: Any = part
            ) -> None:
                out.copy_(like * slope + (0.125 * part.dense[0, 0] + part.labels[0]))

            compute.run(differentiate)
            work.add_gradients(gradients)
        embeddings.step()
    return embeddings.rows.state_arrays()


@contextmanager
def simulated(seed: int) -> Iterator[None]:
    """A separate device for each rank."""
    seeds = count(100 * seed)
    with patched(build_module, streams_of=lambda device: Simulation(next(seeds)).streams):
        yield


@pytest.mark.parametrize(
    ("policy", "seed"),
    [
        pytest.param(LFUOnHost, 0, id="on host"),
        pytest.param(POLICIES["defer"], 0, id="kept"),
        *(pytest.param(LFU, seed, id=f"staged-{seed}", marks=pytest.mark.nightly) for seed in range(3)),
        *(pytest.param(POLICIES["skip"], seed, id=f"left out-{seed}", marks=pytest.mark.nightly) for seed in range(3)),
    ],
)
def test_bits_are_those_of_ordinary_memory(seed: int, policy: Any) -> None:
    expected = on_ranks(1, lambda ranks: trained(ranks, "cpu", policy), blocks=3, gradients="sum")[0]
    with simulated(seed), small_buffers(ample=seed % 2 == 0):
        for results in on_ranks(2, lambda ranks: trained(ranks, "cpu-torch", policy), blocks=3, gradients="sum"):
            assert_same_rows(expected, results)
            assert all(np.isfinite(results[f"rows{group}.weights"]).all() for group in range(2))
