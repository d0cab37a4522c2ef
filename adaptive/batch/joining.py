"""One batch of the samples of several."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch.batch import Batch, Origin, Scalar


def concatenate(batches: Sequence[Batch]) -> Batch:
    """One batch of the samples of several, in order.

    Raises:
        ValueError: if the batches disagree in features, or some have weights and some do not.
    """
    assert batches, "nothing to concatenate"
    if len(batches) == 1:
        return batches[0]
    num_features = {batch.num_features for batch in batches}
    weighted = {batch.weights is not None for batch in batches}
    if len(num_features) > 1 or len(weighted) > 1:
        raise ValueError(f"batches differ: features {sorted(num_features)}, weighted {sorted(weighted)}")
    for what, kinds in (
        ("names", {batch.features for batch in batches}),
        ("extras", {tuple(batch.extras) for batch in batches}),
    ):
        if len(kinds) > 1:
            raise ValueError(f"batches differ in {what}: {sorted(kinds)}")
    if all(batch.one_each for batch in batches):
        return _concatenate_one_each(batches)
    parts = [
        (batch, feature) for feature in range(num_features.pop()) for batch in batches
    ]  # feature-major over all samples
    spans = [batch.feature_span(feature) for batch, feature in parts]
    bags = [np.diff(batch.offsets).reshape(batch.num_features, batch.num_samples) for batch in batches]  # sizes
    sizes = np.concatenate(bags, axis=1).reshape(-1)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    weights = None
    if weighted.pop():
        weights = np.concatenate(
            [b.weights[span] for (b, _), span in zip(parts, spans, strict=True) if b.weights is not None]
        )
    return Batch(
        dense=np.concatenate([batch.dense for batch in batches]),
        ids=np.concatenate([b.ids[span] for (b, _), span in zip(parts, spans, strict=True)]),
        offsets=offsets,
        labels=np.concatenate([batch.labels for batch in batches]),
        weights=weights,
        origin=_join_origins(batches),
        features=batches[0].features,
        extras=_join_extras(batches),
    ).mark_unshared()


def _concatenate_one_each(batches: Sequence[Batch]) -> Batch:
    def joined(arrays: Sequence[NDArray[Scalar]]) -> NDArray[Scalar]:
        blocks = [a.reshape(b.num_features, b.num_samples) for a, b in zip(arrays, batches, strict=True)]
        return np.concatenate(blocks, axis=1).reshape(-1)

    weights = [batch.weights for batch in batches if batch.weights is not None]
    ids = joined([batch.ids for batch in batches])
    return Batch(
        dense=np.concatenate([batch.dense for batch in batches]),
        ids=ids,
        offsets=np.arange(len(ids) + 1),
        labels=np.concatenate([batch.labels for batch in batches]),
        weights=joined(weights) if weights else None,
        origin=_join_origins(batches),
        features=batches[0].features,
        extras=_join_extras(batches),
    ).mark_unshared()


def _join_extras(batches: Sequence[Batch]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([batch.extras[name] for batch in batches]) for name in batches[0].extras}


def _join_origins(batches: Sequence[Batch]) -> Origin | None:
    origins = [batch.origin for batch in batches]
    known = [origin for origin in origins if origin is not None]
    if len(known) < len(origins) or any(origin.files != known[0].files for origin in known):
        return None
    return Origin(
        known[0].files,
        np.concatenate([origin.file_index for origin in known]),
        np.concatenate([origin.lines for origin in known]),
    )
