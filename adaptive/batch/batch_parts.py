"""Join batches: `concatenate`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive.batch.batch import Batch, Origin, Scalar


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Join the samples of several batches, in order.

    Raises:
        ValueError: if the batches differ in features, names or extras, or only some have weights.
    """
    assert batches, "nothing to concatenate"
    first = batches[0]
    if len(batches) == 1:
        return first
    for what, kinds in (
        ("features", {batch.num_features for batch in batches}),
        ("weights or none", {batch.weights is not None for batch in batches}),
        ("names", {batch.features for batch in batches}),
        ("extras", {tuple(batch.extras) for batch in batches}),
    ):
        if len(kinds) > 1:
            raise ValueError(f"expected batches with the same {what}, got {sorted(kinds)}")
    if first.bag_size and len({batch.bag_size for batch in batches}) == 1:  # a view each instead of slices by feature

        def join(arrays: Sequence[NDArray[Scalar]]) -> NDArray[Scalar]:
            blocks = [batch.by_sample(array) for array, batch in zip(arrays, batches, strict=True)]
            return np.concatenate(blocks, axis=1).reshape(-1)

        offsets = np.arange(0, sum(len(batch.ids) for batch in batches) + 1, first.bag_size)
    else:

        def join(arrays: Sequence[NDArray[Scalar]]) -> NDArray[Scalar]:
            pairs = list(zip(arrays, batches, strict=True))
            return np.concatenate([a[b.feature_span(f)] for f in range(first.num_features) for a, b in pairs])

        bags = [np.diff(batch.offsets).reshape(batch.num_features, batch.num_samples) for batch in batches]  # sizes
        sizes = np.concatenate(bags, axis=1).reshape(-1)
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return Batch(
        dense=np.concatenate([batch.dense for batch in batches]),
        ids=join([batch.ids for batch in batches]),
        offsets=offsets,
        labels=np.concatenate([batch.labels for batch in batches]),
        weights=join(weights) if weights else None,
        origin=_join_origins(batches),
        features=first.features,
        extras={name: np.concatenate([batch.extras[name] for batch in batches]) for name in first.extras},
    ).mark_unshared()


def _join_origins(batches: Sequence[Batch]) -> Origin | None:
    origins = [batch.origin for batch in batches if batch.origin is not None]
    if len(origins) < len(batches) or any(origin.files != origins[0].files for origin in origins):
        return None
    return Origin(
        origins[0].files,
        np.concatenate([origin.file_index for origin in origins]),
        np.concatenate([origin.lines for origin in origins]),
    )
