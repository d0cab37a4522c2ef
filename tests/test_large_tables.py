"""Tables beyond 32 bits: addresses, offsets, ids and evicted keys are not cut. Only touched pages take memory."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.helpers import featured, step_all

from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.optim import SGD
from adaptive.policies.hybrid import Hybrid
from adaptive.policies.lru import LRU
from adaptive.policy import Policy


@pytest.mark.parametrize("policy", [LRU, Hybrid])
@pytest.mark.parametrize(
    ("num_rows", "width"),
    [(2**27 + 100, 20), pytest.param(2**31 + 100, 1, marks=pytest.mark.nightly)],
    ids=["elements", "ids"],
)
def test_far_rows_are_trained_and_no_others(tmp_path: Path, num_rows: int, width: int, policy: type[Policy]) -> None:
    tables = [
        TableConfig(name="small", num_embeddings=5, embedding_dim=width),
        TableConfig(name="huge", num_embeddings=num_rows, embedding_dim=width, init_bound=1.0),
    ]
    tier = TierConfig(device_rows="0" if policy is Hybrid else "40", host=f"mmap:{tmp_path}", device="cpu")
    try:
        embeddings = TieredEmbeddingBag(tables, tier, policy=policy, optimizer=SGD(lr=1.0))
    except (MemoryError, OSError) as error:
        pytest.skip(f"no address space for {num_rows:,} rows here: {error}")
    far = [num_rows - 1 - k for k in range(3)] + [2**24 + 1, 2**26 + 3]
    near = [row % 2**24 for row in far]

    def values() -> NDArray[np.float32]:
        rows = (embeddings.read(featured([[]], [[row]])) for row in far + near)
        return np.stack([embeddings(read)["huge"].detach().numpy()[0] for read in rows])

    expected = values()
    batches = [featured([[1]], [[row]]) for row in far] + [featured([[2]], [far[:2]])]
    # Enough other rows in between to evict the first ones.
    crowd = [featured([[0]], [list(range(1000 + k, 1000 + k + 15))]) for k in range(0, 90, 15)]
    step_all(embeddings, [*batches, *crowd, *batches], depth=1)
    for rows in (far, far[:2]) * 2:
        expected[: len(rows)] -= 1
    assert np.array_equal(values(), expected)
