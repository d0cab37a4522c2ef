"""`Batch`: what a reader yields and a model trains on. Arrays only, no torch, so that policies can rearrange it.

Letters: B samples, F features, N look-ups (ids) of all features together, D dense inputs.

The layout is *feature-major*: bag `f * B + b` holds the ids of feature `f` of sample `b`, namely
`ids[offsets[f * B + b] : offsets[f * B + b + 1]]`; bags may be empty.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive.batch.named import Columns, columns_of, columns_of_keyed_jagged, refuse_masked
from adaptive.errors import InputError

Scalar = TypeVar("Scalar", bound=np.generic)
Samples = NDArray[np.int64]

NO_SAMPLES: Final = "expected a batch with samples, got one without. Leave empty batches out."
_UNSHARED: Final = "_is_unshared"


@dataclass(frozen=True)
class Origin:
    """Where each sample came from: `files[file_index[b]]`, line `lines[b]` (1 = first line)."""

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
    """One batch of samples.

    Arrays must not be changed after the batch is made: the look-ahead thread and the training thread share them. A
    loader may reuse its own arrays all the same: `Batch.of` copies them, and a look-ahead copies any other batch.

    Parts and held-back samples are wishes of a policy's `arrange` (`dataclasses.replace(batch, part_sizes=...)`), for
    the training loop to fulfil; batches that are taken or put together from this one have none.

    Raises:
        ValueError: if lengths disagree, offsets do not start at 0, fall, or end elsewhere than at N, or the sizes of
            parts are not above 0 with the sum B.
    """

    dense: NDArray[np.float32]  # (B, D), D may be 0
    ids: NDArray[np.int64]  # (N,)
    offsets: NDArray[np.int64]  # (F * B + 1,)
    labels: NDArray[np.float32]  # (B,)
    weights: NDArray[np.float32] | None = None  # (N,) per-sample weights of look-ups, or none
    origin: Origin | None = field(default=None, compare=False)
    part_sizes: tuple[int, ...] = ()
    """Samples of each part, in order, to be run through the model part by part for one step, where the first can start
    before all rows have come (see `Planned.parts`); empty: all at once."""
    held_back: "Batch | None" = field(default=None, repr=False)
    """Samples on which the loss is wanted once this batch is trained (`Policy.observe`); they are not trained here."""
    features: tuple[str, ...] = ()
    """(F,) names, which tables check and put in their own order; empty: the order is that of the tables' features."""
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Whatever else belongs to samples (B, ...): sample weights, further labels. They go wherever their samples go."""

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
        """A batch of features by name: `Batch.of(user=ids, tags=(values, offsets), labels=clicks)`.

        Each feature is one of these, as arrays, tensors or columns of a data frame:

            (B,)                          one id for each sample
            (B, L)                        L ids for each sample
            [[1, 2], [], [3]]             a list of B lists or arrays of ids; a column of such, too
            (values, offsets)             values (n,), offsets (B + 1,), or (B,) as `torch.nn.EmbeddingBag` takes them
            (values, offsets, weights)    the same with a weight for each look-up (n,), for pooling "sum" or "none"

        Args:
            features: by name, where a name is no Python word; others go as keyword arguments.
            dense: (B, D), or (B,) for one input; default: none.
            labels: (B,); default: NaN, so that nothing is trained on labels which were forgotten.
            extras: name -> (B, ...), see the attribute.

        Order does not matter: tables take features by name. Everything is copied, so a loader may reuse its arrays.

        A tuple of single ids, as `zip(*rows)` gives it, is one id for each sample.

        Raises:
            InputError: for a value that is none of these; lengths that disagree; dense inputs, labels, weights and
                extras that are not booleans, integers or floats, or do not fit float32; masked values.
        """
        twice = sorted({*(features or {})} & {*more_features})
        if twice:
            raise InputError(f"features given twice: {', '.join(twice)}")
        named = {**(features or {}), **more_features}
        return cls._of_columns(columns_of(named, dense, labels, extras), named)

    @classmethod
    def from_keyed_jagged(
        cls, jagged: Any, *, dense: Any = None, labels: Any = None, extras: Mapping[str, object] | None = None
    ) -> "Batch":
        """A batch of a TorchRec `KeyedJaggedTensor`, or of what has its methods keys, values, lengths, weights_or_none.

        Raises:
            InputError: if it has not, or lengths disagree. The other arguments are those of `of`.
        """
        return cls._of_columns(columns_of_keyed_jagged(jagged, dense, labels, extras), jagged.keys())

    @classmethod
    def _of_columns(cls, columns: Columns, names: Iterable[str]) -> "Batch":
        arrays = {item.name: getattr(columns, item.name) for item in fields(columns)}
        return cls(**arrays, features=tuple(names)).mark_unshared()

    def mark_unshared(self) -> Self:
        """The batch itself, which declares that nothing else writes its arrays: `unshared` need not copy them."""
        self.__dict__[_UNSHARED] = True  # in no field, so that `replace` with other arrays forgets it
        return self

    def unshared(self) -> Self:
        """The batch itself if it is marked so, else a copy with arrays that nothing else writes."""
        if _UNSHARED in self.__dict__:
            return self
        copied = copy(self)
        arrays = {name: value.copy() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        copied.__dict__.update(arrays, extras={name: array.copy() for name, array in self.extras.items()})
        if self.origin is not None:
            copied.__dict__["origin"] = self.origin.take(np.arange(self.num_samples))
        return copied.mark_unshared()

    def __post_init__(self) -> None:
        _check("dense", self.dense, np.float32, 2)
        _check("ids", self.ids, np.int64, 1)
        _check("offsets", self.offsets, np.int64, 1)
        _check("labels", self.labels, np.float32, 1)
        num_samples = len(self.labels)
        if len(self.dense) != num_samples:
            raise ValueError(f"batch: {num_samples} labels but {len(self.dense)} dense rows")
        num_bags = len(self.offsets) - 1
        if num_bags < 0 or (num_samples and num_bags % num_samples) or (not num_samples and num_bags):
            raise ValueError(f"batch: {len(self.offsets)} offsets are not features x {num_samples} samples + 1")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.ids):
            raise ValueError(
                f"batch: offsets must run from 0 to {len(self.ids)} (number of ids), "
                f"found {self.offsets[0]} to {self.offsets[-1]}"
            )
        falls = np.flatnonzero(self.offsets[1:] < self.offsets[:-1])
        if len(falls):
            raise ValueError(f"batch: offsets fall at position {falls[0] + 1}; each must be >= the one before")
        if self.weights is not None:
            _check("weights", self.weights, np.float32, 1)
            if len(self.weights) != len(self.ids):
                raise ValueError(f"batch: {len(self.ids)} ids but {len(self.weights)} weights")
        if self.features and len(self.features) * num_samples != num_bags:
            raise ValueError(f"batch: {len(self.features)} names but {self.num_features} features")
        for name, array in self.extras.items():
            if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != num_samples:
                raise ValueError(f"batch: extras[{name!r}] must be an array of {num_samples} samples")
            refuse_masked(f"batch: extras[{name!r}]", array)
            if array.dtype.kind not in "biuf":
                raise ValueError(f"batch: extras[{name!r}] must hold numbers, found {array.dtype}")
        if self.part_sizes and (min(self.part_sizes) < 1 or sum(self.part_sizes) != num_samples):
            raise ValueError(f"batch: parts of {self.part_sizes} samples do not make up a batch of {num_samples}")

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    @property
    def num_features(self) -> int:
        return (len(self.offsets) - 1) // max(self.num_samples, 1)

    @cached_property
    def one_each(self) -> bool:
        """Every bag holds exactly one id."""
        return len(self.ids) == len(self.offsets) - 1 and bool((self.offsets[1:] - self.offsets[:-1] == 1).all())

    def feature_span(self, feature: int) -> slice:
        """Where the look-ups of one feature stand in `ids` and `weights`."""
        first = feature * self.num_samples
        return slice(int(self.offsets[first]), int(self.offsets[first + self.num_samples]))

    def num_lookups(self, feature: int) -> int:
        """Look-ups of one feature."""
        span = self.feature_span(feature)
        return int(span.stop - span.start)

    def take(self, samples: NDArray[np.int64]) -> "Batch":
        """The batch of the given samples, in the given order.

        Raises:
            ValueError: if a sample is not one of 0 to B - 1.
        """
        if len(samples) and not 0 <= samples.min() <= samples.max() < self.num_samples:
            raise ValueError(f"samples {samples.min()} to {samples.max()} of a batch that has {self.num_samples}")
        offsets, picks = self._lookups_of(samples)
        return Batch(
            dense=self.dense.take(samples, axis=0),
            ids=self._pick(self.ids, samples, picks),
            offsets=offsets,
            labels=self.labels[samples],
            weights=None if self.weights is None else self._pick(self.weights, samples, picks),
            origin=None if self.origin is None else self.origin.take(samples),
            features=self.features,
            extras={name: array[samples] for name, array in self.extras.items()},
        ).mark_unshared()

    def reordered(self, order: Sequence[int]) -> "Batch":
        """The batch with its features in another order: `order[i]` is the present position of feature i."""
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
        """Offsets of the samples' bags, and which look-ups fill them; None: one look-up for each bag."""
        if self.one_each:
            same = len(samples) == self.num_samples and _UNSHARED in self.__dict__
            return self.offsets if same else np.arange(self.num_features * len(samples) + 1), None
        bags = (np.arange(self.num_features)[:, None] * self.num_samples + samples[None, :]).ravel()
        starts = self.offsets[bags]
        sizes = self.offsets[bags + 1] - starts
        offsets = np.zeros(len(bags) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        picks = np.repeat(starts - offsets[:-1], sizes)
        picks += np.arange(len(picks))
        return offsets, picks

    def _pick(self, values: NDArray[Scalar], samples: Samples, picks: Samples | None) -> NDArray[Scalar]:
        """Of the values (N,) of all look-ups those of the samples."""
        if picks is None:  # a row of samples for each feature: one gather instead of one index for each look-up
            return values.reshape(self.num_features, self.num_samples).take(samples, axis=1).reshape(-1)
        return values[picks]


def one_hot_batch(
    dense: NDArray[np.float32], ids: NDArray[np.int64], labels: NDArray[np.float32], origin: Origin | None = None
) -> Batch:
    """The batch in which every bag holds exactly one id; `ids` is (B, F), sample-major as files are."""
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
        raise ValueError(f"batch: {name} must be a {np.dtype(dtype)} array of {ndim} dimension(s), found {kind}")
    refuse_masked(f"batch: {name}", array)
    if not array.flags.c_contiguous:
        raise ValueError(f"batch: {name} must be C-contiguous; pass numpy.ascontiguousarray({name})")


def in_order(batch: object, features: Sequence[str]) -> object:
    """A batch with its features in this order, if it has names; anything else as it is.

    Raises:
        InputError: if it lacks a feature, has another, or has no samples.
    """
    if not isinstance(batch, Batch) or not batch.features or batch.features == tuple(features):
        return batch
    places = {name: position for position, name in enumerate(batch.features)}
    lacking = [name for name in features if name not in places]
    unknown = [name for name in batch.features if name not in set(features)]
    if lacking or unknown or len(places) < len(batch.features):
        raise InputError(
            f"a batch has the features {', '.join(batch.features)}; the tables have {', '.join(features)}"
            + (f"; it lacks {', '.join(lacking)}" if lacking else "")
            + (f"; no table has {', '.join(unknown)}" if unknown else "")
        )
    return batch.reordered([places[name] for name in features])


def as_batch(value: object) -> Batch:
    """The argument itself, if it is a batch.

    Raises:
        InputError: if it is something else.
    """
    if not isinstance(value, Batch):
        raise InputError(f"needed an adaptive.Batch, found {type(value).__name__}; see adaptive.Batch.of")
    return value
