"""`FeedbackQueue`: measurements of trained batches, for planners and policy.

A batch is planned with the feedback of batches that are a fixed number of batches older, regardless of the timing of
threads. So equal runs make equal decisions, no matter how far each one has looked ahead.
"""

from collections.abc import Callable, Mapping, Sequence

from adaptive.config import SkipConfig
from adaptive.embeddings.planning.plan import Feedback
from adaptive.embeddings.planning.planner import Planner
from adaptive.embeddings.planning.policy_calls import PolicyCaller

LOSS_LAG = 8  # batches before a policy receives a loss, at least: equal decisions for any depth up to this


class FeedbackQueue:
    """Feedback of the training thread, until the owner of the planners takes it in.

    `report` and `report_loss` are called by the training thread. All other methods are called by the owner of the
    planners: the look-ahead thread while it runs, otherwise the training thread.

    Attributes:
        reported: numbers that the policy reports, as of the batch to be planned.
    """

    def __init__(self, planners: Sequence[Planner], policy_caller: PolicyCaller, skip: SkipConfig | None) -> None:
        self._planners, self._policy_caller, self._skip = tuple(planners), policy_caller, skip
        self._feedback: dict[int, list[Callable[[], Feedback]]] = {}
        self._losses: dict[int, float] = {}
        self._learnt = 0  # feedback of all batches before this number has been taken in
        self._observed = 0  # the policy has received the losses of all batches before this number
        self.reported: Mapping[str, float] = {}

    def report(self, number: int, feedback: list[Callable[[], Feedback]]) -> None:
        """Add the functions that return the feedback of batch `number`, one for each group."""
        self._feedback[number] = feedback

    def report_loss(self, number: int, loss: float) -> None:
        """Add the loss on held-back samples, measured after batch `number`."""
        self._losses[number] = loss

    def take_in(self, number: int, depth: int) -> None:
        """Take in the feedback that is old enough; once, before batch `number` is planned."""
        # Feedback first: the rule is asked, and reports are read, with all that may be known for this batch. Otherwise
        # they would be one batch behind.
        self._policy_caller.begin_batch()
        self.take_in_until(number - self.lag(depth))
        self._observe_until(number - max(depth, LOSS_LAG))
        if self._skip is not None and number and number % self._skip.interval == 0:
            for planner in self._planners:
                if planner.skipper is not None:
                    planner.skipper.ask(number)
        self.reported = self._policy_caller.reported_with_next()

    def lag(self, depth: int) -> int:
        """Batches until feedback is taken in."""
        return max(depth, self._skip.feedback_delay if self._skip else 0)

    def take_in_until(self, number: int) -> None:
        """Take in the feedback of all batches before `number`; untrained batches have none."""
        for past in range(self._learnt, number):
            for planner, feedback in zip(self._planners, self._feedback.pop(past, ()), strict=False):
                planner.learn(feedback())
        self._learnt = max(self._learnt, number)

    def take_in_all(self, number: int) -> None:
        """Take in everything from batches before `number`, when none is in flight."""
        self.take_in_until(number)
        self._observe_until(number)

    def restart(self, number: int) -> None:
        """Drop all feedback and count batches from `number` on."""
        self._learnt = self._observed = number
        self._feedback.clear()
        self._losses.clear()

    def _observe_until(self, number: int) -> None:
        """Pass the losses measured after batches before `number` to the policy."""
        for past in range(self._observed, number):
            if (loss := self._losses.pop(past, None)) is not None:
                self._policy_caller.observe(past, loss)
        self._observed = max(self._observed, number)
