"""The teacher of the synthetic stream: how probable a click is, given a sample's ids and dense inputs.

    logit = bias + main + interactions + dense

main: one effect per id. interactions: inner products of two-number factors of the ids of some pairs of features.
dense: linear terms, sin(1.5 x1), x2 x3, abs(x4), and dense inputs times effects of ids. A bag of several ids counts
with the sum of their effects, as pooling sums their rows. Each of the three parts is scaled to the spread that the
setting names; then bias and the scale of all three are solved for, so that every seed and every shape has the same
click-through rate and the same AUC of the best possible predictor. Terms of dense inputs or pairs of features that a
shape does not have are left out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from adaptive.data.kernels import synthetic as kernels
from adaptive.data.synthetic.config import SyntheticConfig
from adaptive.data.synthetic.fields import KeyedNumbers, large_fields

CTR = 0.25
BAYES_AUC = 0.8
NUM_PRODUCTS = 3
CURVE_WEIGHT = 0.5  # of the three curved terms, where the linear ones have a spread of 0.7 together
POOLED = 20  # neighbours in the order of their signals that stand for one sample while solving, for speed
PRODUCT_WEIGHT = 0.35
LINEAR_SPREAD = 0.7


@dataclass(frozen=True)
class Setting:
    """Spreads of the three parts of the logit before the common scale, and how the interactions are made."""

    main: float
    interactions: float
    dense: float
    num_pairs: int
    large_weight: float  # of fields with large tables, so that the tail holds little that nobody can learn


SETTINGS = {
    "easy": Setting(main=0.8, interactions=0.35, dense=0.7, num_pairs=8, large_weight=0.3),
    "hard": Setting(main=0.45, interactions=0.8, dense=0.7, num_pairs=12, large_weight=0.4),
}
LARGE_PAIRS = 0.2  # share of the pairs that hold a field with a large table


@dataclass(frozen=True)
class Teacher:
    """Weights of the terms; `signal` computes the three parts, not yet scaled."""

    fields: NDArray[np.void]  # (F,)
    main: NDArray[np.float64]  # (F,)
    pairs: NDArray[np.void]  # (P,)
    linear: NDArray[np.float64]  # (D,)
    curved: NDArray[np.float64]  # (3,)
    products: NDArray[np.void]

    def signal(self, ids: NDArray[np.int64], dense: NDArray[np.float32], first_drifted: int) -> NDArray[np.float64]:
        """The parts main, interactions, dense of the logits, (3, B), of ids (F, B, L) and dense inputs (B, D)."""
        parts = np.zeros((3, len(dense)))
        kernels.add_main(self.fields, self.main, first_drifted, ids, parts[0])
        kernels.add_pairs(self.fields, self.pairs, first_drifted, ids, parts[1])
        kernels.add_dense(self.linear, self.curved, dense, parts[2])
        kernels.add_products(self.fields, self.products, first_drifted, ids, dense, parts[2])
        return parts


@dataclass(frozen=True)
class Calibration:
    """What turns the parts of a logit into the logit: bias + gains . parts."""

    bias: float
    gains: NDArray[np.float64]  # (3,)

    def probability(self, parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability of a click, (B,), given the parts of the logit (3, B)."""
        main, interactions, dense = self.gains
        logit = self.bias + main * parts[0] + interactions * parts[1] + dense * parts[2]
        return np.asarray(expit(logit), np.float64)


def make_teacher(config: SyntheticConfig, fields: NDArray[np.void]) -> Teacher:
    """Draws the weights of a seed."""
    setting = SETTINGS[config.setting]
    stream = KeyedNumbers(config.seed, "teacher")
    damping = np.where(large_fields(config), setting.large_weight, 1.0)
    main = np.array([stream.weight() for _ in fields]) * damping
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
    """Solves for click-through rate and Bayes AUC on the parts (3, B) of samples without drift.

    B must be a multiple of `POOLED`. The result is rounded: its last bits depend on how wide a machine's vector
    sums are, the stream must not.
    """
    setting = SETTINGS[config.setting]
    spread = parts.std(axis=1)
    gains = np.array([setting.main, setting.interactions, setting.dense]) / np.where(spread > 0, spread, np.inf)
    signal = np.sort(gains @ parts).reshape(-1, POOLED).mean(axis=1)
    scale = brentq(lambda scale: bayes_auc(_click(signal * scale)) - BAYES_AUC, 0.01, 100.0, xtol=1e-6)
    return Calibration(bias=round(_solve_bias(signal * scale), 6), gains=np.round(gains * scale, 6))


def bayes_auc(probability: NDArray[np.float64]) -> float:
    """The expected AUC of predicting `probability`, ascending (B,), when labels are drawn from it.

    A sample counts as a click with weight p and as none with weight 1 - p: no noise of drawn labels.
    """
    nulls = 1.0 - probability
    nulls_below = np.cumsum(nulls) - 0.5 * nulls
    return float(probability @ nulls_below / (probability.sum() * nulls.sum()))


def _click(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(expit(signal + _solve_bias(signal)), np.float64)


def _solve_bias(signal: NDArray[np.float64]) -> float:
    """The bias for which the mean probability is the click-through rate."""
    span = 10.0 + float(np.abs(signal).max())
    return float(brentq(lambda bias: float(expit(signal + bias).mean()) - CTR, -span, span, xtol=1e-6))


def _draw_pairs(stream: KeyedNumbers, count: int, damping: NDArray[np.float64]) -> NDArray[np.void]:
    """Distinct pairs of fields, as many as there are; one in five holds a field with a large table, the others none."""
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
