"""What the parts of `TieredEmbeddingBag` share: the attributes that its constructor sets."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.config import TierConfig
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.rates import RowsOptimizer
from adaptive.embeddings.engine.statistics import StatisticsInterval
from adaptive.embeddings.exchange.exchange import Exchange
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.planning.sizing import Sizes
from adaptive.embeddings.ranks import Ranks
from adaptive.optim import RowOptimizer
from adaptive.policy import Policy


class Base(nn.Module):
    """Attributes of `TieredEmbeddingBag`; it has no other instances."""

    features: tuple[str, ...]
    table_names: tuple[str, ...]
    policy: Policy
    drops_updates: bool
    defers: bool
    _pipeline: Pipeline
    _tier: TierConfig
    _optimizer: RowOptimizer
    _separate: bool
    _sizes: Sizes
    _since: StatisticsInterval
    _rates: RowsOptimizer
    ranks: Ranks | None  # that train together; None: this process alone
    _exchange: Exchange | None
    _failure: BaseException | None  # what ended the loop, to be told to other ranks
    _has_no_samples: bool  # this rank, of the current batch
    _pending: dict[int, Planned]  # batches that gradients have reached and that are not updated yet, by number

    def _send(self, array: NDArray[np.float32]) -> Tensor:
        """The array on the device, without a wait."""
        return self._pipeline.lanes[0].device.send(array)
