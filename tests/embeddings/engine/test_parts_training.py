"""Training in parts: one step a batch, the mean over the batch, and what rounds differently."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract import InParts
from numpy.typing import NDArray
from support.toy import ToyData, toy_config
from support.toy_runs import Hooked, assert_equal, data_fixture, everything, in_model, parts_of  # noqa: F401 (fixture)
from torch import Tensor, nn

from adaptive.batch import Batch, one_hot_batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import NonFiniteError
from adaptive.optim import SGD
from adaptive.policies.lru import LRU
from adaptive.policy import Policy
from adaptive.training.components import build
from adaptive.training.runs import train_run
from adaptive.training.telemetry.jsonl import read_metrics
from adaptive.training.telemetry.record import IntervalRecord
from adaptive.training.trainer import Trainer

# --- where sums are exact ----------------------------------------------------------------------------------------


class WholeNumbers(nn.Module):
    """Linear: gradients of its weights are sums of whole numbers over a power of two, exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.linspace(0.1, 0.7, 4))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        return dense @ self.weights + pooled.sum((1, 2))


def exactly_trained(policy: type[Policy], depth: int) -> list[NDArray[np.float32]]:
    def batches() -> Iterator[Batch]:
        for number in range(30):
            random = np.random.default_rng(number)
            ids = random.zipf(1.4, (16, 2)) % 100
            labels = random.integers(-2, 3, 16).astype(np.float32)
            yield one_hot_batch(random.integers(-4, 5, (16, 4)).astype(np.float32), ids, labels)

    table = TableConfig(name="t", num_embeddings=100, embedding_dim=4, features=("a", "b"))
    tier = TierConfig(device_rows="80%", device="cpu", when_full="reduce_lookahead", poison=True)
    model = WholeNumbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    embeddings = TieredEmbeddingBag([table], tier, policy=policy, optimizer=SGD(lr=0.3))
    for planned in embeddings.look_ahead(batches(), depth=depth):
        optimizer.zero_grad()
        for part in planned.parts():
            loss = (model(part.dense, embeddings.stack(part)) * part.labels).sum() / planned.num_samples
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        embeddings.step()
    return [embeddings.rows.table_weights("t"), model.weights.detach().numpy()]


@pytest.mark.parametrize("depth", [0, 3])
def test_a_batch_in_parts_is_the_same_step_if_sums_are_exact(depth: int) -> None:
    assert all(map(np.array_equal, exactly_trained(InParts, depth), exactly_trained(LRU, depth)))


# --- a real model ------------------------------------------------------------------------------------------------


def trained(policy: str, **changed: Any) -> dict[str, NDArray[Any]]:
    parts, toy = parts_of(policy=policy, **changed)
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=2)
        return everything(parts)


def test_a_dlrm_in_parts_is_the_same_to_rounding() -> None:
    """20 steps of Adagrad; the largest difference found was 2e-7, in a row that few samples share."""
    found, expected = trained("contract:InParts"), trained("lru")
    differences = {name: float(np.abs(found[name] - values).max()) for name, values in expected.items()}
    assert max(differences.values()) < 2e-6, differences
    assert any(differences.values()), "sums of sums should round differently somewhere"


def test_hotlines_micro_batches_are_its_mini_batch_to_rounding() -> None:
    options = {"learn": 3, "capacity": 0.3}
    apart = trained("hotline", policy_options=options)
    together = trained("hotline", policy_options=options | {"micro_batches": False})
    for name, values in together.items():
        np.testing.assert_allclose(apart[name], values, rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_batch_runs_in_one_pass_if_no_part_can_start_early(depth: int) -> None:
    """A GPU's tier (here on the CPU): to the bit what is trained without parts, at any depth."""
    found, toy = [], ToyData()
    for policy in ("contract:InParts", "lru"):
        parts = build(toy_config(policy=policy, tier={"device": "cpu-torch", "device_rows": "60%"}), toy)
        with parts.embeddings as embeddings:
            Trainer(embeddings, parts.model, parts.optimizer).train(toy.train(32), depth=depth)
            assert embeddings.statistics.take().batches_in_parts == 0
            found.append(everything(parts))
    assert_equal(*found)


def test_what_is_recorded_is_of_the_whole_batch(tmp_path: Path, data: Any) -> None:
    data()
    summaries = {
        policy: train_run(toy_config(policy=policy, out=str(tmp_path / str(place)), depth=2))
        for place, policy in enumerate(["contract:InParts", "lru"])
    }
    found, expected = summaries.values()
    assert (found["steps"], found["samples"]) == (expected["steps"], expected["samples"])
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-4)
    in_parts, whole = (
        [record for record in read_metrics(tmp_path / place / "metrics.jsonl") if isinstance(record, IntervalRecord)]
        for place in "01"
    )
    for mine, other in zip(in_parts, whole, strict=True):
        assert mine.loss == pytest.approx(other.loss, abs=1e-5)
        assert mine.auc == pytest.approx(other.auc, abs=1e-4)
        assert mine.policy["in_parts_share"] == 1 and 0 <= mine.policy["waited_share"] <= 1
        assert other.policy == {}


def test_a_part_that_is_not_finite_updates_nothing(data: Any) -> None:
    """Sample 150 is the 22nd of batch 4, so in its second part: the first one's gradients are there already."""
    parts, toy = parts_of(policy="contract:InParts")
    spoilt = data(spoil={150: float("nan")})
    with parts.embeddings:
        trainer = Trainer(parts.embeddings, parts.model, parts.optimizer)
        with pytest.raises(NonFiniteError, match=r"step 5: the loss is nan; .* b\.tsv:51.*nothing was updated"):
            trainer.train(spoilt.train(32), depth=2)
        found = everything(parts)
    parts, _ = parts_of(policy="contract:InParts")
    with parts.embeddings:
        Trainer(parts.embeddings, parts.model, parts.optimizer).train(
            (batch for number, batch in enumerate(toy.train(32)) if number < 4), depth=2
        )
        assert_equal(found, everything(parts))


# --- numbers of a policy -----------------------------------------------------------------------------------------
