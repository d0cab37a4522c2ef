"""Messages about numbers that are not finite, and which gradients are found bad; runs are in test_trainer_stops.py."""

import numpy as np
import pytest
import torch
from torch import nn

from adaptive.batch import Batch, Origin
from adaptive.training.finite import (
    bad_parameters,
    explain_gradients,
    explain_loss,
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


def test_lines_of_the_first_bad_predictions_are_named() -> None:
    message = str(where_not_finite("step 3", logits(20, *range(2, 9)), batch(20)))
    assert message.startswith(
        "step 3; 7 of 20 predictions are not finite, at a.tsv:13, a.tsv:14, a.tsv:15, a.tsv:16, a.tsv:17 and 2 more; "
        "the batch is 20 samples from a.tsv:11 to a.tsv:30; nothing was updated."
    )


def test_samples_without_lines_and_overflows_are_named() -> None:
    message = str(where_not_finite("step 3", logits(4, 2), batch(4, with_origin=False)))
    assert "at sample 2 of the batch; the batch is 4 samples; nothing" in message
    assert "step 3; every prediction is finite; the batch" in str(where_not_finite("step 3", logits(4), batch(4)))


def test_causes_are_named() -> None:
    spoilt = batch(3)
    spoilt.dense[1, 1] = np.inf
    pooled = torch.zeros(3, 4, 2)
    pooled[0, 2, 1] = torch.nan
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.bias.fill_(torch.nan)
    error = explain_loss("step 1: the loss is nan", spoilt, logits=torch.zeros(3), pooled=pooled, model=model)
    causes = "dense input 1, embedding vector of feature 2, weight bias"
    assert f"step 1: the loss is nan; not finite: {causes}; every prediction is finite" in str(error)
    error = explain_gradients("step 1", spoilt, parameters=["bias"], features=["site"])
    assert "step 1: the gradient of weight bias, embedding vectors of feature site is not finite" in str(error)


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


def test_gradients_of_rows_have_sums_of_their_own() -> None:
    good, bad = torch.ones(3, 2), torch.tensor([[1.0, float("nan")]])
    assert [float(found) for found in sums_of_gradients(nn.Linear(2, 1), [good])] == [6.0]
    assert [bool(torch.isfinite(found)) for found in sums_of_gradients(nn.Linear(2, 1), [good, bad])] == [True, False]
