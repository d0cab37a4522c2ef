"""Drop inputs at random: the control that every way of dropping inputs has to beat.

Slipstream (https://arxiv.org/abs/2404.04270) drops inputs whose rows have stopped moving. A run that drops as many at
random shows how well it chose.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive import Batch, Policy, RowStats, SkipRule, TierView
from adaptive.policies.samples import Refill, check_range, check_state


class RandomDrop(Policy):
    """A row is worth its lookups so far. The skip rule drops a random share of every batch.

    Args:
        share: of the inputs to drop; skipping must be switched on (`SkipConfig`).
        seed: of the random choice.
    """

    order = ("accesses",)

    def __init__(self, *, share: float = 0.1, seed: int = 0) -> None:
        self.rule = Drop(share=share, seed=seed)

    def score(self, rows: RowStats) -> NDArray[np.int64]:
        return rows.accesses


class Drop(SkipRule):
    """Drop the same random share of every batch; the other inputs train in full batches.

    Args:
        share: of the inputs to drop, exact to the input, so that a run can repeat the share of another one. Inputs that
            fill no batch at the end are dropped, too.
        seed: of the random choice.

    Attributes:
        seen_inputs, dropped_inputs: samples read and dropped so far.
    """

    drops_inputs = True
    watches = asks = False
    at_most = 1
    warmup = 0

    def __init__(self, *, share: float = 0.1, seed: int = 0) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"share={share}: expected at least 0 and less than 1")
        check_range(0, seed=seed)
        self.share, self.seed = share, seed
        self.seen_inputs = self.dropped_inputs = 0

    def visits(self, rows: RowStats) -> NDArray[np.int64]:
        return np.ones(len(rows), np.int64)

    def arrange(self, batches: Iterator[Batch], view: TierView) -> Iterator[Batch]:
        refill = Refill()
        for batch in batches:
            # Seeded by position, so that a resumed run continues as the saved one would have.
            order = np.random.default_rng([self.seed, self.seen_inputs]).permutation(batch.num_samples)
            share, first = self.share * self.allowance, self.seen_inputs
            self.seen_inputs += batch.num_samples
            count = _num_dropped(self.seen_inputs, share) - _num_dropped(first, share)
            self.dropped_inputs += count
            yield from refill.add(batch, order >= count)
        if refill.filled:  # the few inputs of a small last batch would weigh too much
            self.dropped_inputs += refill.num_waiting
        else:
            yield from refill.rest()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"inputs": np.array([self.seen_inputs, self.dropped_inputs])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        check_state(self, state, "inputs")
        self.seen_inputs, self.dropped_inputs = (int(number) for number in state["inputs"])


def _num_dropped(num_inputs: int, share: float) -> int:
    """Number of the first `num_inputs` inputs that are dropped."""
    return int(share * num_inputs * (1 + 2**-50))  # 31 / 55 * 55 is a little less than 31
