"""Convert features by name to the arrays of a `Batch`: NumPy arrays, tensors, lists, bags.

Letters: B samples, L ids per sample, n ids of a feature. Tensors are recognized by their methods, so this module does
not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.errors import InputError

Array = NDArray[Any]


_FLOAT32_MAX = float(np.finfo(np.float32).max)


def as_array(what: str, value: Any) -> Array:
    """Convert an array, tensor on any device, data frame column or list to a NumPy array.

    Raises:
        InputError: for masked values, which a plain array would expose, tensors that require a gradient, which a copy
            would not get, and tensors without a plain array (sparse, nested, meta); begins with `what`.
    """
    refuse_masked(what, value)
    needs_gradient = bool(getattr(value, "requires_grad", False))
    try:
        if not needs_gradient:
            if hasattr(value, "detach"):
                value = (
                    value.float() if str(value.dtype) == "torch.bfloat16" else value
                ).cpu()  # numpy has no bfloat16
            return np.asarray(value)
    except (RuntimeError, TypeError) as error:  # torch's, also of a tensor within a list
        needs_gradient = "requires grad" in str(error)
        if not needs_gradient:
            raise InputError(f"{what}: expected a dense array or tensor with values, got an error: {error}") from error
    raise InputError(
        f"{what}: expected values that require no gradient, got a tensor that does. A batch copies its values, so no "
        "gradient would reach it. Pass value.detach(), or compute it in your loop, from the vectors."
    )


def refuse_masked(what: str, array: object) -> None:
    """Raise an `InputError` that begins with `what` if an array has masked values."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise InputError(
            f"{what}: expected values without a mask, got {int(np.ma.getmaskarray(array).sum())} masked ones. "
            "Fill them with .filled(value), or drop their samples."
        )


def as_numbers(what: str, value: Any) -> Array:
    """Convert to a NumPy array of booleans, integers or floats, as `as_array`.

    Raises:
        InputError: if it holds anything else; begins with `what`.
    """
    array = as_array(what, value)
    if array.dtype.kind not in "biuf" and (array.size or array.dtype != object):
        raise InputError(
            f"{what}: expected booleans, integers or floats, got {array.dtype}. Convert the values to numbers first."
        )
    return array


def as_float32(what: str, array: Array) -> NDArray[np.float32]:
    """Copy numbers to a C-contiguous float32 array; NaN and infinity are kept.

    Raises:
        InputError: if a finite number does not fit; begins with `what`.
    """
    with np.errstate(over="ignore"):
        converted = np.array(array, np.float32, order="C")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        too_large = np.isinf(converted) & np.isfinite(array)
        if too_large.any():
            place = tuple(int(axis) for axis in np.argwhere(too_large)[0])
            raise InputError(
                f"{what}: expected numbers of at most {_FLOAT32_MAX:.6g}, which fit float32, got {array[place]} (at "
                f"[{', '.join(map(str, place))}]). Scale or clip them."
            )
    return converted


@dataclass(frozen=True)
class Bags:
    """The ids of one feature, sample by sample."""

    ids: NDArray[np.int64]  # (n,)
    sizes: NDArray[np.int64]  # (B,) ids of each sample
    weights: NDArray[np.float32] | None  # (n,)


@dataclass(frozen=True)
class Columns:
    """The arrays of a batch; letters as in `Batch`."""

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32] | None
    extras: dict[str, Array]


def columns_of(features: Mapping[str, object], dense: Any, labels: Any, extras: Mapping[str, object] | None) -> Columns:
    """Copy features, dense inputs, labels and extras to the arrays of a batch; see `Batch.of`.

    Raises:
        InputError: as `Batch.of`.
    """
    if not features:
        raise InputError("expected at least one feature, got none. Write Batch.of(user=ids, ..., labels=labels).")
    extras = {name: value for name, value in (extras or {}).items() if value is not None}
    others = {"labels": labels, "dense": dense, **{f"extras[{name!r}]": value for name, value in extras.items()}}
    arrays = {name: as_numbers(name, value) for name, value in others.items() if value is not None}
    values = [_without_tuple(value) for value in features.values()]
    sizes = [len(array) for array in arrays.values() if array.ndim]
    sizes += [len(value) for value in values if not isinstance(value, tuple)]
    size = next(iter(sizes), None)  # None: only bags with offsets, the last of which is optional
    all_bags = [_bags(name, value, size) for name, value in zip(features, values, strict=True)]
    lengths = {name: len(array) for name, array in arrays.items()}
    lengths |= {name: len(bags.sizes) for name, bags in zip(features, all_bags, strict=True)}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"expected equal numbers of samples, got {', '.join(f'{name} {n}' for name, n in lengths.items())}"
        )
    num_samples = next(iter(lengths.values()))
    return Columns(
        dense=_dense(arrays.pop("dense", None), num_samples),
        ids=np.concatenate([bags.ids for bags in all_bags]),
        offsets=np.concatenate([[0], np.cumsum(np.concatenate([bags.sizes for bags in all_bags]))]).astype(np.int64),
        labels=_labels(arrays.pop("labels", None), num_samples),
        weights=_weights(all_bags),
        extras={name: np.array(arrays[f"extras[{name!r}]"], order="C") for name in extras},
    )


def _without_tuple(value: Any) -> Any:
    """Turn a tuple that cannot be (values, offsets[, weights]) into a list."""
    is_flat = isinstance(value, tuple) and all(np.isscalar(item) or getattr(item, "ndim", 1) == 0 for item in value)
    return list(value) if is_flat or (isinstance(value, tuple) and len(value) not in (2, 3)) else value


def _bags(name: str, value: Any, num_samples: int | None) -> Bags:
    """Convert one feature of a batch of `num_samples`; None: unknown."""
    if isinstance(value, tuple):
        return _with_offsets(name, value, num_samples)
    if isinstance(value, list) and value and not np.isscalar(value[0]):
        return _of_lists(name, [as_array(f"feature {name}", bag) for bag in value])
    array = as_array(f"feature {name}", value)
    if array.dtype == object:
        return _of_lists(name, [as_array(f"feature {name}", bag) for bag in array])
    if array.ndim not in (1, 2):
        raise InputError(f"feature {name}: expected shape (samples,) or (samples, ids), got {array.ndim} dimensions")
    sizes = np.full(len(array), 1 if array.ndim == 1 else array.shape[1], np.int64)
    return Bags(_ids(name, array.reshape(-1)), sizes, None)


def _of_lists(name: str, bags: Sequence[Array]) -> Bags:
    sizes = np.array([bag.size for bag in bags], np.int64)
    filled = [bag.reshape(-1) for bag in bags if bag.size]
    # concatenating uint64 and int64 gives float64
    filled = [bag.view(np.int64) if bag.dtype == np.uint64 else bag for bag in filled]
    return Bags(_ids(name, np.concatenate(filled) if filled else np.zeros(0, np.int64)), sizes, None)


def _with_offsets(name: str, value: tuple[Any, ...], num_samples: int | None) -> Bags:
    what = f"feature {name}"
    ids, offsets = _ids(name, as_array(what, value[0])), _ids(name, as_array(what, value[1]), "offsets")
    has_end = len(offsets) > 0 and offsets[-1] == len(ids)
    if len(offsets) == num_samples or (num_samples is None and not has_end):  # as for nn.EmbeddingBag
        offsets = np.append(offsets, len(ids))
    sizes = np.diff(offsets)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(ids) or (sizes < 0).any():
        raise InputError(
            f"feature {name}: expected offsets that rise from 0 to {len(ids)}, the number of its values, got "
            f"{np.array2string(offsets, threshold=6, edgeitems=3)}. A tuple is (values, offsets[, weights]); pass ids "
            "by sample as a list."
        )
    weights = None
    if len(value) == 3:
        weights = as_float32(f"{what}: weights", as_numbers(f"{what}: weights", value[2]))
        if weights.shape != ids.shape:
            raise InputError(f"feature {name}: expected {len(ids)} weights, as values, got shape {weights.shape}")
    return Bags(ids, sizes, weights)


def _ids(name: str, array: Array, what: str = "ids") -> NDArray[np.int64]:
    if array.ndim != 1:
        raise InputError(f"feature {name}: expected {what} of one dimension next to offsets, got {array.ndim}")
    if array.dtype.kind not in "iu" and array.size:
        hint = ""
        if array.dtype.kind == "f":
            hint = (
                ". pandas turns a column with gaps into floats, which merge ids from 2^53 on. Read it as Int64, fill "
                "the gaps, then .astype('int64')"
            )
        raise InputError(f"feature {name}: expected integer {what}, got {array.dtype}{hint}")
    return np.ascontiguousarray(array).astype(np.int64, copy=False)


def _dense(array: Array | None, num_samples: int) -> NDArray[np.float32]:
    if array is None:
        return np.zeros((num_samples, 0), np.float32)
    if array.ndim not in (1, 2):
        raise InputError(f"dense: expected shape (samples,) or (samples, inputs), got {array.ndim} dimensions")
    return as_float32("dense", array.reshape(num_samples, -1))


def _labels(array: Array | None, num_samples: int) -> NDArray[np.float32]:
    if array is None:  # not zeros, which would train
        return np.full(num_samples, np.nan, np.float32)
    if array.ndim != 1:
        raise InputError(f"labels: expected shape (samples,), got {array.shape}. Pass further labels in extras.")
    return as_float32("labels", array)


def _weights(all_bags: Sequence[Bags]) -> NDArray[np.float32] | None:
    """(N,) weights of all lookups, 1 for features without weights; None if no feature has any."""
    if all(bags.weights is None for bags in all_bags):
        return None
    return np.concatenate(
        [np.ones(len(bags.ids), np.float32) if bags.weights is None else bags.weights for bags in all_bags]
    )
