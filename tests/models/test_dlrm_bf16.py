"""bfloat16 stays in the dense part: rows, their state and gradients are float32, on either kind of device tier."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.helpers import random_batches
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from adaptive.optim import Adam
from adaptive.policies.lru import LRU

Around = Callable[[], AbstractContextManager[object]]
TABLES = [TableConfig(name=f"t{n}", num_embeddings=rows, embedding_dim=8) for n, rows in enumerate((40, 20, 5))]


def outer_autocast() -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def learn(device: str, *, bf16: bool, around: Around = contextlib.nullcontext) -> dict[str, NDArray[Any]]:
    """All numbers after a few steps; `around` is what a user wraps around forward and loss."""
    tier = TierConfig(device_rows="80%", device=device, poison=True)  # type: ignore[arg-type]
    model = DLRM(
        DLRMConfig(embedding_dim=8, bottom_mlp=(16, 8), top_mlp=(16, 1), bf16=bf16), num_dense=1, num_features=3
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TieredEmbeddingBag(TABLES, tier, policy=LRU, optimizer=Adam(lr=0.01)) as embeddings:
        for planned in embeddings.look_ahead(random_batches(TABLES, 6, samples=8), depth=2):
            with around():
                pooled = embeddings.stack(planned)
                logits = model(planned.dense, pooled)
                loss = binary_cross_entropy_with_logits(logits, planned.labels)
            assert (pooled.dtype, logits.dtype) == (torch.float32, torch.float32)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [work.gradients for work in planned.works]
            assert all(one is None or one.dtype == torch.float32 for one in gradients)
            optimizer.step()
            embeddings.step()
        actual = {name: embeddings.rows.table_weights(name) for name in embeddings.table_names}
        actual["state"] = embeddings.rows.state_arrays()["rows0.state"]
    return actual | {name: value.detach().numpy() for name, value in model.named_parameters()}


@pytest.mark.parametrize(("bf16", "around"), [(True, contextlib.nullcontext), (False, outer_autocast)])
def test_rows_stay_float32_and_agree_on_both_kinds_of_tier(bf16: bool, around: Around) -> None:
    plain, torch_tier = (learn(device, bf16=bf16, around=around) for device in ("cpu", "cpu-torch"))
    for name, array in plain.items():
        assert array.dtype == np.float32 and np.isfinite(array).all(), name
        assert np.array_equal(array, torch_tier[name]), name
