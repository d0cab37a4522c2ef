"""The built-in stream of click data, and the teacher that labels it.

Both are seeded and stateless, with known probabilities. Every value is a function of (seed, sample index, feature), so
any block of samples can be made anywhere, any number of times, and memory does not grow with samples or rows.

The popularity of ids follows a bounded Zipf-Mandelbrot law, weight (rank + 1 + q)^-s, inverted analytically, so that a
draw costs one power and no memory for any table size. Two properties of real logs are added to this smooth law: a very
frequent default id in some features (the missing value), and many ids that occur once.

The teacher computes the probability of a click from a sample's ids and dense inputs:

    logit = bias + main + interactions + dense

main: one effect per id. interactions: inner products of two-number factors of the ids of some pairs of features.
dense: linear terms, sin(1.5 x1), x2 x3, abs(x4), and dense inputs times effects of ids. A bag of several ids counts
with the sum of their effects, as pooling sums their rows. Each of the three parts is scaled to the spread of the
setting. Then bias and a common scale are solved for, so that every seed and every shape has the same share of clicks
(`positive_rate`) and the same AUC of the best possible predictor. Terms of dense inputs or pairs of features that do
not exist are omitted.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from adaptive.batch import Batch
from adaptive.data.data_options import DataOptions, KeysConfig, SyntheticConfig
from adaptive.data.dataset import DAY, Dataset, Feature
from adaptive.data.kernels import synthetic as kernels
from adaptive.data.kernels.synthetic import FIELD, hashed, uniform
from adaptive.data.rows.batcher import Hashed, Keyed, RowMap
from adaptive.data.rows.parallel_reader import side_by_side
from adaptive.errors import ConfigError, InputError
from adaptive.system import usable_cores

# Distinct values per categorical column of Criteo's Kaggle data set, C1 to C26.
CRITEO_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
NUM_DEFAULT_FIELDS = 6  # of 26: features in which a share of the lookups goes to id 0, as for a missing value
DEFAULT_SHARE = 0.3
CORRELATION = 0.5  # of the popularity of a sample's ids: if it were higher, more samples would have popular ids only


@dataclass(frozen=True)
class Popularity:
    """The law of popularity: bounds of its exponent, and the largest share of a feature's lookups for singletons."""

    least_exponent: float
    largest_exponent: float
    singleton_lookups: float


# Of 400,000 skewed samples, 79 to 81% look up rows of the hottest 7% only, and 74 to 75% rows that FAE's rule, a
# threshold for the share of a table's lookups, finds for as much memory (seeds 0 to 2). FAE has 76% at 6.8% in Criteo
# Kaggle. Under the other law it is 18 to 21%.
SKEWED = Popularity(1.34, 1.46, singleton_lookups=0.01)
SMOOTH = Popularity(0.85, 1.2, singleton_lookups=0.1)


class KeyedNumbers:
    """A reproducible stream of numbers in (0, 1), for a seed and a name."""

    def __init__(self, seed: int, name: str) -> None:
        self._key = key_of(seed, name)
        self._next = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * float(unwrap(uniform)(self.key()))

    def integer(self, bound: int) -> int:
        """Return an integer in [0, bound)."""
        return min(int(self.uniform() * bound), bound - 1)

    def key(self) -> np.uint64:
        self._next += 1
        return _hashed(self._key, self._next)

    def weight(self) -> float:
        """Return 0.3 + Gamma(1, 1): most weights are small, some are large."""
        return 0.3 - math.log(self.uniform())


def key_of(seed: int, name: str) -> np.uint64:
    """Return the key of a named stream of hashes."""
    key = _hashed(np.uint64(0), seed)
    for letter in name.encode():
        key = _hashed(key, letter)
    return key


def _hashed(key: np.uint64, value: int) -> np.uint64:
    """Return `hashed` as plain Python: a kernel takes longer to load than the few numbers here."""
    with np.errstate(over="ignore"):
        return np.uint64(unwrap(hashed)(key, value))


def cardinalities(tables: int) -> list[int]:
    """Return Criteo Kaggle's cardinalities, repeated after C26; the third one is large."""
    return [CRITEO_KAGGLE[table % len(CRITEO_KAGGLE)] for table in range(tables)]


def table_sizes(rows: int, tables: int = len(CRITEO_KAGGLE)) -> list[int]:
    """Return `cardinalities(tables)` scaled to the exact sum `rows`.

    Tables up to `keep_size(rows, tables)` keep their size; larger ones become max(keep_size, share * size).
    """
    keep, full = keep_size(rows, tables), cardinalities(tables)
    low, high = 0.0, 2.0 * rows / max(full)
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(_scaled(full, middle, keep)) <= rows else (low, middle)
    sizes = _scaled(full, low, keep)
    sizes[int(np.argmax(sizes))] += rows - sum(sizes)
    return sizes


def keep_size(rows: int, tables: int = len(CRITEO_KAGGLE)) -> int:
    """Return the size up to which tables are not scaled.

    It is 20,000, or less if the mean table is below 38,462 rows. So tables up to this size take at most 52% of the
    rows.
    """
    return min(20_000, rows * len(CRITEO_KAGGLE) // (50 * tables))


def large_fields(config: SyntheticConfig) -> NDArray[np.bool_]:
    """Return (F,) True for fields whose table was scaled."""
    return np.array(cardinalities(config.tables)) > keep_size(config.rows, config.tables)


def popularity_of(config: SyntheticConfig) -> Popularity:
    """Return the law of a setting."""
    return SKEWED if config.setting == "skewed" else SMOOTH


def make_fields(config: SyntheticConfig) -> NDArray[np.void]:
    """Return the `FIELD` records (F,) that the kernels read."""
    fields = np.zeros(config.tables, FIELD)
    fields["size"] = table_sizes(config.rows, config.tables)
    fields["inverse"] = 1.0 / fields["size"]
    fields["common"] = CORRELATION
    fields["single"] = math.sqrt(1.0 - CORRELATION**2)
    _set_keys(fields, config.seed)
    _set_singletons(fields, config)
    _set_popularity(fields, config)
    _set_layout(fields, config)
    if config.new_ids:
        keys = KeyedNumbers(config.seed, "new ids")
        fields["id_key"] = [keys.key() for _ in fields]
        fields["life"] = np.where(large_fields(config), round(config.num_train / config.days / config.new_ids), 0)
    return fields


def _scaled(full: list[int], share: float, keep: int) -> list[int]:
    return [size if size <= keep else max(keep, int(share * size)) for size in full]


def _set_keys(fields: NDArray[np.void], seed: int) -> None:
    stream = KeyedNumbers(seed, "keys")
    for field in fields:
        for name in ("draw_key", "main_key", "product_key", "drift_key"):
            field[name] = stream.key()
        field["factor_key"] = (stream.key(), stream.key())


def _set_singletons(fields: NDArray[np.void], config: SyntheticConfig) -> None:
    """Give each singleton one place in a period as long as the training stream."""
    bits = max((config.num_train * config.lookups - 1).bit_length(), 4)
    share = np.minimum(config.singleton_share * fields["size"], popularity_of(config).singleton_lookups * 2**bits)
    fields["singletons"] = np.where(large_fields(config), share.astype(np.int64), 0)
    fields["popular"] = fields["size"] - fields["singletons"]
    fields["period"] = 2**bits
    fields["half"] = (bits + 1) // 2


def _set_popularity(fields: NDArray[np.void], config: SyntheticConfig) -> None:
    """Draw q ~ U(0, 3) and the exponent s, but not within .01 of the inverse's pole at 1."""
    law, stream = popularity_of(config), KeyedNumbers(config.seed, "popularity")
    for field in fields:
        s, q = stream.uniform(law.least_exponent, law.largest_exponent), stream.uniform(0.0, 3.0)
        if abs(s - 1.0) < 0.01:
            s = 1.0 + math.copysign(0.01, s - 1.0)
        a = 1.0 - s
        low, high = (1.0 + q) ** a, (field["popular"] + 1.0 + q) ** a
        field["low"], field["span"], field["power"], field["shift"] = low, high - low, 1.0 / a, 1.0 + q


def _set_layout(fields: NDArray[np.void], config: SyntheticConfig) -> None:
    """Scatter popular ids over the table; the default id is 0."""
    stream = KeyedNumbers(config.seed, "layout")
    count = round(NUM_DEFAULT_FIELDS * config.tables / len(CRITEO_KAGGLE))
    with_default = np.argsort([stream.uniform() for _ in fields])[:count]
    for index, field in enumerate(fields):
        size = int(field["size"])
        stride = stream.integer(size) + 1
        while math.gcd(stride, size) > 1:
            stride += 1
        field["stride"] = stride
        field["offset"] = stream.integer(size)
        if index in with_default:
            field["default_limit"] = round(DEFAULT_SHARE * 2**32)
            field["offset"] = 0


BAYES_AUC = 0.8
NUM_PRODUCTS = 3
CURVE_WEIGHT = 0.5  # of the three curved terms; the linear ones have a total spread of 0.7
POOLED = 20  # samples, neighbors by signal, that are averaged into one while solving, for speed
PRODUCT_WEIGHT = 0.35
LINEAR_SPREAD = 0.7


@dataclass(frozen=True)
class Setting:
    """Spreads of the three parts of the logit before scaling, and number of interactions."""

    main: float
    interactions: float
    dense: float
    num_pairs: int
    large_weight: float  # of fields with large tables, whose rare ids cannot be learned


EASY = Setting(main=0.8, interactions=0.35, dense=0.7, num_pairs=8, large_weight=0.3)
SETTINGS = {
    "easy": EASY,
    "skewed": EASY,
    "hard": Setting(main=0.45, interactions=0.8, dense=0.7, num_pairs=12, large_weight=0.4),
}
LARGE_PAIRS = 0.2  # share of the pairs that hold a field with a large table


@dataclass(frozen=True)
class Teacher:
    """The weights of the terms; `signal` computes the three parts before scaling."""

    fields: NDArray[np.void]  # (F,)
    main: NDArray[np.float64]  # (F,)
    pairs: NDArray[np.void]  # (P,)
    linear: NDArray[np.float64]  # (D,)
    curved: NDArray[np.float64]  # (3,)
    products: NDArray[np.void]

    def signal(self, ids: NDArray[np.int64], dense: NDArray[np.float32], first_drifted: int) -> NDArray[np.float64]:
        """Return the parts (3, B) of the logits for ids (F, B, L) and dense inputs (B, D)."""
        parts = np.zeros((3, len(dense)))
        kernels.add_main(self.fields, self.main, first_drifted, ids, parts[0])
        kernels.add_pairs(self.fields, self.pairs, first_drifted, ids, parts[1])
        kernels.add_dense(self.linear, self.curved, dense, parts[2])
        kernels.add_products(self.fields, self.products, first_drifted, ids, dense, parts[2])
        return parts


@dataclass(frozen=True)
class Calibration:
    """The bias and gains of a logit: bias + gains . parts."""

    bias: float
    gains: NDArray[np.float64]  # (3,)

    def probability(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability of a click, (B,), for the parts of the logit (3, B)."""
        main, interactions, dense = self.gains
        logit = self.bias + main * parts[0] + interactions * parts[1] + dense * parts[2]
        return np.asarray(expit(logit), np.float64)


def make_teacher(config: SyntheticConfig, fields: NDArray[np.void]) -> Teacher:
    """Draw the weights of a seed."""
    setting = SETTINGS[config.setting]
    stream = KeyedNumbers(config.seed, "teacher")
    damping = np.where(large_fields(config), setting.large_weight, 1.0)
    # New ids have to matter, as users and items do, or forgetting and collisions would cost nothing.
    main = np.array([stream.weight() for _ in fields]) * (1.0 if config.new_ids else damping)
    linear = np.array([stream.uniform(-1.0, 1.0) for _ in range(config.num_dense)])
    return Teacher(
        fields=fields,
        main=main,
        pairs=_draw_pairs(stream, setting.num_pairs, damping),
        linear=linear * (LINEAR_SPREAD / np.linalg.norm(linear)) if len(linear) else linear,
        curved=np.full(3, CURVE_WEIGHT),
        products=_draw_products(stream, damping, config.num_dense),
    )


def calibrate(config: SyntheticConfig, parts: NDArray[np.float64]) -> Calibration:
    """Solve for the share of clicks and Bayes AUC on the parts (3, B) of samples without drift.

    B must be a multiple of `POOLED`. The result is rounded, since its last bits depend on the width of a machine's
    vector sums, and the stream must not.
    """
    setting = SETTINGS[config.setting]
    spread = parts.std(axis=1)
    gains = np.array([setting.main, setting.interactions, setting.dense]) / np.where(spread > 0, spread, np.inf)
    signal = np.sort(gains @ parts).reshape(-1, POOLED).mean(axis=1)

    def auc(scale: float) -> float:
        scaled = signal * scale
        return bayes_auc(np.asarray(expit(scaled + _solve_bias(scaled, config.positive_rate)), np.float64))

    scale = brentq(lambda scale: auc(scale) - BAYES_AUC, 0.01, 100.0, xtol=1e-6)
    return Calibration(
        bias=round(_solve_bias(signal * scale, config.positive_rate), 6), gains=np.round(gains * scale, 6)
    )


def bayes_auc(probability: NDArray[np.float64]) -> float:
    """Return the expected AUC of `probability`, ascending (B,), if labels are drawn from it.

    A sample counts as a click with weight p and as a non-click with weight 1 - p, so there is no noise of labels.
    """
    nulls = 1.0 - probability
    nulls_below = np.cumsum(nulls) - 0.5 * nulls
    return float(probability @ nulls_below / (probability.sum() * nulls.sum()))


def _solve_bias(signal: NDArray[np.float64], rate: float) -> float:
    """Return the bias for which the mean probability is `rate`."""
    span = 10.0 + float(np.abs(signal).max())
    return float(brentq(lambda bias: float(expit(signal + bias).mean()) - rate, -span, span, xtol=1e-6))


def _draw_pairs(stream: KeyedNumbers, count: int, damping: NDArray[np.float64]) -> NDArray[np.void]:
    """Draw up to `count` distinct pairs of fields; one in five has one large table."""
    large, small = np.flatnonzero(damping < 1.0), np.flatnonzero(damping == 1.0)
    num_large = min(round(LARGE_PAIRS * count), len(small) * len(large))
    num_small = min(count - round(LARGE_PAIRS * count), len(small) * (len(small) - 1) // 2)
    chosen: dict[tuple[int, int], float] = {}
    while len(chosen) < num_large + num_small:
        others = large if len(chosen) < num_large else small
        first, second = int(small[stream.integer(len(small))]), int(others[stream.integer(len(others))])
        pair = (min(first, second), max(first, second))
        if first != second and pair not in chosen:
            chosen[pair] = stream.weight() * damping[first] * damping[second]
    return np.array([(*pair, weight) for pair, weight in chosen.items()], kernels.PAIR)


def _draw_products(stream: KeyedNumbers, damping: NDArray[np.float64], num_dense: int) -> NDArray[np.void]:
    small = np.flatnonzero(damping == 1.0)
    return np.array(
        [
            (stream.integer(num_dense), int(small[stream.integer(len(small))]), PRODUCT_WEIGHT)
            for _ in range(NUM_PRODUCTS if num_dense else 0)
        ],
        kernels.PRODUCT,
    )


DEFAULT_ROWS: Final[int] = DataOptions.model_fields["hash_rows"].default
GENERATOR = 2  # increase it when the same settings give other samples
LATENT_CORRELATION = 0.8  # of the first dense input with the sample's latent number
CALIBRATION_SAMPLES = 200_000  # their Bayes AUC varies by 0.0005, that of a twentieth by 0.0022
CALIBRATION_VALUES = 10_000_000  # maximum lookups and dense inputs in them, but at least a twentieth of the samples
BLOCK = 8192  # samples made at a time while calibrating, so that they stay in the cache


def open_synthetic(paths: str, options: DataOptions, run_dir: Path | None) -> "Synthetic":
    """Open the data set `synthetic`."""
    if options.synthetic.new_ids:
        options.refuse("data synthetic:", ("vocabulary",), "new ids cannot be fitted before they appear")
    else:
        options.refuse("data synthetic:", ("keys",), "ids are rows without data.synthetic.new_ids")
    return Synthetic(options.synthetic, options.keys or options.hash_rows, options.threads())


class Synthetic(Dataset):
    """The stream of a `SyntheticConfig`: features C1, C2, ... and dense inputs I1, I2, ...

    Samples [0, num_train) are the training part, the same in every epoch. The evaluation part follows them, after the
    drift if there is one. `positive_rate` and Bayes AUC 0.80 hold before the drift.

    Args:
        new_ids: with `config.new_ids`, the rules of the tables whose ids change, or the rows into which ids are hashed.
        threads: number of threads that make batches; they are the same for any number.
    """

    def __init__(
        self,
        config: SyntheticConfig | None = None,
        new_ids: KeysConfig | int = DEFAULT_ROWS,
        threads: int = 1,
    ) -> None:
        self.config = config or SyntheticConfig()
        self._threads = threads
        self.num_dense = self.config.num_dense
        self._fields = make_fields(self.config)
        self._quantiles = np.empty(kernels.QUANTILES + 1)
        self._curves = np.empty((len(self._fields), kernels.CELLS + 1))
        kernels.fill_quantiles(self._quantiles)
        kernels.fill_ranks(self._fields, self._curves)
        self._map: RowMap = Hashed(new_ids) if isinstance(new_ids, int) else Keyed(new_ids.capacity)
        self._changing = np.flatnonzero(self._fields["life"])
        sizes = [self._map.num_embeddings if field["life"] else int(field["size"]) for field in self._fields]
        self.features = tuple(Feature(f"C{f + 1}", size) for f, size in enumerate(sizes))
        if self.config.lookups > 1:
            self.bags = tuple(feature.name for feature in self.features)
        if not isinstance(new_ids, int):
            self.key_rules = {self.features[f].name: new_ids.rules for f in self._changing}
        else:
            self.hash_rows = {self.features[f].name: new_ids for f in self._changing}
        self._latent_key = key_of(self.config.seed, "latent")
        self._label_key = key_of(self.config.seed, "label")
        self._dense_keys = np.array([key_of(self.config.seed, f"I{d + 1}") for d in range(self.num_dense)], np.uint64)
        self._teacher = make_teacher(self.config, self._fields)
        self._calibration = calibrate(self.config, self._calibration_parts())

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        return self._batches(*self._train_range(), batch_size)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        _, stop = self._train_range()
        return self._batches(stop, stop + self.config.num_eval, batch_size)

    def num_train_samples(self) -> int:
        start, stop = self._train_range()
        return stop - start

    def _train_range(self) -> tuple[int, int]:
        """Return the first training sample, and the one after the last."""
        size, days, day = self.config.num_train, self.config.days, self.config.day
        return (0, size) if day is None else (day * size // days, (day + 1) * size // days)

    def fingerprint(self) -> dict[str, object]:
        settings = self.config.model_dump(mode="json")
        if len(self._changing):
            settings["mapping"] = {"ids": f"{type(self._map).__name__.lower()} {self._map.num_embeddings}"}
        return {"source": "synthetic", "generator": GENERATOR, **settings}

    def samples(self, start: int, stop: int) -> tuple[Batch, NDArray[np.float64]]:
        """Return the samples [start, stop) and their probabilities of a click, float64.

        Raises:
            InputError: if the range is not within the training and evaluation samples.
        """
        if not 0 <= start <= stop <= self.config.num_samples:
            raise InputError(
                f"data.synthetic: expected samples within [0, {self.config.num_samples}), got [{start}, {stop}). Raise "
                "num_train."
            )
        begin = self.config.drift_begin
        first_drifted = stop - start if begin is None else begin - start
        ids, dense = self._inputs(start, stop)
        parts = self._teacher.signal(ids, dense, first_drifted)
        probability = self._calibration.probability(parts)
        labels = np.empty(stop - start, np.float32)
        kernels.draw_labels(self._label_key, start, probability, labels)
        offsets = np.arange(0, ids.size + 1, self.config.lookups)
        extras = dict[str, NDArray[Any]]()
        if len(self._changing):
            self._map_new_ids(ids)
            extras["timestamp"] = np.arange(start, stop) * (DAY * self.config.days / self.config.num_train)
        batch = Batch(dense=dense, ids=ids.reshape(-1), offsets=offsets, labels=labels, extras=extras)
        return batch.mark_unshared(), probability

    def _map_new_ids(self, ids: NDArray[np.int64]) -> None:
        """Replace ids (F, B, L) of changing features by what their tables look up."""
        present = np.ones(ids[0].size, np.bool_)
        for f in self._changing:
            keys = ids[f].ravel()
            self._map.fill(keys.copy(), present, keys)

    def _batches(self, start: int, stop: int, batch_size: int) -> Iterator[Batch]:
        if batch_size < 1:
            raise ConfigError(f"batch_size: expected 1 or more, got {batch_size}. Raise it.")
        ends = ((first, min(first + batch_size, stop)) for first in range(start, stop, batch_size))
        if self._threads == 1:
            return (self.samples(*both)[0] for both in ends)
        return side_by_side((partial(self._one_batch, *both) for both in ends), threads=self._threads, most=1)

    def _one_batch(self, start: int, stop: int) -> Iterator[Batch]:
        yield self.samples(start, stop)[0]

    def _inputs(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids (F, B, L), feature-major like batches, and dense inputs (B, D)."""
        latent = np.empty(stop - start)
        dense = np.empty((stop - start, self.num_dense), np.float32)
        ids = np.empty((len(self._fields), stop - start, self.config.lookups), np.int64)
        kernels.draw_normals(self._latent_key, start, latent)
        if self.num_dense:
            kernels.draw_dense(self._dense_keys, self._quantiles, start, LATENT_CORRELATION, latent, dense)
        lookups = self.config.lookups
        kernels.draw_ids(
            self._fields, self._curves, self._quantiles, start * lookups, lookups,
            np.repeat(latent, lookups), ids.reshape(len(ids), -1),
        )  # fmt: skip
        return ids, dense

    def _calibration_parts(self) -> NDArray[np.float64]:
        """Return the parts of the logits (3, B) of the first samples, without drift."""
        values = self.num_dense + self.config.tables * self.config.lookups
        samples = min(CALIBRATION_SAMPLES, max(CALIBRATION_VALUES // values, CALIBRATION_SAMPLES // 20))
        samples -= samples % POOLED
        parts = np.empty((3, samples))

        def fill(start: int) -> None:
            stop = min(start + BLOCK, samples)
            ids, dense = self._inputs(start, stop)
            parts[:, start:stop] = self._teacher.signal(ids, dense, BLOCK)

        with ThreadPoolExecutor(usable_cores()) as threads:
            list(threads.map(fill, range(0, samples, BLOCK)))
        return parts
