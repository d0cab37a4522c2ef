"""Evaluate a model on data. Evaluation changes nothing that training depends on.

Letters: B samples of a batch.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.distributed.sharded_embedding_bag import Embeddings, ShardedEmbeddingBag
from adaptive.embeddings.planned_batch import Planned
from adaptive.errors import ConfigError, InputError
from adaptive.models.dense.attention import DIN, SampleVectors
from adaptive.training.finite import where_not_finite
from adaptive.training.quality import StreamingAUC, StreamingLogLoss, exact_auc, grouped_auc

MAX_EXACT: Final = 2**24  # samples stored for the exact AUC and GAUC: 0.5 GB during the computation


@dataclass(frozen=True)
class Evaluation:
    """Quality on a dataset. None: undefined."""

    samples: int
    auc: float | None
    auc_exact: bool  # False: from bins, within 1e-4, because of more than `MAX_EXACT` samples
    accuracy: float | None  # share of predictions on the correct side of 0.5
    log_loss: float | None  # nats
    normalised_entropy: float | None  # log loss divided by that of predicting the mean label
    calibration: float | None  # predicted over observed positives
    gauc: float | None = None  # with `by`: mean AUC within groups, weighted by their samples
    gauc_groups: int | None = None  # with `by`: number of groups with both classes


def evaluate(
    embeddings: Embeddings,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    by: int | None = None,
    keep_negatives: float = 1.0,
) -> Evaluation:
    """Evaluate `model(dense, pooled)`, which returns logits (B,).

    Samples count by their weights, if they have some (`Batch.extras["weight"]`); in GAUC each counts once.

    Rows are read in place: none is moved, counted or trained, and dropout is off. Ranks compute whole batches in turn,
    so that the numbers are those of one process with their weights.

    Args:
        by: position of a feature with one id per sample, which groups the samples for GAUC.
        keep_negatives: see `corrected`.

    Raises:
        DeviceMemoryError: if GPU memory runs out.
        InputError: for a sample without a label; with `by`, for a sample without exactly one id, or too many samples.
        NonFiniteError: for a logit that is not finite, with its batch and data lines.
    """
    labelled = _labelled(batches)
    auc, losses = StreamingAUC(), StreamingLogLoss()
    scores, labels, groups = list[NDArray[np.float32]](), list[NDArray[np.float32]](), list[NDArray[np.int64]]()
    weights, is_weighted = list[NDArray[np.float32]](), False
    for batch, raw_logits in _predictions(embeddings, model, labelled):
        logits, of_batch = corrected(raw_logits, keep_negatives), batch.extras.get("weight")
        is_weighted |= of_batch is not None
        auc.update(logits, batch.labels, of_batch)
        losses.update(logits, batch.labels, of_batch)
        if losses.num_samples <= MAX_EXACT:
            scores.append(logits)
            labels.append(batch.labels)
            weights.append(np.ones(batch.num_samples, np.float32) if of_batch is None else of_batch)
        if by is not None:
            groups.append(_group_ids(batch, by, within=losses.num_samples <= MAX_EXACT))
    exact = 0 < losses.num_samples <= MAX_EXACT
    all_scores, all_labels = (np.concatenate(some) if exact else np.zeros(0, np.float32) for some in (scores, labels))
    gauc, gauc_groups = grouped_auc(all_scores, all_labels, np.concatenate(groups)) if groups else (None, None)
    return Evaluation(
        samples=losses.num_samples,
        auc=exact_auc(all_scores, all_labels, np.concatenate(weights) if is_weighted else None)
        if exact
        else auc.value(),
        auc_exact=exact,
        accuracy=auc.accuracy(),
        log_loss=losses.value(),
        normalised_entropy=losses.normalised_entropy(),
        calibration=losses.calibration(),
        gauc=gauc,
        gauc_groups=gauc_groups,
    )


def corrected(logits: NDArray[np.float32], keep_negatives: float) -> NDArray[np.float32]:
    """Return logits (B,) as if no training sample had been dropped.

    A model that was trained on a share `keep_negatives` of the samples with label 0 predicts too high odds. They are
    multiplied by that share: p becomes p / (p + (1 - p) / keep_negatives).
    """
    return logits if keep_negatives == 1 else logits + np.float32(math.log(keep_negatives))


def _group_ids(batch: Batch, feature: int, *, within: bool) -> NDArray[np.int64]:
    """Return the id (B,) of a feature for each sample."""
    if not within:
        raise InputError(f"expected at most {MAX_EXACT:,} samples for GAUC, got more. Evaluate fewer, or without GAUC")
    if not batch.has_one_each(feature):
        raise InputError(f"expected one id per sample for GAUC, got none or several (feature {feature})")
    return batch.ids[batch.feature_span(feature)]


def _labelled(batches: Iterable[Batch]) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        if np.isnan(batch.labels).any():
            raise InputError(f"expected labeled samples, got some without a label (evaluation batch {number})")
        yield batch


def predict(embeddings: Embeddings, model: nn.Module, batches: Iterable[Batch]) -> Iterator[NDArray[np.float32]]:
    """Yield the logits (B,) of each batch, without reading labels.

    Raises:
        DeviceMemoryError: if GPU memory runs out.
        NonFiniteError: for a logit that is not finite, with its batch and data lines.
    """
    return (logits for _, logits in _predictions(embeddings, model, batches))


def _predictions(
    embeddings: Embeddings, model: nn.Module, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    size = embeddings.peers.size if isinstance(embeddings, ShardedEmbeddingBag) else 1
    number, remaining = 0, iter(batches)
    while several := list(islice(remaining, size)):
        running_out = embeddings.runtime.pipeline.running_out("in an evaluation")
        with running_out, evaluating(model), torch.no_grad():  # per batch: the caller may train in between
            if isinstance(embeddings, ShardedEmbeddingBag):
                logits_of_ranks = _logits_of_ranks(embeddings, model, several)
            else:
                logits_of_ranks = [logits_of(embeddings, model, embeddings.read(several[0])).float().cpu().numpy()]
        for batch, logits in zip(several, logits_of_ranks, strict=False):  # at the end some ranks have no batch
            if not np.isfinite(logits).all():
                raise where_not_finite(f"evaluation batch {number}", logits, batch)
            yield batch, logits
            number += 1


def _logits_of_ranks(
    embeddings: ShardedEmbeddingBag, model: nn.Module, batches: Sequence[Batch]
) -> list[NDArray[np.float32]]:
    """Compute the logits of this rank's batch, if it has one; return those of all ranks."""
    rank, logits = embeddings.peers.rank, np.zeros(0, np.float32)
    planned = embeddings.read(batches[rank] if rank < len(batches) else batches[0].take(np.arange(0)))
    if planned.num_samples:
        logits = logits_of(embeddings, model, planned).float().cpu().numpy()
    return embeddings.peers.rows.gather(logits, "predictions")


def logits_of(embeddings: Embeddings, model: nn.Module, planned: Planned) -> Tensor:
    """Return the model's logits of a batch, or of a part of one."""
    logits: Tensor = model(planned.dense, vectors_of(embeddings, model, planned))
    return logits


def vectors_of(embeddings: Embeddings, model: nn.Module, planned: Planned) -> Tensor | SampleVectors:
    """Return vectors (B, F, D), or (B, sum of widths) or those of sequences if the model's attributes say so."""
    if getattr(model, "takes_sequences", False):
        assert isinstance(model, DIN)
        return _sample_vectors(embeddings, model, planned)
    return embeddings.side_by_side(planned) if getattr(model, "takes_widths", False) else embeddings.stack(planned)


def _sample_vectors(embeddings: Embeddings, model: DIN, planned: Planned) -> SampleVectors:
    batch, sequences = planned.batch, sorted(model.inputs.sequences)
    sizes = np.diff(batch.offsets).reshape(batch.num_features, batch.num_samples)[sequences]
    names = [embeddings.features[number] for number in sequences]

    most = [model.inputs.sequences[number] for number in sequences]
    if (bad := np.flatnonzero((sizes > np.array(most)[:, None]).any(axis=0))).size:
        sample = int(bad[0])
        expected = ", ".join(f"{size} ids of {name}" for size, name in zip(most, names, strict=True))
        got = ", ".join(f"{size} of {name}" for size, name in zip(sizes[:, sample].tolist(), names, strict=True))
        where = f"sample {sample}" if batch.origin is None else batch.origin.where(sample)
        raise InputError(
            f"{where}: expected sequences of at most {expected}, got {got}. Keep the latest, or raise max_length "
            "before training."
        )
    lengths = torch.from_numpy(sizes).to(embeddings.device)
    return model.gather(list(embeddings(planned).values()), list(lengths))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set `model.eval()` inside, and restore the mode of each module; ConfigError if it is no module."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model: expected a torch.nn.Module, called as model(dense, pooled), got {type(model).__name__}. Wrap it "
            "in a module with a forward method."
        )
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
