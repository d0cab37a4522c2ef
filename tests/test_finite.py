"""Messages about numbers that are not finite, and which gradients are found bad; runs are in test_trainer_stops.py."""

import numpy as np
import pytest
import torch
from torch import nn

from adaptive.batch import Batch, Origin
from adaptive.training.finite import (
    bad_parameters,
    sums_of_gradients,
    where_not_finite,
)


def batch(num_samples: int, *, with_origin: bool = True) -> Batch:
    origin = Origin(("a.tsv",), np.zeros(num_samples, np.int32), np.arange(11, 11 + num_samples))
    return Batch(
        dense=np.zeros((num_samples, 2), np.float32),
        ids=np.zeros(num_samples, np.int64),
        offsets=np.arange(num_samples + 1),
        labels=np.zeros(num_samples, np.float32),
        origin=origin if with_origin else None,
    )


def logits(num_samples: int, *bad: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    values = np.zeros(num_samples, np.float32)
    values[list(bad)] = np.nan
    return values


def test_samples_without_lines_and_overflows_are_named() -> None:
    message = str(where_not_finite("step 3", logits(4, 2), batch(4, with_origin=False)))
    assert "at sample 2 of the batch; the batch is 4 samples; nothing" in message
    assert "step 3; every prediction is finite; the batch" in str(where_not_finite("step 3", logits(4), batch(4)))


@pytest.mark.parametrize(
    ("values", "bad", "finite"),
    [
        ([1.0, 2.0], [], True),
        ([3e38, 3e38], [], False),  # the sum overflows, the values do not
        ([float("nan"), 1.0], ["weight"], False),
        ([float("inf"), float("-inf")], ["weight"], False),
        ([float("-inf"), 1.0], ["weight"], False),
    ],
)
def test_bad_parameters(values: list[float], bad: list[str], finite: bool) -> None:
    model = nn.Linear(2, 1)
    assert bad_parameters(model) == [] == sums_of_gradients(model, [])  # no gradient yet
    model.weight.grad = torch.tensor([values])
    model.bias.grad = torch.zeros(1)
    assert bad_parameters(model) == bad
    (found,) = sums_of_gradients(model, [])
    assert bool(torch.isfinite(found)) == finite
