"""`PolicyNumbers`: what a policy, and the skip rule beside it, want shown in reports (`reported`)."""

from collections import deque

from adaptive.embeddings.planning.policy_calls.thread import is_users
from adaptive.errors import PolicyError, error_text
from adaptive.policy import Policy


class PolicyNumbers:
    """The numbers of one policy and its rule: as they are now, or as of each batch that the policy arranged.

    Attributes:
        error: the latest error of a number that cannot be had.
    """

    def __init__(self, policy: Policy) -> None:
        self.error: PolicyError | None = None
        self._policy = policy
        self._kept: deque[dict[str, float]] | None = None  # of arranged batches that are to be planned

    @property
    def are_kept(self) -> bool:
        """They come with the batches that the policy arranges, one `keep` for each `take_next`."""
        return self._kept is not None

    @property
    def are_none(self) -> bool:
        """Neither policy nor rule wants anything shown."""
        rule = self._policy.rule
        return not (self._policy.reported or (rule is not None and rule.reported))

    def begin(self, *, kept: bool) -> None:
        """A look-ahead begins; `kept`: the policy arranges its batches."""
        self._kept = deque() if kept else None

    def keep(self, numbers: dict[str, float]) -> None:
        """Keep the numbers as of the next arranged batch."""
        assert self._kept is not None
        self._kept.append(numbers)

    def take_next(self) -> dict[str, float]:
        """Those of the oldest batch of which they are kept."""
        assert self._kept is not None
        return self._kept.popleft()

    def now(self) -> dict[str, float]:
        """As they are now; a rule's names begin with the name of its class, for both may count the same.

        Raises:
            PolicyError: if an attribute is named that is not there, or no number.
        """
        numbers: dict[str, float] = {}
        for kind, one in (("policy", self._policy), ("skip rule", self._policy.rule)):
            if one is None:
                continue
            prefix = f"{type(one).__name__.lower()}." if one is self._policy.rule else ""
            try:
                numbers |= {prefix + name: float(getattr(one, name)) for name in one.reported}
            except BaseException as error:  # an attribute may be code of the policy's
                if is_users(error):
                    raise
                self.error = PolicyError(
                    f"{kind} {type(one).__name__}.reported must name attributes that are numbers: {error_text(error)}"
                )
                raise self.error from error
        return numbers
