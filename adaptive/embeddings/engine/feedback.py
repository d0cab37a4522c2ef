"""`FeedbackQueue`: what training reports of its batches, taken in by planners and policy at a fixed age.

A batch is planned with what is known of batches that are so many batches older, whatever threads do when: so equal runs
decide alike, however far either has looked ahead.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.plan import Feedback, UpdateSizes
from adaptive.embeddings.planning.planner import Planner
from adaptive.embeddings.planning.policy_calls import PolicyCaller

LOSS_LAG = 8  # a policy learns of a loss at least so many batches later: equal decisions for any depth up to it


class FeedbackQueue:
    """Feedback of the training thread, until the owner of the planners takes it in.

    Args:
        planners: one for each group.
        policy_caller: of the policy that observes losses.
        skip: settings; None: nothing is skipped.

    Attributes:
        reported: by the policy, with the batch to be planned.
        update_sizes: by then.
    """

    def __init__(self, planners: Sequence[Planner], policy_caller: PolicyCaller, skip: SkipConfig | None) -> None:
        self._planners, self._policy_caller, self._skip = tuple(planners), policy_caller, skip
        self._feedback: dict[int, list[Callable[[], Feedback]]] = {}
        self._losses: dict[int, float] = {}
        self._learnt = 0  # feedback of all batches before this one has been taken in
        self._observed = 0  # the policy knows the losses measured after all batches before this one
        self.reported: Mapping[str, float] = {}
        self.update_sizes = self.current_update_sizes()

    def report(self, number: int, feedback: list[Callable[[], Feedback]]) -> None:
        """From the training thread: how to get what batch `number` did."""
        self._feedback[number] = feedback

    def report_loss(self, number: int, loss: float) -> None:
        """From the training thread: the loss on held-back samples, measured after batch `number`."""
        self._losses[number] = loss

    def take_in(self, number: int, depth: int) -> None:
        """Take in the feedback of exactly the batches that are old enough; once for each batch, before batch `number`
        is planned with this depth."""
        lag = max(depth, self._skip.feedback_delay if self._skip else 0)
        self.take_in_until(number - lag)
        self._observe_until(number - max(depth, LOSS_LAG))
        if self._skip is not None and number and number % self._skip.interval == 0:
            for planner in self._planners:
                if planner.skipper is not None:
                    planner.skipper.ask(number)
        self.reported = self._policy_caller.reported_with_next()
        self.update_sizes = self.current_update_sizes()

    def take_in_until(self, number: int) -> None:
        """Take in the feedback of all batches before `number`. A batch that was not trained left none."""
        for past in range(self._learnt, number):
            for planner, feedback in zip(self._planners, self._feedback.pop(past, ()), strict=False):
                planner.learn(feedback())
        self._learnt = max(self._learnt, number)

    def take_in_all(self, number: int) -> None:
        """All batches before `number` are trained, and none is in flight."""
        self.take_in_until(number)
        self._observe_until(number)

    def restart(self, number: int) -> None:
        """Batches are counted from `number` on."""
        self._learnt = self._observed = number
        self._feedback.clear()
        self._losses.clear()

    def current_update_sizes(self) -> UpdateSizes:
        """A copy, over all groups. For the owner of the planners."""
        trackers = [planner.tracker for planner in self._planners]
        counts, norm_sum = trackers[0].bin_counts.copy(), trackers[0].norm_sum
        for tracker in trackers[1:]:
            counts += tracker.bin_counts
            norm_sum += tracker.norm_sum
        return UpdateSizes(counts, norm_sum)

    @property
    def update_size_edges(self) -> NDArray[np.float32]:
        """(n + 1,) between which sizes of updates are counted."""
        return self._planners[0].tracker.bin_edges

    def _observe_until(self, number: int) -> None:
        """Tell the policy the losses that were measured after batches before `number`."""
        for past in range(self._observed, number):
            if (loss := self._losses.pop(past, None)) is not None:
                self._policy_caller.observe(past, loss)
        self._observed = max(self._observed, number)
