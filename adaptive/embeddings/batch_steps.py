"""`BatchSteps`: a batch in the training thread, from its plan to the update of its rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from adaptive.batch import Batch
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.planned_batch import GroupBatch, Planned
from adaptive.embeddings.planning.lookups import lay_out_bags


class BatchSteps:
    """Steps of a batch in the training thread.

    Attributes:
        failure: the error that ended the loop, if known.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.failure: BaseException | None = None

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Record the error that ends the body; see `TieredEmbeddingBag.reporting_errors`."""
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise

    def planned(self, ready: ReadyBatch) -> Planned:
        """Return the current batch, whose rows are in place or in flight."""
        tiered_groups, parts = self._pipeline.tiered_groups, ready.parts or [()] * len(ready.plans)
        groups = [
            GroupBatch(tiered, plan, device_plan, parts=of_group)
            for tiered, plan, device_plan, of_group in zip(
                tiered_groups, ready.plans, ready.device_plans, parts, strict=True
            )
        ]
        return Planned(ready.batch, groups, self._pipeline.inputs(ready), partial(self._pipeline.wait_for, ready))

    def read(self, batch: Batch) -> Planned:
        """Return a batch that is only read."""
        pipeline = self._pipeline
        batch = pipeline.check(pipeline.take_over(batch))
        pipeline.refuse_keys_in_flight("read()")
        groups = []
        with pipeline.lock:
            for tiered in pipeline.tiered_groups:
                distinct = tiered.find(batch)
                weights, _ = pipeline.values(tiered, distinct.rows)
                if pipeline.convert_read is not None:
                    weights = pipeline.convert_read(weights)
                places = np.arange(len(distinct.rows), dtype=np.int64)
                pooling = lay_out_bags(tiered.group, batch).pooling(distinct.inverse, places)
                groups.append(GroupBatch(tiered, None, pooling=pooling, weights=weights))
        return Planned(batch, groups, pipeline.tiered_groups[0].device.send)

    def update(self, planned: Planned) -> None:
        """Update the rows of a batch from its gradients."""
        number, works = planned.number, planned.works
        # Recorded, so that a loop that ends here is not taken for one left before step().
        with self.reporting_errors(), self._pipeline.lock.changing(f"rows of batch {number} were updated"):
            self._pipeline.feedback.report(number, [group.update() for group in works])
            self._pipeline.updated = number
