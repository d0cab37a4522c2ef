"""bfloat16 MLPs on a GPU: rows stay float32, and the model learns as on the CPU."""

import numpy as np
import pytest
import torch
from support.gpu_helpers import Training, assert_same

from adaptive.optim import Adam, RowwiseAdagrad
from adaptive.policies.device import Device
from adaptive.policies.lru import LRU

pytestmark = pytest.mark.gpu


def test_placement_changes_nothing_under_bf16(device: str) -> None:
    result = Training(device, LRU, Adam(), bf16=True).run()
    expected = Training(device, Device, Adam(), depth=0, bf16=True).run()
    names = [name for name in expected if name.startswith(("table", "dense", "losses"))]
    assert_same({name: result[name] for name in names}, {name: expected[name] for name in names})


def test_rows_and_state_stay_float32(device: str) -> None:
    training = Training(device, LRU, Adam(), bf16=True)
    running = training.open()
    with running.embeddings as embeddings:
        for planned in embeddings.look_ahead(training.batches()[:2], depth=0):
            pooled = embeddings.stack(planned)
            logits = running.model(planned.dense, pooled)
            assert (pooled.dtype, logits.dtype) == (torch.float32, torch.float32)
            logits.sum().backward()  # type: ignore[no-untyped-call]
            assert all(work.gradients is None or work.gradients.dtype == torch.float32 for work in planned.works)
            embeddings.step()
        arrays = embeddings.rows.state_arrays()
    assert {arrays["rows0.weights"].dtype, arrays["rows0.state"].dtype} == {np.dtype(np.float32)}


def test_it_learns_as_on_the_cpu(device: str) -> None:
    on_gpu = Training(device, LRU, RowwiseAdagrad(), bf16=True).run()
    on_cpu = Training("cpu", LRU, RowwiseAdagrad(), bf16=True).run()
    exact = Training("cpu", LRU, RowwiseAdagrad()).run()
    for name in ("table t0", "table t1", "table t2"):
        assert np.linalg.norm(on_gpu[name] - on_cpu[name]) < 0.02 * np.linalg.norm(exact[name])
    np.testing.assert_allclose(on_gpu["losses"], on_cpu["losses"], rtol=0.02)
