"""`Guard`: the quality guard (`adaptive.training.guard`) for a custom training loop."""

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from torch import Tensor

from adaptive.batch import Batch, as_batch, in_order
from adaptive.config import GuardConfig, SkipConfig, TrainConfig
from adaptive.embeddings.planned_batch import Planned
from adaptive.embeddings.prefetch_iterator import LookAhead
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError, InputError, NonFiniteError
from adaptive.storage.presets import checked
from adaptive.studies.own_loop.loop_recording import Recording, loss_value
from adaptive.training.guard.account import LoopRecorder
from adaptive.training.guard.fork import TrainingLoop
from adaptive.training.guard.guard import Guard as _Guard
from adaptive.training.telemetry.record import Record
from adaptive.training.telemetry.report import GuardSummary

REACH: Final = "It must use tables, models and optimizers from its arguments only, which are copies during a check"


class Guard:
    """Keep the cost of skipping in a custom loop within an AUC budget.

        with adaptive.Guard(embeddings, step, net, dense, score=score, batch_size=256, total=len(loader)) as guard:
            for planned in guard.look_ahead(loader):
                loss, logits = step(net, dense, planned)
                guard.after(planned, loss)
        print(guard.summary()["guard_decisions"])

    It decides like `--set guard.budget=...` for a run with the same model, data and settings.

    Args:
        embeddings: the tables, with a policy that skips.
        step: `step(*parts, planned)` trains a batch, calls `embeddings.step()`, and returns the mean loss from before
            the update, alone or first in a tuple. The guard calls it with copies of the parts, so it must reach all
            that it trains through them. Change learning rates inside it.
        parts: modules, optimizers and other objects with `state_dict` and `load_state_dict`; they may hold the tables.
        score: `score(*parts, planned)` returns logits (B,) and trains nothing. Modules among the parts are in
            evaluation mode, and gradients are off.
        batch_size: samples per batch.
        total: batches of the whole loop, or an upper bound; None if unknown, for a policy that only defers.
        depth: batches of look-ahead.
        record: the recording of this loop, which then also gets the decisions.
        limits: `budget`, `warmup`, `steps`, `holdout`, `every`, as in `GuardConfig`.

    Raises:
        ConfigError: for tables of several ranks, a part that cannot be copied back, invalid limits, or a policy that
            drops updates while `total` is unknown.
    """

    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        step: Callable[..., Any],
        *parts: Any,
        score: Callable[..., Tensor],
        batch_size: int,
        total: int | None = None,
        depth: int = 4,
        record: Recording | None = None,
        **limits: Any,
    ) -> None:
        if not embeddings.ranks.is_local:
            raise ConfigError("guard: expected tables of one process, got several ranks, which it cannot copy")
        for number, part in enumerate(parts):
            if not all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict")):
                raise ConfigError(
                    "guard: expected modules, optimizers and other parts with state_dict() and load_state_dict(), got "
                    f"a {type(part).__name__} (part {number + 1}). A failed check restores the parts through them"
                )
        self._recorder: LoopRecorder = _StepCounter() if record is None else record.recorder
        self._embeddings, self._depth, self._calls = embeddings, depth, 0
        settings = checked(GuardConfig, limits, "guard")
        skip = None if embeddings.skip is None else SkipConfig(feedback_delay=embeddings.skip.feedback_delay)
        name = type(embeddings.policy).__name__.lower()
        config = TrainConfig(policy=name, batch_size=batch_size, depth=depth, skip=skip, guard=settings)
        self._guard = _Guard(settings, config, _CustomLoop(embeddings, parts, step, score), self._recorder, total)

    def look_ahead(self, batches: Iterable[Batch]) -> LookAhead:
        """Plan the batches of the next pass; use it instead of `embeddings.look_ahead`.

        Raises:
            ConfigError: if `after` was not called for a batch.
            InputError: for a batch with labels other than 0 and 1.
        """
        return LookAhead(partial(self._look_ahead, batches), batches)

    def _look_ahead(self, batches: Iterable[Batch]) -> Generator[Planned, None, None]:
        order = self._embeddings.features
        guarded = self._guard.guarded(_labeled(as_batch(in_order(batch, order)).unshared() for batch in batches))
        with contextlib.closing(self._embeddings.look_ahead(guarded, depth=self._depth)) as coming:
            for planned in coming:
                calls = self._calls
                yield planned
                if self._calls != calls + 1:
                    raise ConfigError(
                        "guard: expected one call of after(planned, loss) after the step of a batch, got "
                        f"{self._calls - calls} (batch {planned.number})"
                    )

    def after(self, planned: Planned, loss: Tensor | float) -> None:
        """Call this after the step of a batch (and after `record.step`, if recorded).

        Args:
            planned: the trained batch.
            loss: its mean loss, from before the update.
        """
        recorder = self._recorder
        if isinstance(recorder, _StepCounter):
            recorder.steps += 1
            recorder.samples += planned.num_samples
            recorder.loss = loss_value(loss)
        self._calls += 1
        if recorder.steps != self._calls:
            raise ConfigError(
                f"guard: expected record.step before after, got {recorder.steps} calls of it and {self._calls} of after"
            )
        self._guard.after_step()

    def summary(self) -> GuardSummary:
        """Decisions with their evidence, extra batches, skipped and restored updates."""
        return self._guard.summary()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo what an unfinished check has skipped; after an error, only release memory."""
        if error is None:
            self._guard.finish()
        else:
            self._guard.close()


class _CustomLoop(TrainingLoop):
    def __init__(
        self,
        embeddings: TieredEmbeddingBag,
        parts: tuple[Any, ...],
        step: Callable[..., Any],
        score: Callable[..., Tensor],
    ) -> None:
        super().__init__(embeddings, parts)
        self._step, self._score = step, score

    def train(self, batch: Batch, step: int) -> None:
        with contextlib.closing(self.embeddings.look_ahead([batch], depth=0)) as coming:
            for planned in coming:
                try:
                    result = self._step(*self.parts, planned)
                except ConfigError as error:
                    raise ConfigError(
                        f"guard: step(*parts, planned) failed on copies of the parts: {error}. {REACH}"
                    ) from error
                loss = loss_value(result[0] if isinstance(result, tuple) else result)
                if not math.isfinite(loss):
                    raise NonFiniteError(f"guard: expected a finite loss, got {loss} (step {step + 1} of its copy)")

    def logits(self, planned: Planned) -> Tensor:
        logits = self._score(*self.parts, planned)
        if not isinstance(logits, Tensor) or logits.shape != (planned.num_samples,):
            result = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ConfigError(f"guard: expected logits ({planned.num_samples},) from score(...), got {result}")
        return logits


class _StepCounter:
    """Replaces the recorder if the loop has no recording."""

    def __init__(self) -> None:
        self.steps, self.samples, self.loss = 0, 0, math.nan

    def timed(self, stage: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def write(self, record: Record) -> None:
        """Ignore the record; the summary has the decisions."""


def _labeled(batches: Iterable[Batch]) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        other = np.flatnonzero((batch.labels != 0) & (batch.labels != 1))
        if len(other):
            raise InputError(f"guard: expected labels 0 and 1, got {batch.labels[other[0]]} (batch {number})")
        yield batch
