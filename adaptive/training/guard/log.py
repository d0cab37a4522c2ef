"""`Log`: every decision with its evidence, handed to the recorder and kept for the summary."""

from dataclasses import asdict, dataclass
from typing import Any

from adaptive.training.guard.account import GuardState
from adaptive.training.guard.adapters import Told
from adaptive.training.guard.fork import Pair
from adaptive.training.guard.judge import Evidence, Outlook
from adaptive.training.guard.schedule import Timing
from adaptive.training.telemetry.jsonl import plain
from adaptive.training.telemetry.record import GuardRecord


@dataclass(frozen=True)
class CheckFindings:
    """What a check found. What could not be measured is None."""

    evidence: Evidence | None = None
    outlook: Outlook | None = None
    share: float | None = None  # skipped meanwhile


NOTHING = CheckFindings()


class Log:
    """The decisions of a guard so far, each recorded when it is made."""

    def __init__(self, recorder: Told, budget: float, timing: Timing) -> None:
        self._recorder, self._budget, self._timing = recorder, budget, timing
        self._decisions: list[GuardRecord] = []

    def write(
        self,
        verdict: str,
        reason: str,
        now: GuardState,
        *,
        trigger: str = "",
        before: float | None = None,
        from_step: int | None = None,
        pair: Pair | None = None,
        found: CheckFindings = NOTHING,
    ) -> None:
        """Record a decision; `now` is the state after it. See `GuardRecord`."""
        evidence, outlook = found.evidence, found.outlook
        record = GuardRecord(
            step=self._recorder.steps,
            verdict=verdict,
            reason=reason,
            trigger=trigger,
            budget=self._budget,
            allowance_before=now.allowance if before is None else before,
            allowance=now.allowance,
            from_step=now.place if from_step is None else from_step,
            fork_steps=now.place - pair.start if pair else 0,
            steps_left=self._timing.left(now.place),
            samples=evidence.samples if evidence else 0,
            skipped_share=found.share,
            auc_difference=evidence.auc if evidence else None,
            auc_difference_ci=evidence.auc_interval if evidence else None,
            log_loss_difference=evidence.log_loss if evidence else None,
            log_loss_difference_ci=evidence.log_loss_interval if evidence else None,
            spent=now.cost_until(pair.start if pair else now.place),
            auc_change=outlook.change if outlook else None,
            auc_change_ci=outlook.interval if outlook else None,
            fork_bytes=pair.num_bytes if pair else 0,
            fork_batches=now.fork_batches + (pair.trained if pair else 0),
            judged_batches=now.judged_batches + (pair.judged if pair else 0),
        )
        self._decisions.append(record)
        self._recorder.write(record)

    def summary(self, now: GuardState) -> dict[str, Any]:
        """For the run's summary."""
        return {
            "guard_allowance": now.allowance,
            "guard_fork_batches": now.fork_batches,
            "guard_judged_batches": now.judged_batches,
            "guard_undone_batches": now.undone_batches,
            "guard_decisions": [plain(asdict(record)) for record in self._decisions],
        }
