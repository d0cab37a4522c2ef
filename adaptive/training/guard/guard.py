"""`Guard`: decisions after each batch of a run; see the package.

    batches  warm-up        steps                  margin
    run      skips nothing  skips                  skips       passed: continues; the next check comes after `every`
    fork     -              skips nothing  judged  (failed)            batches, or when `Triggers` requests it
                                                               failed: takes over the fork's values; the lower level
                                                                       of skipping is checked at once

Decisions depend on batch numbers, not on clocks, so a guarded run gives the same numbers each time. While a guard
changes nothing, batches and numbers equal those of a run without one. The training thread calls all methods."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final, NamedTuple

from adaptive.batch import Batch
from adaptive.config import GuardConfig, TrainConfig
from adaptive.errors import ConfigError, NonFiniteError, PolicyError
from adaptive.training.guard.account import Account, GuardState, LoopRecorder, shares
from adaptive.training.guard.fork import Pair, TrainingLoop
from adaptive.training.guard.judge import Allowance, Evidence, Outlook, Timing, Triggers, explain, extrapolate
from adaptive.training.guard.stream import NumberedBatches, Passes
from adaptive.training.telemetry.jsonl import plain
from adaptive.training.telemetry.record import GuardRecord
from adaptive.training.telemetry.report import GuardSummary


class CheckFindings(NamedTuple):
    """Measurements of a check; None for those that were not possible."""

    evidence: Evidence | None = None
    outlook: Outlook | None = None
    share: float | None = None  # skipped during the check


NOTHING: Final = CheckFindings()


class Guard:
    """Checks the cost of skipping in a run, undoes and limits it. Close it."""

    def __init__(
        self, settings: GuardConfig, config: TrainConfig, run: TrainingLoop, recorder: LoopRecorder, total: int | None
    ) -> None:
        """
        Args:
            settings: of the guard.
            config: of the run, for policy, depth, feedback delay and batch size.
            recorder: records every step before `after_step`.
            total: number of batches of the whole run, or None if unknown.

        Raises:
            ConfigError: if the policy drops updates or inputs and the length of the run is unknown.
        """
        self._settings, self._config, self._run, self._recorder = settings, config, run, recorder
        self._policy = run.embeddings.policy
        self._timing = Timing.of(settings, config, self._policy, total)
        self._allowed = Allowance(run.embeddings, self._timing, settings.budget)
        if self._allowed.drops and total is None:
            raise length_unknown(config.policy)
        self._passes, self._triggers, self._account = Passes(run.embeddings, recorder), Triggers(), Account()
        self._decisions: list[GuardRecord] = []
        self._pair: Pair | None = None
        self._trigger = ""  # of the check under way
        self._takeover: int | None = None  # batch at which the run takes over the fork's values
        self._now = GuardState(due=self._timing.warmup)
        if self._allowed.least is None:
            self._now.active = False
            self._write("idle", f"policy {config.policy} skips nothing, so there is nothing to guard")

    # --- for the run -----------------------------------------------------------------------------------------

    def guarded(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Wrap the batches of the next pass. No look-ahead may be running."""
        now = self._now
        if self._passes.stream is not None:
            now.place = self._passes.stream.taken
            if self._pair is not None:
                self._catch_up(self._pair, self._passes.stream)
            self._passes.end()
        self._allow(now.allowance if now.begun or not now.active else 0.0)
        self._read()
        if not now.active:
            return batches
        stream = self._passes.begin(batches, now.place)
        if not now.begun:
            self._prepare(stream)
        self._act(stream)
        return stream

    def after_step(self) -> None:
        """Check and decide after a trained batch."""
        now, stream = self._now, self._passes.stream
        if stream is None:
            return
        with self._recorder.timed("guard"):
            previous, now.place = now.place, self._passes.place()
            self._read()
            if now.active and now.place > previous:  # the samples of a batch may be trained in several steps
                self._triggers.hear(self._recorder.loss, float(stream.labels(now.place - 1).mean()))
            self._act(stream)

    def finish(self) -> None:
        """Finish, undoing the skipping of an open check. No look-ahead may be running."""
        now = self._now
        self._read()
        if self._pair is not None:
            if self._takeover is None:
                previous, now.allowance = now.allowance, 0.0
                self._write("stop", "training ended during this check, so its skipping is undone", previous=previous)
            self._undo(self._pair)
            self._read()
        self._allow(now.allowance)
        self._passes.end()
        self.close()

    def close(self) -> None:
        """Free the fork."""
        if self._pair is not None:
            self._now.fork_batches += self._pair.trained
            self._now.judged_batches += self._pair.judged
            self._pair.close()
            self._pair = None

    def state(self) -> dict[str, object]:
        """The guard's state as JSON values, without the fork."""
        return asdict(self._now)

    def summary(self) -> GuardSummary:
        """Decisions, extra batches, and shares of skipped and undone work, for the run's summary."""
        now = self._now
        return {
            "guard_allowance": now.allowance,
            "guard_fork_batches": now.fork_batches,
            "guard_judged_batches": now.judged_batches,
            "guard_undone_batches": now.undone_batches,
            "guard_decisions": [plain(asdict(record)) for record in self._decisions],
            **shares(now, self._policy),
        }

    def _allow(self, allowance: float) -> None:
        if self._policy.rule is not None:
            self._policy.rule.allowance = allowance

    # --- what to do next -------------------------------------------------------------------------------------

    def _prepare(self, stream: NumberedBatches) -> None:
        """Schedule skipping after the warm-up, or stop it if the run is too short for a check."""
        now = self._now
        if self._timing.is_too_late(now.due):
            previous, now.allowance, now.active = now.allowance, 0.0, False
            self._write("stop", too_short(now.due + self._timing.check, self._timing.total), previous=previous)
        else:
            stream.switch(now.due, now.allowance)

    def _act(self, stream: NumberedBatches) -> None:
        now = self._now
        if not now.active:
            stream.forget(stream.taken)
            return
        if self._pair is not None:
            self._continue_check(self._pair, stream)
        elif trigger := self._triggers.due(now, self._passes.skip_counts(now.place)):
            self._open(trigger, stream)
        stream.forget(now.place)

    def _open(self, trigger: str, stream: NumberedBatches) -> None:
        """Begin a check with a new fork, if enough batches are left."""
        now, skip_counts = self._now, self._passes.skip_counts(self._now.place)
        if not now.begun and skip_counts.dropped:
            raise disobeyed_allowance(self._config.policy, skip_counts.dropped, now.place)
        now.begun, self._trigger = True, trigger
        if not self._timing.is_too_late(now.place):
            self._pair = Pair(self._run, now.place, skip_counts)
            self._account.begin(skip_counts)
            self._triggers.opened()
        elif now.passed is None or now.place < now.due:
            self._give_up(stream, f"{trigger}, but too few batches are left for a check")
        else:  # the last check counts for the few remaining batches
            now.due = now.place + self._settings.every

    def _continue_check(self, pair: Pair, stream: NumberedBatches) -> None:
        place = self._now.place
        if not self._catch_up(pair, stream):
            return
        if self._takeover is not None:
            if place >= self._takeover:
                self._undo(pair)
        elif place >= pair.start + self._settings.steps and not self._better_later(place):
            self._judge(pair, stream)

    def _catch_up(self, pair: Pair, stream: NumberedBatches) -> bool:
        """Train the fork on the batches that the run has trained; return False if it fails."""
        try:
            pair.train_until(self._now.place, stream)
        except NonFiniteError as error:
            self._give_up(stream, f"the fork, which skips nothing, failed: {error}")
            return False
        return True

    def _better_later(self, place: int) -> bool:
        """True if less than half of the holdout is left, and another pass follows."""
        return self._passes.ends_within(place, self._settings.holdout // 2, self._timing.left(place))

    # --- decisions -------------------------------------------------------------------------------------------

    def _judge(self, pair: Pair, stream: NumberedBatches) -> None:
        now, budget = self._now, self._settings.budget
        share = self._passes.skip_counts(now.place).share_since(pair.skip_counts)
        evidence = pair.compare(stream, self._settings.holdout)
        if evidence is None:
            self._break_off(
                stream, 0.0, "too few held-back samples of one class for a comparison", CheckFindings(share=share)
            )
            return
        left = self._timing.left(now.place) if self._allowed.drops else None
        outlook = extrapolate(evidence, steps=now.place - pair.start, left=left, spent=now.cost_until(pair.start))
        about, findings = explain(outlook, budget), CheckFindings(evidence, outlook, share)
        if outlook.within(budget):
            self._keep(pair, evidence, about, findings)
        else:
            allowance, addition = self._allowed.after(now, outlook)
            self._break_off(stream, allowance, about + addition, findings)

    def _keep(self, pair: Pair, evidence: Evidence, about: str, findings: CheckFindings) -> None:
        now, nothing = self._now, f"nothing was skipped in {self._now.place - pair.start} batches"
        self._write("keep", nothing if evidence.equal else about, findings=findings)
        assert findings.share is not None
        now.keep(findings.share, since=pair.start, cost=max(-evidence.auc, 0.0) if self._allowed.drops else 0.0)
        now.due = now.place + self._settings.every
        self._triggers.passed(now.place, self._passes.skip_counts(now.place))
        self.close()

    def _break_off(
        self, stream: NumberedBatches, allowance: float, reason: str, findings: CheckFindings = NOTHING
    ) -> None:
        """Skip less from a later batch on, at which the run takes over the fork's values."""
        now = self._now
        self._takeover = stream.switch(now.place + self._timing.margin, allowance)
        previous, now.allowance = now.allowance, allowance
        verdict = "reduce" if allowance else "stop"
        self._write(verdict, reason, previous=previous, from_step=self._takeover, findings=findings)

    def _give_up(self, stream: NumberedBatches, reason: str) -> None:
        """Stop skipping for the rest of the run without a comparison."""
        self._break_off(stream, 0.0, reason)
        self._takeover, self._now.active = None, False
        self.close()

    def _undo(self, pair: Pair) -> None:
        now = self._now
        now.undone_batches += now.place - pair.start
        skip_counts = self._passes.skip_counts(now.place)
        pair.undo(skip_counts)
        self._account.undo(skip_counts)
        self._takeover = now.passed = None
        self._trigger = "skipping was reduced"
        if not now.allowance:
            now.active = False
            self.close()

    def _read(self) -> None:
        self._account.read(self._now, self._passes.skip_counts(self._now.place))

    def _write(
        self,
        verdict: str,
        reason: str,
        *,
        previous: float | None = None,
        from_step: int | None = None,
        findings: CheckFindings = NOTHING,
    ) -> None:
        """Record a decision; `previous` is the allowance before it."""
        now, pair, (evidence, outlook, share) = self._now, self._pair, findings
        record = GuardRecord(
            step=self._recorder.steps,
            verdict=verdict,
            reason=reason,
            trigger=self._trigger,
            budget=self._settings.budget,
            allowance_before=now.allowance if previous is None else previous,
            allowance=now.allowance,
            from_step=now.place if from_step is None else from_step,
            fork_steps=now.place - pair.start if pair else 0,
            steps_left=self._timing.left(now.place),
            samples=evidence.samples if evidence else 0,
            skipped_share=share,
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


def length_unknown(policy: str) -> ConfigError:
    """The error for a run of unknown length: the cost of dropping grows with the length."""
    return ConfigError(
        f"guard: expected a known number of steps because policy {policy} drops updates or inputs, got data of unknown "
        "size. Set steps (total of adaptive.Guard); an upper bound is enough"
    )


def disobeyed_allowance(policy: str, dropped: int, place: int) -> PolicyError:
    """The error for a skip rule that dropped inputs against the allowance of a guard."""
    return PolicyError(
        f"expected no dropped inputs in the guard's warm-up, got {dropped} before batch {place} (skip rule of policy "
        f"{policy}). Keep every input in arrange() for which SkipRule.allows() returns False"
    )


def too_short(needed: int, total: int | None) -> str:
    """The reason to skip nothing in a run that is shorter than warm-up and check."""
    return (
        f"the run has {total} batches, but the guard's warm-up and check need {needed} (guard.warmup, guard.steps, "
        f"guard.holdout), so nothing is skipped"
    )
