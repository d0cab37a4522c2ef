"""How good a model is on data it does not train on. Evaluating changes nothing that training depends on.

Letters: B samples of a batch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from adaptive.models.tasks import Tasks, labels_of, tasks_of
from adaptive.training.finite import where_not_finite
from adaptive.training.quality import StreamingAUC, StreamingLogLoss, exact_auc, grouped_auc

MAX_EXACT: Final = 2**24  # samples whose scores are kept for the exact AUC and GAUC: 0.5 GB while it is computed


@dataclass(frozen=True)
class LabelQuality:
    """Quality of the predictions of one of several labels; see `Evaluation`, AUC from bins."""

    auc: float | None
    log_loss: float | None
    accuracy: float | None
    calibration: float | None


@dataclass(frozen=True)
class Evaluation:
    """Quality on a data set, of several labels that of the first. What the labels leave undefined (one class only, no
    sample) is None."""

    samples: int
    auc: float | None
    auc_exact: bool  # or from bins, within 1e-4, where there are too many samples to keep
    accuracy: float | None  # share of predictions on their label's side of 0.5
    log_loss: float | None  # nats
    normalised_entropy: float | None  # log loss over that of always saying the mean label
    calibration: float | None  # predicted over observed positives
    gauc: float | None = None  # mean AUC within groups of samples, by their number; where groups were asked for
    gauc_groups: int | None = None  # groups with labels of both classes
    labels: dict[str, LabelQuality] = field(default_factory=dict)  # by name, where the model has several


def evaluate(
    embeddings: TieredEmbeddingBag,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    by: int | None = None,
    keep: Callable[[NDArray[np.float32], NDArray[np.float32]], None] | None = None,
    in_turn: bool = False,
) -> Evaluation:
    """Evaluate `model(dense, pooled)`, which gives logits (B,), of several labels (B, T), on batches.

    Rows are read where they lie: none is moved, counted or trained, and dropout and the like are off. Where a GPU's
    memory runs out, device rows are given back and the batch is run again; between two steps this changes no number.

    Args:
        by: position of a feature with one id a sample, whose ids group the samples for GAUC.
        keep: called at the end with logits and labels (n,), unless there are more than `MAX_EXACT` samples.
        in_turn: ranks, of one block each, compute whole batches in turn, which gives the bits of a process alone; else
            each computes its blocks of every batch, as in training.

    Raises:
        DeviceMemoryError: if no more rows can be given back.
        InputError: for a sample without a label; with `by`, for one without exactly one id, or more samples than are
            kept.
        NonFiniteError: for a logit that is not finite; names batch and data lines.
    """
    tasks, streams = tasks_of(model), PerLabel(tasks_of(model))
    auc, losses = StreamingAUC(), StreamingLogLoss()
    scores, labels, groups = list[NDArray[np.float32]](), list[NDArray[np.float32]](), list[NDArray[np.int64]]()
    predictions = _in_turn if in_turn else _predictions
    for batch, logits in predictions(embeddings, model, _labelled(batches)):
        first = logits if tasks is None else logits[:, 0]
        if tasks is not None:
            streams.update(logits, labels_of(batch, tasks))
        auc.update(first, batch.labels)
        losses.update(first, batch.labels)
        if losses.num_samples <= MAX_EXACT:
            scores.append(first)
            labels.append(batch.labels)
        if by is not None:
            groups.append(_group_ids(batch, by, within=losses.num_samples <= MAX_EXACT))
    exact = 0 < losses.num_samples <= MAX_EXACT
    all_scores, all_labels = (np.concatenate(some) if exact else np.zeros(0, np.float32) for some in (scores, labels))
    gauc, gauc_groups = grouped_auc(all_scores, all_labels, np.concatenate(groups)) if groups else (None, None)
    if keep is not None and exact:
        keep(all_scores, all_labels)
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
    )


class PerLabel:
    """Counts the predictions of each of several labels; of one label nothing."""

    def __init__(self, tasks: Tasks | None) -> None:
        self.streams = {name: (StreamingAUC(), StreamingLogLoss()) for name in (tasks.names if tasks else ())}

    def update(self, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        """Count a batch: logits and labels (B, T)."""
        for column, (auc, losses) in enumerate(self.streams.values()):
            auc.update(logits[:, column], labels[:, column])
            losses.update(logits[:, column], labels[:, column])

    def quality(self) -> dict[str, LabelQuality]:
        """Label -> quality so far."""
        return {
            name: LabelQuality(auc.value(), losses.value(), auc.accuracy(), losses.calibration())
            for name, (auc, losses) in self.streams.items()
        }


def _group_ids(batch: Batch, feature: int, *, within: bool) -> NDArray[np.int64]:
    """(B,) the id of a feature of each sample."""
    span = batch.feature_span(feature)
    offsets = batch.offsets[feature * batch.num_samples : (feature + 1) * batch.num_samples + 1]
    if not within:
        raise InputError("more samples than are kept for GAUC; evaluate on fewer, or without it")
    if not np.array_equal(offsets, np.arange(span.start, span.stop + 1)) or len(offsets) != batch.num_samples + 1:
        raise InputError(f"GAUC needs a feature with one id a sample; feature {feature} has none or several")
    return batch.ids[span]


def _labelled(batches: Iterable[Batch]) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        if np.isnan(batch.labels).any():
            raise InputError(f"evaluation batch {number} has samples without a label; evaluate on labelled data")
        yield batch


def predict(
    embeddings: TieredEmbeddingBag, model: nn.Module, batches: Iterable[Batch]
) -> Iterator[NDArray[np.float32]]:
    """Of each batch the logits (B,) of `model(dense, pooled)`, of several labels (B, T), in the order of its samples.
    Labels are not read. Otherwise as `evaluate`.

    Raises:
        DeviceMemoryError: if no more rows can be given back.
        NonFiniteError: for a logit that is not finite; names batch and data lines.
    """
    return (logits for _, logits in _predictions(embeddings, model, batches))


def _predictions(
    embeddings: TieredEmbeddingBag, model: nn.Module, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    for number, batch in enumerate(batches):
        with evaluating(model), torch.no_grad():  # for this batch: whoever iterates may do something else in between
            logits = embeddings.runtime.with_room(partial(_logits, embeddings, model, batch))
        _check_finite(logits, number, batch)
        yield batch, logits


def _in_turn(
    embeddings: TieredEmbeddingBag, model: nn.Module, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
    """`_predictions`, rank r computing batches r, r + W, r + 2 W and so on; all ranks get those of all."""
    assert embeddings.ranks.blocks == embeddings.ranks.size
    number, coming = 0, iter(batches)
    while several := list(islice(coming, embeddings.ranks.size)):
        with evaluating(model), torch.no_grad():
            everyones = _logits_of_several(embeddings, embeddings.ranks, model, several)
        for batch, logits in zip(several, everyones, strict=False):  # ranks behind the last batch have none
            _check_finite(logits, number, batch)
            yield batch, logits
            number += 1


def _check_finite(logits: NDArray[np.float32], number: int, batch: Batch) -> None:
    if not np.isfinite(logits).all():
        raise where_not_finite(f"evaluation batch {number}", logits, batch)


def _logits(embeddings: TieredEmbeddingBag, model: nn.Module, batch: Batch) -> NDArray[np.float32]:
    """Each rank computes those of its blocks; all ranks get those of all."""
    planned = embeddings.read(embeddings.ranks.own_part(batch))
    parts = [logits_of(embeddings, model, part).float().cpu().numpy() for part in planned.parts()]
    of_rank = (
        parts[0]
        if len(parts) == 1
        else np.concatenate([np.zeros(0, np.float32), *(part.reshape(-1) for part in parts)])
    )
    everyones = _of_every_rank(embeddings, model, of_rank)
    return everyones[0] if len(everyones) == 1 else np.concatenate(everyones)


def logits_of(embeddings: TieredEmbeddingBag, model: nn.Module, planned: Planned) -> Tensor:
    """What a model gives of a batch, or of a part of one."""
    logits: Tensor = model(planned.dense, vectors_of(embeddings, model, planned))
    return logits


def vectors_of(embeddings: TieredEmbeddingBag, model: nn.Module, planned: Planned) -> Tensor:
    """The vectors as a model takes them: (B, F, D), or (B, sum of widths) side by side if it says so."""
    return embeddings.side_by_side(planned) if getattr(model, "takes_widths", False) else embeddings.stack(planned)


def _logits_of_several(
    embeddings: TieredEmbeddingBag, ranks: Ranks, model: nn.Module, batches: Sequence[Batch]
) -> list[NDArray[np.float32]]:
    """Of each rank those of its batch, none of a rank without one; all ranks get those of all."""
    has_one = ranks.rank < len(batches)
    planned = embeddings.read(batches[ranks.rank] if has_one else OwnPart.of_batch(batches[0], [0, 0]))
    of_rank = logits_of(embeddings, model, planned).float().cpu().numpy() if has_one else np.zeros(0, np.float32)
    return _of_every_rank(embeddings, model, of_rank)


def _of_every_rank(
    embeddings: TieredEmbeddingBag, model: nn.Module, of_rank: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    tasks, everyones = tasks_of(model), embeddings.ranks.gather_arrays(of_rank)
    return everyones if tasks is None else [logits.reshape(-1, len(tasks.names)) for logits in everyones]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model.eval()`, and afterwards each module as it was: some may be in evaluation mode during training too."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
