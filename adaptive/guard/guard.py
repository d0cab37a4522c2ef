"""`Guard`: what to do after each batch of a run; see the package.

    batches  warm-up        steps                  margin
    run      skips nothing  skips                  skips       kept:   goes on; the next check comes after `every`
    fork     -              skips nothing  judged  (broken)            batches, or when `triggers` ask for it
                                                               broken: takes over the fork's values; what may be
                                                                       skipped from then on is judged at once

Everything follows from numbers of batches, not from clocks: a guarded run gives the same numbers each time. A guard
that finds nothing to change changes nothing: batches and numbers are those of a run without one. All methods are
called by the training thread.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from adaptive.batch import Batch
from adaptive.build import Parts
from adaptive.config import GuardConfig, TrainConfig
from adaptive.errors import ConfigError, NonFiniteError, PolicyError
from adaptive.guard.evidence import Evidence
from adaptive.guard.judge import Outlook, explain, look_out, lower
from adaptive.guard.log import NOTHING, Found, Log
from adaptive.guard.pair import Pair
from adaptive.guard.passes import Passes
from adaptive.guard.standing import Standing
from adaptive.guard.stream import Stream
from adaptive.guard.timing import Timing
from adaptive.guard.triggers import Triggers
from adaptive.recorder import Recorder


class Guard:
    """The guard of one run; to be closed."""

    def __init__(
        self, settings: GuardConfig, config: TrainConfig, run: Parts, recorder: Recorder, total: int | None
    ) -> None:
        """
        Args:
            settings: those of `config`.
            total: batches of the whole run, or None where nobody knows.

        Raises:
            ConfigError: if the policy drops something and the length of the run is not known.
        """
        self._settings, self._config, self._run, self._recorder = settings, config, run, recorder
        self._policy = run.embeddings.policy
        self._drops = run.embeddings.drops_updates or self._policy.drops_inputs
        if self._drops and total is None:
            raise ConfigError(
                f"guard: policy {config.policy} drops updates or inputs, and what that costs depends on the length of "
                f"the run, which nobody knows before the data are read: set steps; an upper bound will do"
            )
        self._timing = Timing.of(settings, config, self._policy, total)
        self._passes, self._triggers = Passes(run.embeddings, recorder), Triggers()
        self._log = Log(recorder, settings.budget)
        self._pair: Pair | None = None
        self._trigger = ""  # of the check under way
        self._leave: int | None = None  # batch at which the run takes over the fork's values
        self._now = Standing(due=self._timing.warmup)
        if not (self._drops or run.embeddings.defers):
            self._now.active = False
            self._log.write("idle", f"policy {config.policy} skips nothing: there is nothing to guard", self._now)

    # --- for the run -----------------------------------------------------------------------------------------

    def watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of the next pass over the data, to be trained in place of `batches`; no look-ahead is running."""
        now = self._now
        if self._passes.stream is not None:
            now.place = self._passes.stream.taken
            if self._pair is not None:
                self._catch_up(self._pair, self._passes.stream)
            self._passes.end()
        if not now.active:
            return batches
        stream = self._passes.begin(batches, now.place)
        self._policy.allowance = now.allowance if now.begun else 0.0
        if not now.begun:
            self._prepare(stream)
        self._act(stream)
        return stream

    def after_step(self) -> None:
        """A batch of the run has been trained."""
        if self._passes.stream is None:
            return
        with self._recorder.timed("guard"):
            self._now.place = self._passes.place()
            self._triggers.hear(self._recorder.loss)
            self._act(self._passes.stream)

    def finish(self) -> None:
        """Training has ended; no look-ahead is running. What was skipped and not judged is undone."""
        now = self._now
        if self._pair is not None and (self._leave is not None or now.passed is None):
            if self._leave is None:
                before, now.allowance = now.allowance, 0.0
                self._write("stop", "training ended before this check did: its skipping is undone", before=before)
            self._undo(self._pair)
        self._policy.allowance = now.allowance
        self.close()

    def close(self) -> None:
        """Give the fork's memory back."""
        if self._pair is not None:
            self._now.fork_batches += self._pair.trained
            self._now.judged_batches += self._pair.judged
            self._pair.close()
            self._pair = None

    def state(self) -> dict[str, Any]:
        """JSON values from which `restore` goes on, in a run with the same settings; a fork is not among them."""
        return asdict(self._now)

    def restore(self, state: dict[str, Any]) -> None:
        """Before the first `watch`. What was not judged is judged anew."""
        self._now = Standing(**state)

    def summary(self) -> dict[str, Any]:
        """Decisions, and batches on top of the run's own."""
        return self._log.summary(self._now)

    # --- what to do next -------------------------------------------------------------------------------------

    def _prepare(self, stream: Stream) -> None:
        """Nothing is skipped before the warm-up is over; or at all, if nothing could be judged then."""
        now = self._now
        if self._timing.too_late(now.due):
            now.allowance, now.active = 0.0, False
            self._write("stop", "the run is too short for a check after the warm-up: nothing is skipped", before=1.0)
        else:
            stream.switch(now.due + self._timing.window, now.allowance)

    def _act(self, stream: Stream) -> None:
        now = self._now
        if not now.active:
            stream.forget(stream.taken)
            return
        if self._pair is not None:
            self._go_on(self._pair, stream)
        elif trigger := self._triggers.due(now, self._passes.left_out(now.place)):
            self._open(trigger)
        stream.forget(now.place)

    def _open(self, trigger: str) -> None:
        """Begin to train side by side."""
        now, left_out = self._now, self._passes.left_out(self._now.place)
        if not now.begun and left_out.dropped:
            raise PolicyError(
                f"policy {self._config.policy} dropped {left_out.dropped} inputs before batch {now.place} although a "
                f"guard allows none in the warm-up: arrange() must keep every input that Policy.allows() is False for"
            )
        now.begun, self._trigger = True, trigger
        if self._timing.too_late(now.place):  # what has passed stands for the few batches that are left
            now.due = now.place + self._settings.every
            return
        self._pair = Pair(self._run, self._config, now.place, left_out)

    def _go_on(self, pair: Pair, stream: Stream) -> None:
        place = self._now.place
        if not self._catch_up(pair, stream):
            return
        if self._leave is not None:
            if place >= self._leave:
                self._undo(pair)
        elif place >= pair.start + self._settings.steps and not self._better_later(stream):
            self._judge(pair, stream)

    def _catch_up(self, pair: Pair, stream: Stream) -> bool:
        """The fork trains what the run has trained; False if it cannot."""
        try:
            pair.train_until(self._now.place, stream)
        except NonFiniteError as error:
            self._break_off(stream, 0.0, f"the fork, which skips nothing, failed: {error}")
            self._leave, self._now.active = None, False
            self.close()
            return False
        return True

    def _better_later(self, stream: Stream) -> bool:
        """Less than half of the samples wanted are left in this pass over the data, and another one follows."""
        place, wanted = self._now.place, self._settings.holdout
        left = self._timing.left(place)
        if left is None or place <= stream.first + 1:
            return False
        ahead = stream.coming(place, wanted)
        return sum(batch.num_samples for batch in ahead) < wanted / 2 and left > len(ahead)

    # --- decisions -------------------------------------------------------------------------------------------

    def _judge(self, pair: Pair, stream: Stream) -> None:
        budget, share = self._settings.budget, self._passes.left_out(self._now.place).share_since(pair.left_out)
        evidence = pair.compare(stream, self._settings.holdout)
        if evidence is None:
            self._break_off(stream, 0.0, "too few held-back samples of a class to compare", Found(share=share))
            return
        outlook = self._look_out(pair, evidence)
        found = Found(evidence, outlook, share)
        if outlook.within(budget):
            self._keep(pair, evidence, found)
        else:
            self._break_off(stream, self._lower(outlook), explain(outlook, budget), found)

    def _look_out(self, pair: Pair, evidence: Evidence) -> Outlook:
        now = self._now
        left = self._timing.left(now.place) if self._drops else None
        return look_out(evidence, steps=now.place - pair.start, left=left, spent=now.cost_until(pair.start))

    def _keep(self, pair: Pair, evidence: Evidence, found: Found) -> None:
        now, steps = self._now, self._now.place - pair.start
        assert found.outlook is not None
        nothing = f"nothing was left out in {steps} batches"
        self._write("keep", nothing if evidence.equal else explain(found.outlook, self._settings.budget), found=found)
        if self._drops:
            now.spent = now.cost_until(pair.start)
            now.rate = max(-evidence.auc, 0.0) / steps
            now.spent += now.rate * steps
        now.passed, now.passed_at, now.due = found.share, now.place, now.place + self._settings.every
        self._triggers.restart(now.place, self._passes.left_out(now.place))
        self.close()

    def _lower(self, outlook: Outlook) -> float:
        """What may be skipped after the budget was broken."""
        now = self._now
        if self._drops and now.passed is not None:
            return 0.0  # it was harmless once: the data have changed, and what was dropped is what is needed now
        if self._timing.too_late(now.place + self._timing.margin):
            return 0.0
        return lower(now.allowance, outlook, self._settings.budget)

    def _break_off(self, stream: Stream, allowance: float, reason: str, found: Found = NOTHING) -> None:
        """Less is skipped from a coming batch on, at which the run takes over the fork's values."""
        now, timing = self._now, self._timing
        self._leave = stream.switch(now.place + timing.margin + timing.window, allowance) - timing.window
        before, now.allowance = now.allowance, allowance
        self._write("reduce" if allowance else "stop", reason, before=before, from_step=self._leave, found=found)

    def _undo(self, pair: Pair) -> None:
        now = self._now
        now.undone_batches += now.place - pair.start
        pair.undo(self._passes.left_out(now.place))
        self._leave = now.passed = None
        self._trigger = "less may be skipped"
        if not now.allowance:
            now.active = False
            self.close()

    def _write(
        self,
        verdict: str,
        reason: str,
        *,
        before: float | None = None,
        from_step: int | None = None,
        found: Found = NOTHING,
    ) -> None:
        now, left = self._now, self._timing.left(self._now.place)
        trigger, pair = self._trigger, self._pair
        self._log.write(
            verdict, reason, now, trigger=trigger, before=before, from_step=from_step, left=left, pair=pair, found=found
        )
