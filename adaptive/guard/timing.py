"""`Timing`: how long things take in a run, in batches of its data."""

from dataclasses import dataclass
from typing import Final

from adaptive.config import GuardConfig, TrainConfig
from adaptive.policy import Policy

READ_PER_TRAINED: Final = 10  # batches, at most as a rule, of a policy that drops inputs


@dataclass(frozen=True)
class Timing:
    """Counted from the settings alone, so that decisions count from the same batch whatever the threads do."""

    warmup: int  # before anything is skipped
    steps: int  # of a check
    held_back: int  # judged at the end of a check
    margin: int  # until what is decided can count: the look-ahead may have planned so many
    window: int  # read before the batch that is planned
    total: int | None  # of the run, or None where nobody knows

    @classmethod
    def of(cls, settings: GuardConfig, config: TrainConfig, policy: Policy, total: int | None) -> "Timing":
        """Those of a run."""
        planned = max(config.depth, config.skip.lag if config.skip is not None else 0) + 2
        return cls(
            warmup=max(settings.warmup, policy.warmup, policy.deferral.warmup if policy.deferral else 0),
            steps=settings.steps,
            held_back=-(-settings.holdout // config.batch_size),
            margin=planned * READ_PER_TRAINED if policy.drops_inputs else planned,
            window=0 if policy.drops_inputs else policy.window,
            total=total,
        )

    def left(self, place: int) -> int | None:
        """Batches from `place` to the end of the run."""
        return None if self.total is None else max(self.total - place, 0)

    @property
    def check(self) -> int:
        """Batches of a check, with half of what it wants to hold back: fewer do not suffice."""
        return self.steps + self.held_back // 2

    def too_late(self, place: int) -> bool:
        """A check that begins at batch `place` would not come to its end."""
        left = self.left(place)
        return left is not None and left < self.check
