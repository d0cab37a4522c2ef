"""`Batch`: what a reader yields and a model trains on.

It holds NumPy arrays only, so that policies can rearrange it without torch.

Letters: B samples, F features, N lookups (ids) of all features together, D dense inputs.

The layout is *feature-major*: bag `f * B + b` holds the ids of feature `f` of sample `b`, namely
`ids[offsets[f * B + b] : offsets[f * B + b + 1]]`; bags may be empty.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch.named import columns_of, refuse_masked
from adaptive.errors import InputError

Scalar = TypeVar("Scalar", bound=np.generic)
Samples = NDArray[np.int64]

NO_SAMPLES: Final = "expected a batch with samples, got one without. Skip empty batches."
_UNSHARED: Final = "_is_unshared"


@dataclass(frozen=True)
class Origin:
    """File and line of each sample b: `files[file_index[b]]`, line `lines[b]` (from 1)."""

    files: tuple[str, ...]
    file_index: NDArray[np.int32]  # (B,)
    lines: NDArray[np.int64]  # (B,)

    def where(self, sample: int) -> str:
        """`file:line` of a sample."""
        return f"{self.files[self.file_index[sample]]}:{self.lines[sample]}"

    def take(self, samples: NDArray[np.int64]) -> "Origin":
        return Origin(self.files, self.file_index[samples], self.lines[samples])


@dataclass(frozen=True)
class Batch:
    """One batch of samples. Create it with `Batch.of`.

    Do not change the arrays afterwards: the look-ahead thread and the training thread share them. A loader may reuse
    its own arrays: `Batch.of` copies them, and a look-ahead copies any other batch.

    A policy's `arrange` sets `part_sizes` and `held_back` with `dataclasses.replace`, as requests to the training loop.
    Batches that are taken from this one or joined with it have neither.

    Raises:
        ValueError: if lengths disagree, offsets do not rise from 0 to N, or part sizes are not positive with sum B.
    """

    dense: NDArray[np.float32]  # (B, D), D may be 0
    ids: NDArray[np.int64]  # (N,)
    offsets: NDArray[np.int64]  # (F * B + 1,)
    labels: NDArray[np.float32]  # (B,)
    weights: NDArray[np.float32] | None = None  # (N,) weight of each lookup, or none
    origin: Origin | None = field(default=None, compare=False)
    part_sizes: tuple[int, ...] = ()
    """Samples of each part, in order; empty: no parts. Parts run through the model one by one, for a single step, so
    that the first can start before all rows are fetched (see `Planned.parts`)."""
    held_back: "Batch | None" = field(default=None, repr=False)
    """Samples whose loss is passed to `Policy.observe` after this batch; they are not trained with it."""
    features: tuple[str, ...] = ()
    """(F,) feature names, by which tables reorder the batch; empty: features are in the tables' order."""
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Name -> (B, ...): further values of each sample, such as sample weights or more labels."""

    @classmethod
    def of(
        cls,
        features: Mapping[str, object] | None = None,
        /,
        *,
        dense: Any = None,
        labels: Any = None,
        extras: Mapping[str, object] | None = None,
        **more_features: Any,
    ) -> "Batch":
        """Create a batch from features by name.

        Example: `Batch.of(user=ids, tags=(values, offsets), labels=clicks)`. Each feature is one of these, as arrays,
        tensors or data frame columns:

            (B,)                          one id per sample, also as a tuple
            (B, L)                        L ids per sample
            [[1, 2], [], [3]]             a list or column of B lists or arrays of ids
            (values, offsets)             values (n,), offsets (B + 1,) or, as for `torch.nn.EmbeddingBag`, (B,)
            (values, offsets, weights)    also a weight per lookup (n,), for pooling "sum" or "none"

        Tables take features by name, so their order does not matter. All values are copied.

        Args:
            features: name -> feature, for names that are not Python identifiers; others are keyword arguments.
            dense: (B, D), or (B,) for one input; default: none.
            labels: (B,); default: NaN, so that training on forgotten labels fails.
            extras: name -> (B, ...), see the attribute.

        Raises:
            InputError: for other values; lengths that disagree; dense inputs, labels, weights and extras that are not
                booleans, integers or floats, or do not fit float32; masked values.
        """
        twice = sorted({*(features or {})} & {*more_features})
        if twice:
            raise InputError(f"expected each feature once, got these twice: {', '.join(twice)}")
        named = {**(features or {}), **more_features}
        columns = columns_of(named, dense, labels, extras)
        arrays = {item.name: getattr(columns, item.name) for item in fields(columns)}
        return cls(**arrays, features=tuple(named)).mark_unshared()

    def mark_unshared(self) -> Self:
        """Declare that nothing else writes to the arrays, so that `unshared` need not copy them."""
        self.__dict__[_UNSHARED] = True  # not a field, so that `replace` with other arrays drops it
        return self

    def unshared(self) -> Self:
        """The batch itself if it is marked as unshared, else a copy."""
        if _UNSHARED in self.__dict__:
            return self
        copied = copy(self)
        arrays = {name: value.copy() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        copied.__dict__.update(arrays, extras={name: array.copy() for name, array in self.extras.items()})
        if self.origin is not None:
            copied.__dict__["origin"] = self.origin.take(np.arange(self.num_samples))
        return copied.mark_unshared()

    def to(self, device: object = None, /, **_: object) -> Self:
        """Return the batch itself, on the host: `look_ahead()` and `read()` send it to the device.

        Lightning, accelerate and loops of one's own call it for every batch.
        """
        return self

    def __post_init__(self) -> None:
        _check("dense", self.dense, np.float32, 2)
        _check("ids", self.ids, np.int64, 1)
        _check("offsets", self.offsets, np.int64, 1)
        _check("labels", self.labels, np.float32, 1)
        num_samples = len(self.labels)
        if len(self.dense) != num_samples:
            raise ValueError(f"batch: expected {num_samples} dense rows, as labels, got {len(self.dense)}")
        num_bags = len(self.offsets) - 1
        if num_bags < 0 or (num_samples and num_bags % num_samples) or (not num_samples and num_bags):
            raise ValueError(f"batch: expected features x {num_samples} samples + 1 offsets, got {len(self.offsets)}")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.ids):
            raise ValueError(
                f"batch: expected offsets from 0 to {len(self.ids)} (number of ids), "
                f"got {self.offsets[0]} to {self.offsets[-1]}"
            )
        falls = np.flatnonzero(self.offsets[1:] < self.offsets[:-1])
        if len(falls):
            raise ValueError(f"batch: expected rising offsets, got a lower one at position {falls[0] + 1}")
        if self.weights is not None:
            _check("weights", self.weights, np.float32, 1)
            if len(self.weights) != len(self.ids):
                raise ValueError(f"batch: expected {len(self.ids)} weights, as ids, got {len(self.weights)}")
        if self.features and len(self.features) * num_samples != num_bags:
            raise ValueError(f"batch: expected {self.num_features} feature names, got {len(self.features)}")
        for name, array in self.extras.items():
            if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != num_samples:
                raise ValueError(f"batch: extras[{name!r}]: expected an array of {num_samples} samples")
            refuse_masked(f"batch: extras[{name!r}]", array)
            if array.dtype.kind not in "biuf":
                raise ValueError(f"batch: extras[{name!r}]: expected numbers, got {array.dtype}")
        if self.part_sizes and (min(self.part_sizes) < 1 or sum(self.part_sizes) != num_samples):
            raise ValueError(f"batch: expected positive part sizes with sum {num_samples}, got {self.part_sizes}")

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    @property
    def num_features(self) -> int:
        return (len(self.offsets) - 1) // max(self.num_samples, 1)

    @property
    def one_each(self) -> bool:
        """True if every bag holds exactly one id."""
        return self.bag_size == 1

    @cached_property
    def bag_size(self) -> int:
        """Number of ids that every bag holds, 1 without bags; 0: the bags differ, or are empty."""
        if len(self.offsets) == 1:
            return 1
        size, rest = divmod(len(self.ids), len(self.offsets) - 1)
        return size if not rest and (self.offsets[1:] - self.offsets[:-1] == size).all() else 0

    def by_sample(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """View (F, B, `bag_size`) of the values (N,) of lookups in bags of one size."""
        return values.reshape(self.num_features, self.num_samples, self.bag_size)

    def has_one_each(self, feature: int) -> bool:
        """True if every sample has exactly one id of a feature."""
        first = feature * self.num_samples
        return bool((np.diff(self.offsets[first : first + self.num_samples + 1]) == 1).all())

    def feature_span(self, feature: int) -> slice:
        """Slice of `ids` and `weights` with the lookups of one feature."""
        first = feature * self.num_samples
        return slice(int(self.offsets[first]), int(self.offsets[first + self.num_samples]))

    def num_lookups(self, feature: int) -> int:
        """Number of lookups of one feature."""
        span = self.feature_span(feature)
        return int(span.stop - span.start)

    def take(self, samples: NDArray[np.int64]) -> "Batch":
        """Batch of these samples (n,), in this order.

        Raises:
            ValueError: for a sample outside 0 ... B - 1.
        """
        if len(samples) and not 0 <= samples.min() <= samples.max() < self.num_samples:
            raise ValueError(
                f"expected samples of at least 0 and below {self.num_samples}, got {samples.min()} to {samples.max()}"
            )
        offsets, picks = self._lookups_of(samples)
        return self._with(
            dense=self.dense.take(samples, axis=0),
            ids=self._pick(self.ids, samples, picks),
            offsets=offsets,
            labels=self.labels[samples],
            weights=None if self.weights is None else self._pick(self.weights, samples, picks),
            origin=None if self.origin is None else self.origin.take(samples),
            extras={name: array[samples] for name, array in self.extras.items()},
            bag_size=self.bag_size,
        ).mark_unshared()

    def _with(self, *, bag_size: int, **values: object) -> "Batch":
        """Batch with other values of attributes, and neither parts nor samples held back.

        They are not checked: a look at all lookups in each step of a skip rule would take a tenth of its time.
        `bag_size`: 0: unknown, for some samples may have bags of one size where all have not.
        """
        changed = copy(self)
        changed.__dict__.update(values, bag_size=bag_size, part_sizes=(), held_back=None)
        if not bag_size:
            del changed.__dict__["bag_size"]
        return changed

    def reordered(self, order: Sequence[int]) -> "Batch":
        """Batch with reordered features: `order[i]` is the current position of feature i."""
        if not self.num_samples:
            raise InputError(NO_SAMPLES)
        spans = [self.feature_span(position) for position in order]
        sizes = np.diff(self.offsets).reshape(self.num_features, -1)[list(order)].reshape(-1)
        return replace(
            self,
            ids=np.concatenate([self.ids[span] for span in spans]),
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            weights=None if self.weights is None else np.concatenate([self.weights[span] for span in spans]),
            features=tuple(self.features[position] for position in order) if self.features else (),
        )

    def _lookups_of(self, samples: Samples) -> tuple[Samples, Samples | None]:
        """Offsets of the samples' bags and the lookups in them; None: bags of one size."""
        if self.bag_size:
            same = len(samples) == self.num_samples and _UNSHARED in self.__dict__
            num_lookups = self.num_features * len(samples) * self.bag_size
            return self.offsets if same else np.arange(0, num_lookups + 1, self.bag_size), None
        bags = (np.arange(self.num_features)[:, None] * self.num_samples + samples[None, :]).ravel()
        starts = self.offsets[bags]
        sizes = self.offsets[bags + 1] - starts
        offsets = np.zeros(len(bags) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        picks = np.repeat(starts - offsets[:-1], sizes)
        picks += np.arange(len(picks))
        return offsets, picks

    def _pick(self, values: NDArray[Scalar], samples: Samples, picks: Samples | None) -> NDArray[Scalar]:
        """The samples' values among those of all lookups (N,)."""
        if picks is None:  # one gather per feature instead of one index per lookup
            return self.by_sample(values).take(samples, axis=1).reshape(-1)
        return values[picks]


def one_hot_batch(
    dense: NDArray[np.float32], ids: NDArray[np.int64], labels: NDArray[np.float32], origin: Origin | None = None
) -> Batch:
    """Create a batch with one id per bag; `ids` is (B, F), sample-major as files are."""
    refuse_masked("ids", ids)
    num_samples, num_features = ids.shape
    return Batch(
        dense=dense,
        ids=np.ascontiguousarray(ids.T).reshape(-1),
        offsets=np.arange(num_samples * num_features + 1, dtype=np.int64),
        labels=labels,
        origin=origin,
    )


def _check(name: str, array: object, dtype: type, ndim: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
        kind = (
            f"{array.dtype} array of {array.ndim} dimensions" if isinstance(array, np.ndarray) else type(array).__name__
        )
        raise ValueError(f"batch: {name}: expected {np.dtype(dtype)} values in {ndim} dimension(s), got {kind}")
    refuse_masked(f"batch: {name}", array)
    if not array.flags.c_contiguous:
        raise ValueError(f"batch: {name}: expected a C-contiguous array. Pass numpy.ascontiguousarray({name}).")


def in_order(batch: object, features: Sequence[str]) -> object:
    """Batch with its named features in this order; anything else is returned unchanged.

    Raises:
        InputError: if a feature is missing or unknown, or there are no samples.
    """
    if not isinstance(batch, Batch) or not batch.features or batch.features == tuple(features):
        return batch
    places = {name: position for position, name in enumerate(batch.features)}
    missing = [name for name in features if name not in places]
    unknown = [name for name in batch.features if name not in set(features)]
    if missing or unknown or len(places) < len(batch.features):
        raise InputError(
            f"expected a batch with the tables' features {', '.join(features)}, got {', '.join(batch.features)}"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; in no table: {', '.join(unknown)}" if unknown else "")
        )
    return batch.reordered([places[name] for name in features])


def as_batch(value: object) -> Batch:
    """Return the argument if it is a batch.

    Raises:
        InputError: if it is not.
    """
    if not isinstance(value, Batch):
        raise InputError(f"expected an adaptive.Batch, got {type(value).__name__}. Create one with adaptive.Batch.of.")
    return value


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
    is_even = first.bag_size > 0 and len({batch.bag_size for batch in batches}) == 1
    if is_even:  # a view of each batch instead of slices by feature

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
    return first._with(
        dense=np.concatenate([batch.dense for batch in batches]),
        ids=join([batch.ids for batch in batches]),
        offsets=offsets,
        labels=np.concatenate([batch.labels for batch in batches]),
        weights=join(weights) if weights else None,
        origin=_join_origins(batches),
        extras={name: np.concatenate([batch.extras[name] for batch in batches]) for name in first.extras},
        bag_size=first.bag_size if is_even else 0,
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


class Refill:
    """Collects samples, in order, into batches of one size; 0: that of the first batch."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self._waiting: list[Batch] = []
        self._count = 0

    def add(
        self, batch: Batch, chosen: NDArray[np.bool_], weights: NDArray[np.float64] | None = None
    ) -> Iterator[Batch]:
        """Add the chosen (B,) samples, with further weights (B,) if any; yields the batches that are full."""
        self.size = self.size or batch.num_samples
        samples = np.flatnonzero(chosen)
        while len(samples) and self._count + len(samples) >= self.size:
            needed = self.size - self._count
            self._wait(batch, samples[:needed], weights)
            samples = samples[needed:]
            yield self._join()
        self._wait(batch, samples, weights)

    def rest(self) -> Iterator[Batch]:
        """Yield the remaining samples as one smaller batch, if there are any."""
        if self._count:
            yield self._join()

    def _wait(self, batch: Batch, samples: NDArray[np.int64], weights: NDArray[np.float64] | None) -> None:
        if len(samples):
            taken = batch if len(samples) == batch.num_samples else batch.take(samples)
            self._waiting.append(taken if weights is None else weighted(taken, weights[samples]))
            self._count += len(samples)

    def _join(self) -> Batch:
        if any("weight" in batch.extras for batch in self._waiting):
            ones = [np.ones(batch.num_samples) for batch in self._waiting]
            self._waiting = [weighted(batch, weights) for batch, weights in zip(self._waiting, ones, strict=True)]
        joined = concatenate(self._waiting)
        self._waiting, self._count = [], 0
        return joined


def weighted(batch: Batch, weights: NDArray[np.float64]) -> Batch:
    """Return the batch with weights (B,) of its samples, times those that it has, in `Batch.extras["weight"]`."""
    weights = weights * batch.extras.get("weight", 1)
    return batch._with(bag_size=batch.bag_size, extras={**batch.extras, "weight": weights.astype(np.float32)})
