"""`Runtime`: the interface of `TieredEmbeddingBag` for trainers and studies."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from adaptive.embeddings.engine.build import SizedEngine
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.statistics import StatisticsCollector
from adaptive.embeddings.rows_optimizer import RowsOptimizer
from adaptive.policy import TierView, arranges

T = TypeVar("T")


@dataclass(frozen=True)
class Runtime:
    """Parts of one `TieredEmbeddingBag`. All methods are called from the training thread.

    Attributes:
        pipeline: plans batches and moves rows.
        sized: arguments of the tables, and the sizes that follow from them.
        optimizer: keeps gradients and updates rows.
        statistics: counts of trained batches.
        view: the rows as policies see them.
    """

    pipeline: Pipeline
    sized: SizedEngine
    optimizer: RowsOptimizer
    statistics: StatisticsCollector
    view: TierView

    def ask_policy(self, method: str, question: Callable[[], T]) -> T:
        """Call the policy outside of training, for its state for example.

        Raises:
            PolicyError: if it raises; the message contains `method`.
        """
        return self.pipeline.policy_caller.ask(method, question)

    @property
    def may_end_early(self) -> bool:
        """True if batches that were read but not planned can be read again: the policy does not arrange them."""
        return not arranges(self.sized.policy)

    def end_early(self) -> None:
        """Plan no more batches in the running look-ahead. Requires `may_end_early`."""
        assert self.may_end_early
        self.pipeline.ending = True

    def running_out(self, when: str) -> AbstractContextManager[None]:
        """Turn running out of GPU memory inside into a `DeviceMemoryError` that says which `device_rows` would fit."""
        return self.pipeline.running_out(when)
