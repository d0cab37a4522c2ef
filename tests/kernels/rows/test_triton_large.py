"""Offsets beyond 2**31 elements in Triton. Only pages that are touched take memory."""

from typing import Any

import numpy as np
import pytest
import torch
from support import triton_setup
from support.triton_setup import DEVICE, INTERPRETED, ready, settings_of
from torch import Tensor

from adaptive.optim import SGD, Adagrad

NUM, DIM = 2**27 + 3, 17
LAST = NUM - 1
assert LAST * DIM > 2**31


@pytest.fixture(scope="module")
def huge() -> Tensor:
    """(NUM, 17) float32, 9 GB: of the GPU's memory, or of address space.

    The interpreter copies whole storages, so there the tensor is as short as its head; its memory is not.
    """
    try:
        if not INTERPRETED:
            return torch.empty(NUM, DIM, device=DEVICE)
        array = np.empty((NUM, DIM), np.float32)
        head = torch.from_numpy(array[:1])
        head.whole = array  # type: ignore[attr-defined]
        return head
    except (MemoryError, torch.OutOfMemoryError):
        pytest.skip("9 GB cannot be allocated here")


def last(huge: Tensor) -> Any:
    """(17,) the last row, to read and write."""
    return huge[LAST] if not INTERPRETED else torch.from_numpy(huge.whole[LAST])  # type: ignore[attr-defined]


def row(start: int = 1) -> Tensor:
    return torch.arange(start, start + DIM, dtype=torch.float32, device=DEVICE)[None]


def on_device(*values: int, kind: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=kind, device=DEVICE)


NONE = torch.zeros(0, device=DEVICE)
COLD = {"hot": torch.zeros(0, dtype=torch.int32, device=DEVICE)}


def test_pool_reads_and_writes_the_last_row(huge: Tensor) -> None:
    last(huge)[:] = row(5)[0]
    out = torch.empty_like(row())
    with ready():
        triton_setup.pool(huge, None, on_device(LAST), on_device(0), on_device(0), on_device(0, 1), NONE, out)
        assert torch.equal(out, row(5))
        vector = on_device(LAST, kind=torch.int32)  # a product of an int32 and a width must not be 32 bits wide
        triton_setup.pool(row(9), None, on_device(0), on_device(0), vector, on_device(0, 1), NONE, huge)
    assert torch.equal(last(huge)[None], row(9))


def test_update_steps_the_last_row_and_its_state(huge: Tensor) -> None:
    last(huge)[:] = row(5)[0]
    row_updates = on_device(0, 1), on_device(0, kind=torch.int32), NONE, row()
    for optimizer, state in ((SGD(0.5), torch.zeros(1, 0, device=DEVICE)), (Adagrad(0.5), huge)):
        norms = torch.empty((2, 1), device=DEVICE)
        tail = optimizer.kind, settings_of(optimizer), NONE, norms
        with ready():
            triton_setup.update(huge, state, on_device(LAST), *row_updates, *tail, **COLD)
        if isinstance(optimizer, SGD):
            assert torch.equal(last(huge)[None], row(5) - 0.5 * row())
    assert norms.isfinite().all()


def test_gradients_beyond_2_31_values(huge: Tensor) -> None:
    last(huge)[:] = row(5)[0]
    vectors = on_device(*[LAST] * 40, kind=torch.int32)
    (sums, squares), pending = torch.zeros(2, 1, DIM, device=DEVICE), torch.zeros(1, dtype=torch.bool, device=DEVICE)
    tail = NONE, huge, sums, squares, pending
    for _ in range(2):
        with ready():
            triton_setup.accumulate(on_device(0), on_device(0, 40), vectors, *tail, **COLD)
    assert torch.equal(sums, 80 * row(5))
    assert torch.equal(squares, 2 * (40 * row(5)).square())


def test_sums_and_their_squares_beyond_2_31_values(huge: Tensor) -> None:
    """In one array: the square is stored after the sum."""
    pending, row_updates = (
        torch.zeros(NUM, dtype=torch.bool, device=DEVICE),
        (on_device(0, 1), on_device(0), NONE, row()),
    )
    with ready():
        triton_setup.accumulate(on_device(LAST), *row_updates, huge, huge, pending, **COLD)
    assert torch.equal(last(huge)[None], row().square())
    assert pending.nonzero().tolist() == [[LAST]]
    weights, state = 2 * torch.ones(1, DIM, device=DEVICE), torch.zeros(1, DIM, device=DEVICE)
    row_updates = on_device(0, 1), on_device(LAST, kind=torch.int32), NONE, huge
    tail = Adagrad.kind, settings_of(Adagrad(1.0, eps=0.0)), NONE, torch.empty(1, device=DEVICE)
    with ready():
        triton_setup.update(weights, state, on_device(0), *row_updates, *tail, squares=huge, **COLD)
    assert torch.equal(state, row().square())
    assert torch.equal(weights, 2 - row())  # by n * n / sqrt(n * n)


def test_rows_move_and_are_made_at_the_far_end(huge: Tensor) -> None:
    empty, near, far = torch.zeros(1, 0, device=DEVICE), on_device(0), on_device(LAST)
    to = torch.zeros(1, DIM, device=DEVICE)
    last(huge)[:] = row(5)[0]
    with ready():
        triton_setup.copy_rows(to, empty, near, huge, empty, far)
        assert torch.equal(to, row(5))
        triton_setup.copy_rows(huge, empty, far, row(9), empty, near)
        assert torch.equal(last(huge)[None], row(9))
        made, bounds = torch.zeros(1, DIM, device=DEVICE), torch.ones(1, device=DEVICE)
        tables = on_device(0, 2**40), on_device(7), bounds
        triton_setup.initial_rows(huge, empty, far, on_device(2**39), *tables, 0.0)
        triton_setup.initial_rows(made, empty, near, on_device(2**39), *tables, 0.0)
    assert torch.equal(last(huge)[None], made)
    assert made.abs().max() > 0.1
