"""`ClickPredictor`: a logistic regression over embedding rows, cheap enough for the look-ahead thread."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive.batch import Batch


class ClickPredictor:
    """Predicts the label of each sample from the rows it looks up, and learns from every batch it is shown.

    It has one weight per row, one per dense input, and a bias. The memory of rows that no batch has looked up is not
    allocated. Not thread-safe: use one per look-ahead.

    Args:
        rate: Adagrad learning rate.
    """

    def __init__(self, *, rate: float = 0.05) -> None:
        self.rate = rate
        self._rows = np.zeros((0, 2), np.float32)
        self._dense = np.zeros((0, 2), np.float32)
        self._bias = np.zeros((1, 2), np.float32)

    def residuals(self, batch: Batch, lookups: NDArray[np.int64], num_rows: int) -> NDArray[np.float32]:
        """Return probability minus label of each sample (B,), predicted before the sample is learned from.

        Args:
            batch: with labels from 0 to 1, and as many dense inputs as any batch before.
            lookups: (N,) row of each lookup, aligned with `batch.ids` (`TierView.rows`).
            num_rows: rows of all tables together (`TierView.num_rows`).
        """
        from adaptive.kernels import predictor  # compiled code, which listing policies does not need

        self._rows, self._dense = _grown(self._rows, num_rows), _grown(self._dense, batch.dense.shape[1])
        weights = self._rows, self._dense, self._bias
        residuals = np.empty(batch.num_samples, np.float32)
        inputs = lookups, batch.offsets, batch.dense, batch.labels
        predictor.learn(*inputs, self.rate, *weights, residuals, batch.one_each)
        return residuals

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the arrays from which `load_state_dict` restores the predictor, without rows that never learned."""
        rows = np.flatnonzero(self._rows[:, 1])
        return {"rows": rows, "row_weights": self._rows[rows], "dense_weights": self._dense, "bias": self._bias}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: for a negative row, or weights of another shape.
        """
        rows, weights = state["rows"], state["row_weights"]
        if len(rows) and rows.min() < 0:
            raise ValueError(f"expected rows from 0 on, got {rows.min()}")
        if weights.shape != (len(rows), 2) or state["dense_weights"].shape[1:] != (2,) or state["bias"].shape != (1, 2):
            raise ValueError("expected pairs of a weight and its squared gradients for each row, dense input and bias")
        self._rows = _grown(np.zeros((0, 2), np.float32), int(rows.max()) + 1 if len(rows) else 0)
        self._rows[rows] = weights
        self._dense, self._bias = state["dense_weights"].astype(np.float32), state["bias"].astype(np.float32)


def _grown(pairs: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Return the pairs (n, 2), followed by zeros up to the length."""
    if len(pairs) >= length:
        return pairs
    longer = np.zeros((length, 2), np.float32)  # memory that is not written to is not allocated
    longer[: len(pairs)] = pairs
    return longer
