"""Losses and gradients that are not finite: noticed, and explained with the data lines.

Letters: B samples, F features, D width of a row.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.errors import NonFiniteError

MAX_NAMED = 5
NOTHING_UPDATED: Final = "nothing was updated. Check these lines, or lower the learning rates"
UPDATED: Final = (
    "this one step has updated tables and dense weights before it was known (finite_check=a_step_later), so they are "
    "spoiled: nothing of them is saved, evaluated or trained any more. Check these lines, or lower the learning rates, "
    "and go on from the latest checkpoint"
)


def explain_loss(
    what: str, batch: Batch, *, logits: Tensor, pooled: Tensor | None, model: nn.Module | None
) -> NonFiniteError:
    """The error for a loss that is not finite.

    Args:
        what: of which step, such as `step 7: the loss is nan`.
        batch: the batch it is of.
        logits: (B,), of several labels (B, T).
        pooled: (B, F, D) embedding vectors; side by side, (B, sum of widths), they are not told apart. None: the batch
            has updated its rows, and what they were is not known any more.
        model: may itself hold weights that are not finite; None as for `pooled`.
    """
    bad_dense = np.flatnonzero(~np.isfinite(batch.dense).all(0)).tolist()
    causes = [f"dense input {column}" for column in bad_dense]
    causes += [] if pooled is None else _bad_vectors(pooled.detach())
    if model is not None:
        with torch.no_grad():
            bad_weights = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
        causes += [f"weight {name}" for name in bad_weights]
    found = f"; not finite: {_few(causes)}" if causes else ""
    then = NOTHING_UPDATED
    if pooled is None or model is None:
        found += (
            "; whether a row or weight was not finite before cannot be told any more: finite_check=before_update does"
        )
        then = UPDATED
    return where_not_finite(f"{what}{found}", logits.detach().float().cpu().numpy(), batch, then)


def _bad_vectors(pooled: Tensor) -> list[str]:
    bad = ~torch.isfinite(pooled)
    if pooled.dim() == 2:
        return ["embedding vectors"] if bool(bad.any()) else []
    return [f"embedding vector of feature {feature}" for feature in bad.any(2).any(0).nonzero().flatten().tolist()]


def explain_gradients(
    what: str, batch: Batch, *, parameters: list[str], features: list[str], then: str = NOTHING_UPDATED
) -> NonFiniteError:
    """The error for gradients that are not finite, of dense weights and of features' embedding vectors. `then`: what
    became of them, and what to do."""
    names = [f"weight {name}" for name in parameters] + [f"embedding vectors of feature {name}" for name in features]
    return NonFiniteError(f"{what}: the gradient of {_few(names)} is not finite; the batch is {_span(batch)}; {then}")


def where_not_finite(
    what: str, logits: NDArray[np.float32], batch: Batch, then: str = NOTHING_UPDATED
) -> NonFiniteError:
    """The error for logits (B,) or (B, T) that are not finite, or for a finite sum that overflowed. `then`: what became
    of them, and what to do."""
    samples = np.flatnonzero(~np.isfinite(logits).reshape(len(logits), -1).all(axis=1)).tolist()
    if samples:
        places = _few([_place(batch, sample) for sample in samples])
        found = f"{len(samples)} of {len(logits)} predictions are not finite, at {places}"
    else:
        found = "every prediction is finite"
    return NonFiniteError(f"{what}; {found}; the batch is {_span(batch)}; {then}")


def sums_of_gradients(model: nn.Module, rows: Sequence[Tensor]) -> list[Tensor]:
    """Numbers () on the device, all of them finite only if every gradient is: of the model's parameters, of `rows`.

    A value that is not finite makes the sum so too, and sums alone take 64 us where a look at each value takes 527
    (0.4 million weights, one core). Finite values may overflow in a sum: then `bad_parameters` looks at each.
    """
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    found = [gradient.sum() for gradient in rows]
    if gradients:
        found.append(torch.stack([gradient.sum() for gradient in gradients]).sum())
    return found


def bounds_of_gradients(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Names of the model's parameters, each with numbers () on the device: the least and the largest of its gradient,
    NaN if one is.

    For a look when the gradients themselves are gone: a sum of finite values may overflow, these do not.
    """
    gradients = [(name, weight.grad) for name, weight in model.named_parameters() if weight.grad is not None]
    return [(name, bound) for name, found in gradients if found.numel() for bound in torch.aminmax(found)]


def bad_parameters(model: nn.Module) -> list[str]:
    """Names of the model's parameters whose gradient is not finite. Looks at each value."""
    gradients = [(name, weight.grad) for name, weight in model.named_parameters() if weight.grad is not None]
    return [name for name, gradient in gradients if not torch.isfinite(gradient).all()]


def _place(batch: Batch, sample: int) -> str:
    return batch.origin.where(sample) if batch.origin is not None else f"sample {sample} of the batch"


def _span(batch: Batch) -> str:
    if batch.origin is None or not batch.num_samples:
        return f"{batch.num_samples} samples"
    return f"{batch.num_samples} samples from {batch.origin.where(0)} to {batch.origin.where(batch.num_samples - 1)}"


def _few(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
