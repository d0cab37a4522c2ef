"""What users have, feature by feature, as the arrays of a `Batch`: NumPy arrays, tensors, lists, bags with offsets.

Letters: B samples, L ids of each, n ids of a feature. Tensors are known by what they can do, so that this room needs no
torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import InputError

Array = NDArray[Any]


def as_array(value: Any) -> Array:
    """A NumPy array of an array, a tensor on any device, a column of a data frame or a list of numbers."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


@dataclass(frozen=True)
class Bags:
    """The ids of one feature, sample by sample."""

    ids: NDArray[np.int64]  # (n,)
    sizes: NDArray[np.int64]  # (B,) ids of each sample
    weights: NDArray[np.float32] | None  # (n,)


@dataclass(frozen=True)
class Columns:
    """The arrays of a batch that is made of features by name; letters as in `Batch`."""

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    extras: dict[str, Array]


def columns_of(features: Mapping[str, Any], dense: Any, labels: Any, extras: Mapping[str, Any] | None) -> Columns:
    """The arrays of a batch, copied from what is given; see `Batch.of`.

    Raises:
        InputError: for a value that is none of those named there, or lengths that disagree.
    """
    if not features:
        raise InputError("a batch needs at least one feature: Batch.of(user=ids, ..., labels=labels)")
    given = {"labels": labels, "dense": dense, **(extras or {})}
    arrays = {name: as_array(value) for name, value in given.items() if value is not None}
    size = _num_samples(arrays, features)
    found = [_bags(name, value, size) for name, value in features.items()]
    lengths = {name: len(array) for name, array in arrays.items()}
    lengths |= {name: len(bags.sizes) for name, bags in zip(features, found, strict=True)}
    if len(set(lengths.values())) > 1:
        raise InputError(f"lengths disagree, in samples: {', '.join(f'{name} {n}' for name, n in lengths.items())}")
    num_samples = next(iter(lengths.values()))
    return Columns(
        dense=_dense(arrays.pop("dense", None), num_samples),
        ids=np.concatenate([bags.ids for bags in found]),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate([bags.sizes for bags in found]))]).astype(np.int64),
        labels=_labels(arrays.pop("labels", None), num_samples),
        weights=_weights(found),
        extras={name: np.array(array, order="C") for name, array in arrays.items()},
    )


def columns_of_keyed_jagged(jagged: Any, dense: Any, labels: Any, extras: Mapping[str, Any] | None) -> Columns:
    """The arrays of a batch, of a tensor like TorchRec's `KeyedJaggedTensor`: keys, values, lengths, weights.

    Raises:
        InputError: if it is none, or lengths disagree.
    """
    lacking = [name for name in ("keys", "values", "lengths", "weights_or_none") if not hasattr(jagged, name)]
    if lacking:
        found = type(jagged).__name__
        raise InputError(f"a KeyedJaggedTensor is needed, with {', '.join(lacking)}(); found {found}")
    names, values, weights = list(jagged.keys()), as_array(jagged.values()), jagged.weights_or_none()
    sizes = as_array(jagged.lengths()).reshape(len(names), -1)
    ends = np.cumsum(sizes.sum(axis=1))[:-1]
    parts = np.split(values, ends)
    more = [None] * len(names) if weights is None else np.split(as_array(weights), ends)
    features = {
        name: (ids, np.concatenate([[0], np.cumsum(own)]), *(() if weight is None else (weight,)))
        for name, ids, own, weight in zip(names, parts, sizes, more, strict=True)
    }
    return columns_of(features, dense, np.full(sizes.shape[1], np.nan) if labels is None else labels, extras)


def _num_samples(arrays: Mapping[str, Array], features: Mapping[str, Any]) -> int | None:
    """B, from what tells it without doubt; None if only bags with offsets are given, whose last one may be left out."""
    for array in arrays.values():
        if array.ndim:
            return len(array)
    return next((len(value) for value in features.values() if not isinstance(value, tuple)), None)


def _bags(name: str, value: Any, num_samples: int | None) -> Bags:
    """One feature of a batch of `num_samples`, if that is known."""
    if isinstance(value, tuple):
        return _with_offsets(name, value, num_samples)
    if isinstance(value, list) and value and not np.isscalar(value[0]):
        return _of_lists(name, [as_array(bag) for bag in value])
    array = as_array(value)
    if array.dtype == object:
        return _of_lists(name, [as_array(bag) for bag in array])
    if array.ndim not in (1, 2):
        raise InputError(f"feature {name}: (samples,) or (samples, ids) is needed, found {array.ndim} dimensions")
    sizes = np.full(len(array), 1 if array.ndim == 1 else array.shape[1], np.int64)
    return Bags(_ids(name, array.reshape(-1)), sizes, None)


def _of_lists(name: str, bags: Sequence[Array]) -> Bags:
    sizes = np.array([bag.size for bag in bags], np.int64)
    filled = [bag.reshape(-1) for bag in bags if bag.size]
    return Bags(_ids(name, np.concatenate(filled) if filled else np.zeros(0, np.int64)), sizes, None)


def _with_offsets(name: str, value: tuple[Any, ...], num_samples: int | None) -> Bags:
    if len(value) not in (2, 3):
        raise InputError(
            f"feature {name}: (values, offsets) or (values, offsets, weights) is needed, found a tuple of {len(value)}"
        )
    ids, offsets = _ids(name, as_array(value[0])), _ids(name, as_array(value[1]), "offsets")
    ends_there = len(offsets) > 0 and offsets[-1] == len(ids)
    if len(offsets) == num_samples or (num_samples is None and not ends_there):  # as nn.EmbeddingBag takes them
        offsets = np.append(offsets, len(ids))
    sizes = np.diff(offsets)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(ids) or (sizes < 0).any():
        raise InputError(
            f"feature {name}: offsets must rise from 0 to {len(ids)}, the number of its values; found "
            f"{_shortly(as_array(value[1]))}"
        )
    weights = None
    if len(value) == 3:
        weights = as_array(value[2]).astype(np.float32)
        if weights.shape != ids.shape:
            raise InputError(f"feature {name}: {len(ids)} values but weights of shape {weights.shape}")
    return Bags(ids, sizes, weights)


def _shortly(array: Array) -> str:
    return np.array2string(array, threshold=6, edgeitems=3)


def _ids(name: str, array: Array, what: str = "ids") -> NDArray[np.int64]:
    if array.ndim != 1:
        raise InputError(f"feature {name}: {what} of one dimension are needed beside offsets, found {array.ndim}")
    if array.dtype.kind not in "iu" and array.size:
        hint = ""
        if array.dtype.kind == "f":
            hint = "; a column with gaps becomes floats in pandas: fill the gaps, then .astype('int64')"
        raise InputError(f"feature {name}: {what} must be whole numbers, found {array.dtype}{hint}")
    return np.ascontiguousarray(array, np.int64)


def _dense(array: Array | None, num_samples: int) -> NDArray[np.float32]:
    if array is None:
        return np.zeros((num_samples, 0), np.float32)
    if array.ndim not in (1, 2):
        raise InputError(f"dense: (samples,) or (samples, inputs) is needed, found {array.ndim} dimensions")
    return np.array(array.reshape(num_samples, -1), np.float32, order="C")


def _labels(array: Array | None, num_samples: int) -> NDArray[np.float32]:
    if array is None:  # not 0, which would train
        return np.full(num_samples, np.nan, np.float32)
    if array.ndim != 1:
        raise InputError(f"labels: (samples,) is needed, found shape {array.shape}; several labels go into extras")
    return np.array(array, np.float32, order="C")


def _weights(found: Sequence[Bags]) -> NDArray[np.float32] | None:
    """Those of all look-ups, 1 where a feature has none; None if no feature has any."""
    if all(bags.weights is None for bags in found):
        return None
    return np.concatenate(
        [np.ones(len(bags.ids), np.float32) if bags.weights is None else bags.weights for bags in found]
    )
