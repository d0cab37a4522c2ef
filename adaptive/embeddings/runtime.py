"""`Runtime`: what trainers, guards and studies need of `TieredEmbeddingBag`, and a training loop does not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from adaptive.embeddings.distributed import LocalSteps
from adaptive.embeddings.engine.build import Outline
from adaptive.embeddings.engine.pipeline import Pipeline
from adaptive.embeddings.engine.resizing import give_back
from adaptive.embeddings.engine.statistics import StatisticsCollector
from adaptive.embeddings.planning.sizing import FEWER, SHRINK
from adaptive.embeddings.rows_optimizer import RowsOptimizer
from adaptive.policy import TierView, arranges
from adaptive.system import is_out_of_memory

T = TypeVar("T")


@dataclass(frozen=True)
class Runtime:
    """The parts behind the tables, which share one pipeline. All methods are called from the training thread.

    Attributes:
        pipeline: plans batches and moves rows.
        outline: the arguments of the tables, and what follows from them.
        optimizer: keeps gradients and updates rows.
        statistics: counts.
        batch_steps: what is done with a batch, alone or with other ranks.
        view: what policies see of rows.
    """

    pipeline: Pipeline
    outline: Outline
    optimizer: RowsOptimizer
    statistics: StatisticsCollector
    batch_steps: LocalSteps
    view: TierView

    def ask_policy(self, method: str, question: Callable[[], T]) -> T:
        """Ask the policy for something that is not asked in training, such as its state, within its time limit.

        Raises:
            PolicyError: for whatever it raises, or if it does not return; names `method`.
        """
        return self.pipeline.policy_caller.ask(method, question)

    @property
    def may_end_early(self) -> bool:
        """True if batches that were read and not planned can be read again without any change in what is trained: the
        policy leaves them as they come. With ranks, others have been asked for their rows."""
        return self.pipeline.exchange.ranks.is_local and not arranges(self.outline.policy)

    def end_early(self) -> None:
        """Plan no more batches in the running look-ahead; those that are planned still come. Only if
        `may_end_early`."""
        assert self.may_end_early
        self.pipeline.ending = True

    def with_room(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is run again with fewer device rows whenever it runs out of device memory.

        Raises:
            DeviceMemoryError: if no more rows can be given back.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self.make_room()  # outside `except`: the error would keep the attempt's tensors alive

    def make_room(self) -> None:
        """The device ran out of memory in a forward or backward pass: give a tenth of the device rows back and forget
        the current batch's gradients. Then its passes can be run again, with the result that they would have had.

        Raises:
            DeviceMemoryError: if the batches in flight need all rows; the tiers are as they were.
        """
        self.optimizer.discard()
        self.statistics.lose(give_back(self.pipeline, SHRINK, self.outline.tier.held_rows))
        self.statistics.resize(FEWER)
