"""Dense inputs, labels and extras cross with the plan, or the lookups before it; the loop gets its own tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.helpers import Scattered, ScatteredOnHost, bags, one_table, random_batches, sum_of
from torch import Tensor

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.gpu.link import ComputeLink
from adaptive.policy import Policy

TABLES = (
    TableConfig(name="a", num_embeddings=40, embedding_dim=4),
    TableConfig(name="b", num_embeddings=30, embedding_dim=4, lr_scale=0.5),  # a separate group
)
TYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16")


def make_batches(count: int = 9, samples: int = 5) -> list[Batch]:
    """Batches with extras of every type, of one and two dimensions."""
    random = np.random.default_rng(1)

    def extras() -> dict[str, NDArray[Any]]:
        arrays = {name: random.integers(0, 2, samples).astype(name) for name in TYPES}
        return arrays | {"pairs": random.normal(size=(samples, 2))}

    return [replace(batch, extras=extras()) for batch in random_batches(TABLES, count, seed=3, samples=samples)]


def opened(tables: Any = TABLES, **more: Any) -> TieredEmbeddingBag:
    tier = TierConfig.model_validate({"device": "cpu-torch", "device_rows": "70%"} | more.pop("tier", {}))
    return TieredEmbeddingBag(tables, tier, **({"policy": Scattered} | more))


@contextmanager
def sends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Shapes of the arrays that the training thread copies to pinned memory and sends."""
    shapes: list[tuple[int, ...]] = []
    send = ComputeLink.send_filled

    def noted(self: ComputeLink, dtype: Any, shape: Any, fill: Any) -> Tensor:
        shapes.append(tuple(shape))
        return send(self, dtype, shape, fill)

    with monkeypatch.context() as patch:
        patch.setattr(ComputeLink, "send_filled", noted)
        yield shapes


def assert_of(batch: Batch, dense: Tensor, labels: Tensor, extras: dict[str, Tensor]) -> None:
    assert np.array_equal(dense.numpy(), batch.dense) and np.array_equal(labels.numpy(), batch.labels)
    assert list(extras) == list(batch.extras)
    for name, array in batch.extras.items():
        assert extras[name].dtype == torch.tensor(array).dtype and np.array_equal(extras[name].numpy(), array)


@pytest.mark.parametrize("policy", [Scattered, ScatteredOnHost])
@pytest.mark.parametrize("lookups", ["host", "auto", "device"])
@pytest.mark.parametrize("depth", [0, 3])
def test_inputs_come_with_the_plan_and_belong_to_the_loop(
    depth: int, lookups: str, policy: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a list of all labels is not overwritten when later plans cross in the same memory."""
    batches, received = make_batches(), []
    lookups = lookups if policy.misses == "prefetch" else "host"  # these cross with the plan
    with opened(policy=policy, tier={"lookups": lookups}) as embeddings, sends(monkeypatch) as sent:
        for planned in embeddings.look_ahead(batches, depth=depth):
            received.append((planned.dense, planned.labels, planned.extras))
            assert planned.num_samples == 5
            sum_of(embeddings(planned)).backward()
            embeddings.step()
            assert not {(5, 1), (5,), (5, 2)} & set(sent)
            assert policy.misses == "host" or sent == []  # rows on the host, and their vectors, cross in the step
    for batch, tensors in zip(batches, received, strict=True):
        assert_of(batch, *tensors)


def test_in_ordinary_memory_a_loop_has_its_own_tensors() -> None:
    """It may write to them: a batch that comes again, in the next pass, is unchanged."""
    batch = bags([1], [2, 3]).mark_unshared()
    with one_table(5) as embeddings:
        for planned in embeddings.look_ahead([batch]):
            assert planned.batch is batch
            assert not np.shares_memory(planned.dense.numpy(), batch.dense)
            assert not np.shares_memory(planned.labels.numpy(), batch.labels)
            embeddings.discard()
