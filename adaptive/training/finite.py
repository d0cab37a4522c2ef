"""Find losses and gradients that are not finite, and explain them with data lines.

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
from adaptive.models.dense.attention import SampleVectors

MAX_NAMED = 5
NOTHING_UPDATED: Final = "nothing was updated. Check these lines, or lower the learning rates"


def explain_loss(
    what: str, batch: Batch, *, logits: Tensor, pooled: Tensor | SampleVectors | None, model: nn.Module
) -> NonFiniteError:
    """Return the error for a loss that is not finite.

    Args:
        what: step and value, such as `step 7: the loss is nan`.
        batch: batch with this loss.
        logits: (B,).
        pooled: embedding vectors (B, F, D), or (B, sum of widths) or of sequences, whose features are not named; None:
            not known.
        model: its weights are checked too.
    """
    bad_dense = np.flatnonzero(~np.isfinite(batch.dense).all(0)).tolist()
    causes = [f"dense input {column}" for column in bad_dense]
    causes += [] if pooled is None else _bad_vectors(pooled)
    with torch.no_grad():
        bad_weights = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
    causes += [f"weight {name}" for name in bad_weights]
    named = f"; not finite: {_few(causes)}" if causes else ""
    return where_not_finite(f"{what}{named}", logits.detach().float().cpu().numpy(), batch)


def _bad_vectors(pooled: Tensor | SampleVectors) -> list[str]:
    if isinstance(pooled, SampleVectors):
        return _bad_vectors(torch.cat([pooled.single.flatten(0, 1), *pooled.steps]))
    bad = ~torch.isfinite(pooled.detach())
    if pooled.dim() == 2:
        return ["embedding vectors"] if bool(bad.any()) else []
    return [f"embedding vector of feature {feature}" for feature in bad.any(2).any(0).nonzero().flatten().tolist()]


def explain_gradients(what: str, batch: Batch, *, parameters: list[str], features: list[str]) -> NonFiniteError:
    """Return the error for gradients that are not finite."""
    names = [f"weight {name}" for name in parameters] + [f"embedding vectors of feature {name}" for name in features]
    return NonFiniteError(
        f"{what}: the gradient of {_few(names)} is not finite; the batch is {_span(batch)}; {NOTHING_UPDATED}"
    )


def where_not_finite(what: str, logits: NDArray[np.float32], batch: Batch) -> NonFiniteError:
    """Return the error for logits (B,) that are not finite, or whose sum overflowed."""
    samples = np.flatnonzero(~np.isfinite(logits)).tolist()
    if samples:
        places = _few([_place(batch, sample) for sample in samples])
        where = f"{len(samples)} of {len(logits)} predictions are not finite, at {places}"
    else:
        where = "every prediction is finite"
    return NonFiniteError(f"{what}; {where}; the batch is {_span(batch)}; {NOTHING_UPDATED}")


def sums_of_gradients(model: nn.Module, rows: Sequence[Tensor]) -> list[Tensor]:
    """Return sums () of gradients: finite only if every gradient is finite.

    Sums take 64 us, checks of every value 527 us (0.4 million weights, one core). Sums of finite values may overflow:
    then `bad_parameters` checks each value.
    """
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    sums = [gradient.sum() for gradient in rows]
    if gradients:
        sums.append(torch.stack([gradient.sum() for gradient in gradients]).sum())
    return sums


def bad_parameters(model: nn.Module) -> list[str]:
    """Return the names of parameters whose gradient is not finite. Checks each value."""
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
