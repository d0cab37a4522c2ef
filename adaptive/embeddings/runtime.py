"""`Runtime`: the interface of `TieredEmbeddingBag` for trainers and studies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from adaptive.embeddings.distributed import LocalSteps
from adaptive.embeddings.engine.build import Outline
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.resizing import release_slots
from adaptive.embeddings.engine.statistics import StatisticsCollector
from adaptive.embeddings.planning.sizing import FEWER, SHRINK
from adaptive.embeddings.rows_optimizer import RowsOptimizer
from adaptive.policy import TierView, arranges
from adaptive.system import is_out_of_memory

T = TypeVar("T")


@dataclass(frozen=True)
class Runtime:
    """Parts of one `TieredEmbeddingBag`. All methods are called from the training thread.

    Attributes:
        pipeline: plans batches and moves rows.
        outline: arguments of the tables, and the sizes that follow from them.
        optimizer: keeps gradients and updates rows.
        statistics: counts of trained batches.
        batch_steps: steps of a batch in the training thread, alone or with other ranks.
        view: the rows as policies see them.
    """

    pipeline: Pipeline
    outline: Outline
    optimizer: RowsOptimizer
    statistics: StatisticsCollector
    batch_steps: LocalSteps
    view: TierView

    def ask_policy(self, method: str, question: Callable[[], T]) -> T:
        """Call the policy outside of training, for its state for example, within its time limit.

        Raises:
            PolicyError: if it raises or does not return in time; the message contains `method`.
        """
        return self.pipeline.policy_caller.ask(method, question)

    @property
    def may_end_early(self) -> bool:
        """True if batches that were read but not planned can be read again.

        Not with ranks, which have already requested rows of each other, and not if the policy arranges batches.
        """
        return self.pipeline.exchange.ranks.is_local and not arranges(self.outline.policy)

    def end_early(self) -> None:
        """Plan no more batches in the running look-ahead. Requires `may_end_early`."""
        assert self.may_end_early
        self.pipeline.ending = True

    def with_room(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, repeated with fewer device rows while memory runs out.

        Raises:
            DeviceMemoryError: if no more device rows can be released.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self.make_room()  # outside `except`: the error would keep the attempt's tensors alive

    def make_room(self) -> None:
        """Release a tenth of the device rows after a pass ran out of device memory.

        Also drops the current batch's gradients. Run its passes again: the result is the same as without the error.

        Raises:
            DeviceMemoryError: if the batches in flight need all device rows; then nothing has changed.
        """
        self.optimizer.discard()
        self.statistics.count_evicted(release_slots(self.pipeline, SHRINK, self.outline.tier.held_rows))
        self.statistics.resize(FEWER)
