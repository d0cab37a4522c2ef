"""Whole evaluation batches in turn: the numbers of a process alone, on any number of ranks."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.helpers import LFU
from support.thread_ranks import on_ranks, outcomes

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import InputError, NonFiniteError
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from adaptive.training.evaluation import Evaluation, evaluate

TABLES = [TableConfig(name=name, num_embeddings=300, embedding_dim=4) for name in ("a", "b")]
SIZES = (40, 40, 40, 40, 7)  # of the batches: on 2, 3 and 4 ranks the last round is incomplete


def batches(spoilt: int = -1, value: float = np.nan) -> Iterator[Batch]:
    """`spoilt`: the batch whose last sample has this label."""
    rng = np.random.default_rng(1)
    for number, size in enumerate(SIZES):
        labels = (rng.random(size) < 0.4).astype(np.float32)
        labels[-1] = value if number == spoilt else labels[-1]
        ids = {name: rng.integers(0, 300, size) for name in ("a", "b")}
        yield Batch.of(**ids, dense=rng.standard_normal((size, 3)).astype(np.float32), labels=labels)


def model_and_rows(ranks: Ranks | None) -> tuple[TieredEmbeddingBag, torch.nn.Module]:
    torch.manual_seed(0)
    config = DLRMConfig(embedding_dim=4, bottom_mlp=(8, 4), top_mlp=(8, 1))
    embeddings = TieredEmbeddingBag(TABLES, TierConfig(device_rows="20%"), policy=LFU, seed=3, ranks=ranks)
    return embeddings, DLRM(config, num_dense=3, num_features=2)


def scored(ranks: Ranks | None) -> Evaluation:
    embeddings, model = model_and_rows(ranks)
    return evaluate(embeddings, model, batches(), by=0, in_turn=ranks is not None)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_rank_has_the_numbers_of_a_process_alone(size: int) -> None:
    alone = scored(None)
    for results in on_ranks(size, scored):
        assert results == alone and alone.samples == sum(SIZES)


def test_a_sample_without_a_label_ends_all_ranks_alike() -> None:
    def work(ranks: Ranks) -> None:
        evaluate(*model_and_rows(ranks), batches(spoilt=3), in_turn=True)

    for one in outcomes(2, work):
        assert isinstance(one, InputError) and "some without a label (evaluation batch 3)" in str(one)


def test_a_logit_that_is_not_finite_is_named_on_all_ranks() -> None:
    def work(ranks: Ranks) -> None:
        embeddings, model = model_and_rows(ranks)
        poisoned = list(batches())
        poisoned[3].dense[5] = np.inf
        evaluate(embeddings, model, poisoned, in_turn=True)

    for one in outcomes(3, work):
        assert isinstance(one, NonFiniteError) and "evaluation batch 3" in str(one)
