"""Deferred sums and their squares on a torch device: bits as in ordinary memory."""

from typing import Any

import numpy as np
import pytest
from support.simulated_training import SKIP, TABLES, AlwaysLooks, Case, Run, Skips, SkipsOnHost, check, same

from adaptive.config import TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.embeddings.tiers.cpu_device import CpuRows
from adaptive.optim import Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from adaptive.policy import Policy


@pytest.mark.parametrize(
    "optimizer", [Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), Adam(lr=0.01)], ids=lambda o: type(o).__name__
)
@pytest.mark.parametrize(("policy", "rows"), [(Skips, "60%"), (SkipsOnHost, "30%")])
def test_sums_and_squares_grow_as_in_ordinary_memory(
    policy: type[Policy], rows: str, optimizer: RowOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose sum is applied on the host, and rows read while their gradients are deferred."""
    applied = {-1: 0, 0: 0}  # sums of the torch device: to rows on the host, to copies
    apply_sums = CpuRows.apply_sums

    def count(self: CpuRows, flip: int, locations: Any, *more: Any, **settings: Any) -> Any:
        applied[flip] += len(locations) if len(self.weights) == 0 else 0
        return apply_sums(self, flip, locations, *more, **settings)

    monkeypatch.setattr(CpuRows, "apply_sums", count)

    def trained(device: str) -> tuple[Any, dict[int, Any]]:
        tier = TierConfig(device=device, device_rows=rows, poison=True)
        embeddings = TieredEmbeddingBag(TABLES, tier, policy=policy, optimizer=optimizer, skip=SKIP)
        run = Run(embeddings, 2, np.random.default_rng(0), {}, False)
        if device == "cpu":
            run.random = AlwaysLooks()  # type: ignore[assignment]
        return run.train(), run.readings

    (result, readings), (expected, all_readings) = trained("cpu-torch"), trained("cpu")
    assert (applied[-1] > 0) == (policy is SkipsOnHost) and applied[0] > 0
    assert [name for name in expected if not same(result[name], expected[name])] == []
    assert readings
    for number, numbers in readings.items():
        assert all(map(np.array_equal, numbers, all_readings[number])), f"rows read after batch {number}"


@pytest.mark.parametrize("case", [Case(Skips, 2, "direct", "70%"), Case(SkipsOnHost, 2, "staged", "50%")])
@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_streams_gives_the_same_squares(case: Case, seed: int) -> None:
    """With Adagrad: the depth is even."""
    check(case, seed)
