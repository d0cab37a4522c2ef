"""Evaluate a model on data. Evaluation changes nothing that training depends on.

Letters: B samples of a batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch, OwnPart
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import InputError
from adaptive.models.dense.attention import SampleVectors, SequenceModel
from adaptive.models.tasks import Tasks, labels_of, loss_of, tasks_of
from adaptive.training.finite import where_not_finite
from adaptive.training.quality import StreamingAUC, StreamingLogLoss, exact_auc, grouped_auc
from adaptive.training.ranking import Ranking, ranking_model

MAX_EXACT: Final = 2**24  # samples stored for the exact AUC and GAUC: 0.5 GB during the computation


@dataclass(frozen=True)
class LabelQuality:
    """Quality of one label of a multi-task model; as in `Evaluation`, with the AUC from bins."""

    auc: float | None
    log_loss: float | None
    accuracy: float | None
    calibration: float | None


@dataclass(frozen=True)
class Evaluation:
    """Quality on a dataset; for multi-task models of the first label. None: undefined."""

    samples: int
    auc: float | None
    auc_exact: bool  # False: from bins, within 1e-4, because of more than `MAX_EXACT` samples
    accuracy: float | None  # share of predictions on the correct side of 0.5
    log_loss: float | None  # nats
    normalised_entropy: float | None  # log loss divided by that of predicting the mean label
    calibration: float | None  # predicted over observed positives
    gauc: float | None = None  # with `by`: mean AUC within groups, weighted by their samples
    gauc_groups: int | None = None  # with `by`: number of groups with both classes
    labels: dict[str, LabelQuality] = field(default_factory=dict)  # of a multi-task model, by name
    ranking: Mapping[str, float] = field(default_factory=dict)  # of a model that ranks items; see `Ranking.quality`
    mse: float | None = None  # mean squared error, of a model with loss = mse, which has no other quality
    mae: float | None = None  # mean absolute error of the same


def evaluate(
    embeddings: TieredEmbeddingBag,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    by: int | None = None,
    in_turn: bool = False,
    ranks_items: bool = False,
    keep_negatives: float = 1.0,
) -> Evaluation:
    """Evaluate `model(dense, pooled)`, which returns logits (B,) or (B, T).

    Rows are read in place: none is moved, counted or trained, and dropout is off. If a GPU runs out of memory, the
    device tier shrinks and the batch runs again, which changes no number.

    Args:
        by: position of a feature with one id per sample, which groups the samples for GAUC.
        in_turn: ranks with one block each compute whole batches in turn, for the bits of a single process. Otherwise
            each computes its blocks of every batch, as in training.
        keep_negatives: see `corrected`.
        ranks_items: also rank all items for each sample with label 1, if the model can (`adaptive.training.ranking`).

    Raises:
        DeviceMemoryError: if the device tier cannot shrink further.
        InputError: for a sample without a label; with `by`, for a sample without exactly one id, or too many samples.
        NonFiniteError: for a logit that is not finite, with its batch and data lines.
    """
    labelled = _labelled(batches)
    if loss_of(model) == "mse":
        return _evaluate_numbers((_in_turn if in_turn else _predictions)(embeddings, model, labelled))
    tasks, streams = tasks_of(model), PerLabel(tasks_of(model))
    auc, losses = StreamingAUC(), StreamingLogLoss()
    scores, labels, groups = list[NDArray[np.float32]](), list[NDArray[np.float32]](), list[NDArray[np.int64]]()
    ranker = ranking_model(model) if ranks_items else None
    ranking = None if ranker is None else Ranking(embeddings, ranker)
    look = None if ranking is None else ranking.add
    predicted = _in_turn(embeddings, model, labelled) if in_turn else _predictions(embeddings, model, labelled, look)
    for batch, raw_logits in predicted:
        logits = corrected(raw_logits, keep_negatives)
        first = logits if tasks is None else logits[:, 0]
        if tasks is not None:
            streams.update(logits, labels_of(batch, tasks))
        auc.update(first, batch.labels)
        losses.update(first, batch.labels)
        if losses.num_samples <= MAX_EXACT:
            scores.append(first)
            labels.append(batch.labels)
        if look is not None and in_turn:
            with evaluating(model), torch.no_grad():
                _logits(embeddings, model, batch, look)
        if by is not None:
            groups.append(_group_ids(batch, by, within=losses.num_samples <= MAX_EXACT))
    exact = 0 < losses.num_samples <= MAX_EXACT
    all_scores, all_labels = (np.concatenate(some) if exact else np.zeros(0, np.float32) for some in (scores, labels))
    gauc, gauc_groups = grouped_auc(all_scores, all_labels, np.concatenate(groups)) if groups else (None, None)
    return Evaluation(
        samples=losses.num_samples,
        auc=exact_auc(all_scores, all_labels) if exact else auc.value(),
        auc_exact=exact,
        accuracy=auc.accuracy(),
        log_loss=losses.value(),
        normalised_entropy=losses.normalised_entropy(),
        calibration=losses.calibration(),
        gauc=gauc,
        gauc_groups=gauc_groups,
        labels=streams.quality(),
        ranking={} if ranking is None else ranking.quality(),
    )


def corrected(logits: NDArray[np.float32], keep_negatives: float) -> NDArray[np.float32]:
    """Return logits (B,) or (B, T) as if no training sample had been dropped.

    A model that was trained on a share `keep_negatives` of the samples with label 0 predicts too high odds. They are
    multiplied by that share: p becomes p / (p + (1 - p) / keep_negatives). Of several labels, the first is meant.
    """
    if keep_negatives == 1:
        return logits
    logits = logits.copy()
    logits.reshape(len(logits), -1)[:, :1] += np.float32(math.log(keep_negatives))
    return logits


def _evaluate_numbers(predicted: Iterable[tuple[Batch, NDArray[np.float32]]]) -> Evaluation:
    """Return the errors of predicted numbers (B,) of batches."""
    samples, squares, absolutes = 0, 0.0, 0.0
    for batch, numbers in predicted:
        errors = numbers.astype(np.float64) - batch.labels
        samples, squares = samples + batch.num_samples, squares + float(errors @ errors)
        absolutes += float(np.abs(errors).sum())
    mse, mae = (total / samples if samples else None for total in (squares, absolutes))
    return Evaluation(samples, None, False, None, None, None, None, mse=mse, mae=mae)


class PerLabel:
    """Counts the predictions of each label of a multi-task model; nothing for other models."""

    def __init__(self, tasks: Tasks | None) -> None:
        self.streams = {name: (StreamingAUC(), StreamingLogLoss()) for name in (tasks.names if tasks else ())}

    def update(
        self, logits: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32] | None = None
    ) -> None:
        """Count a batch: logits and labels (B, T), weights (B,)."""
        for column, (auc, losses) in enumerate(self.streams.values()):
            auc.update(logits[:, column], labels[:, column], weights)
            losses.update(logits[:, column], labels[:, column], weights)

    def quality(self) -> dict[str, LabelQuality]:
        """Return label -> quality so far."""
        return {
            name: LabelQuality(auc.value(), losses.value(), auc.accuracy(), losses.calibration())
            for name, (auc, losses) in self.streams.items()
        }


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


def predict(
    embeddings: TieredEmbeddingBag, model: nn.Module, batches: Iterable[Batch]
) -> Iterator[NDArray[np.float32]]:
    """Yield the logits of each batch, (B,) or (B, T), without reading labels.

    Raises:
        DeviceMemoryError: if the device tier cannot shrink further.
        NonFiniteError: for a logit that is not finite, with its batch and data lines.
    """
    return (logits for _, logits in _predictions(embeddings, model, batches))


Look = Callable[[Sequence[tuple[Planned, Tensor | SampleVectors]]], None]
"""Called with a rank's blocks of a batch, and their vectors."""


def _predictions(
    embeddings: TieredEmbeddingBag, model: nn.Module, batches: Iterable[Batch], look: Look | None = None
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    for number, batch in enumerate(batches):
        with evaluating(model), torch.no_grad():  # per batch: the caller may train in between
            logits = embeddings.runtime.with_room(partial(_logits, embeddings, model, batch, look))
        _check_finite(logits, number, batch)
        yield batch, logits


def _in_turn(
    embeddings: TieredEmbeddingBag, model: nn.Module, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    """`_predictions`, where rank r of W computes batches r, r + W, r + 2 W ..."""
    assert embeddings.ranks.blocks == embeddings.ranks.size
    number, remaining = 0, iter(batches)
    while several := list(islice(remaining, embeddings.ranks.size)):
        with evaluating(model), torch.no_grad():
            logits_of_ranks = _logits_of_several(embeddings, embeddings.ranks, model, several)
        for batch, logits in zip(several, logits_of_ranks, strict=False):  # at the end some ranks have no batch
            _check_finite(logits, number, batch)
            yield batch, logits
            number += 1


def _check_finite(logits: NDArray[np.float32], number: int, batch: Batch) -> None:
    if not np.isfinite(logits).all():
        raise where_not_finite(f"evaluation batch {number}", logits, batch)


def _logits(embeddings: TieredEmbeddingBag, model: nn.Module, batch: Batch, look: Look | None) -> NDArray[np.float32]:
    """Compute the logits of this rank's blocks; return those of all ranks."""
    planned = embeddings.read(embeddings.ranks.own_part(batch))
    blocks = [(part, vectors_of(embeddings, model, part)) for part in planned.parts()]
    parts = [model(part.dense, vectors).float().cpu().numpy() for part, vectors in blocks]
    if look is not None:
        look(blocks)
    of_rank = (
        parts[0]
        if len(parts) == 1
        else np.concatenate([np.zeros(0, np.float32), *(part.reshape(-1) for part in parts)])
    )
    gathered = _gathered(embeddings, model, of_rank)
    return gathered[0] if len(gathered) == 1 else np.concatenate(gathered)


def logits_of(embeddings: TieredEmbeddingBag, model: nn.Module, planned: Planned) -> Tensor:
    """Return the model's logits of a batch, or of a part of one."""
    logits: Tensor = model(planned.dense, vectors_of(embeddings, model, planned))
    return logits


def vectors_of(embeddings: TieredEmbeddingBag, model: nn.Module, planned: Planned) -> Tensor | SampleVectors:
    """Return vectors (B, F, D), or (B, sum of widths) or those of sequences if the model's attributes say so."""
    if getattr(model, "takes_sequences", False):
        assert isinstance(model, SequenceModel)
        return _sample_vectors(embeddings, model, planned)
    return embeddings.side_by_side(planned) if getattr(model, "takes_widths", False) else embeddings.stack(planned)


def _sample_vectors(embeddings: TieredEmbeddingBag, model: SequenceModel, planned: Planned) -> SampleVectors:
    batch, sequences = planned.batch, sorted(model.inputs.sequences)
    sizes = np.diff(batch.offsets).reshape(batch.num_features, batch.num_samples)[sequences]
    names = [embeddings.features[number] for number in sequences]

    def refuse(is_bad: NDArray[np.bool_], expected: str, fix: str) -> None:
        """Raise InputError for the first bad sample; `is_bad` is (sequences, samples)."""
        if (bad := np.flatnonzero(is_bad.any(axis=0))).size:
            sample = int(bad[0])
            got = ", ".join(f"{size} of {name}" for name, size in zip(names, sizes[:, sample].tolist(), strict=True))
            where = f"sample {sample}" if batch.origin is None else batch.origin.where(sample)
            raise InputError(f"{where}: expected {expected}, got {got}. {fix}")

    most = [model.inputs.sequences[number] for number in sequences]
    refuse(
        sizes > np.array(most)[:, None],
        f"sequences of at most {', '.join(f'{size} ids of {name}' for size, name in zip(most, names, strict=True))}",
        "Keep the latest, or raise max_length before training.",
    )
    if model.sums_steps:
        refuse(
            sizes != sizes[0],
            "sequences of equal lengths for model hstu, which sums the steps of an event",
            "Correct the data, or use --model din.",
        )
    lengths = torch.from_numpy(sizes).to(embeddings.device)
    return model.gather(list(embeddings(planned).values()), list(lengths))


def _logits_of_several(
    embeddings: TieredEmbeddingBag, ranks: Ranks, model: nn.Module, batches: Sequence[Batch]
) -> list[NDArray[np.float32]]:
    """Compute the logits of this rank's batch, if it has one; return those of all ranks."""
    has_batch = ranks.rank < len(batches)
    planned = embeddings.read(batches[ranks.rank] if has_batch else OwnPart.of_batch(batches[0], [0, 0]))
    of_rank = logits_of(embeddings, model, planned).float().cpu().numpy() if has_batch else np.zeros(0, np.float32)
    return _gathered(embeddings, model, of_rank)


def _gathered(
    embeddings: TieredEmbeddingBag, model: nn.Module, of_rank: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    tasks, gathered = tasks_of(model), embeddings.ranks.gather_arrays(of_rank)
    return gathered if tasks is None else [logits.reshape(-1, len(tasks.names)) for logits in gathered]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set `model.eval()` inside, and restore the mode of each module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
