"""`Guard`: the quality guard of a run (`adaptive.training.guard`) for a custom training loop."""

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

REACH: Final = "it must reach tables, models and optimizers through its arguments only, which are copies in a check"


class Guard:
    """Keeps what a policy skips in a custom loop within a loss of AUC: a context manager around the loop.

        with adaptive.Guard(embeddings, step, net, dense, score=score, batch_size=256, total=len(loader)) as guard:
            for planned in guard.look_ahead(loader):
                loss, logits = step(net, dense, planned)
                guard.after(planned, loss)
        print(guard.summary()["guard_decisions"])

    It decides as `--set guard.budget=...` does for a run with the same model, data and settings.

    Args:
        embeddings: the tables, with a policy that skips.
        step: `step(*parts, planned)` trains a batch, `embeddings.step()` included, and returns its mean loss from
            before the update, alone or first in a tuple. The guard calls it with copies of the parts. So it must reach
            all that it trains through them, and whatever changes learning rates belongs into it.
        parts: modules, optimizers and the like (`state_dict`, `load_state_dict`), which may hold the tables or be
            them.
        score: `score(*parts, planned)` gives logits (B,) and trains nothing; modules among the parts are in evaluation
            mode, and gradients are off.
        batch_size: samples of a batch.
        total: batches of the whole loop; an upper bound will do. None if not known, for a policy that defers only.
        depth: batches of look-ahead.
        record: the recording of this loop, which then has the decisions, too.
        limits: `budget`, `warmup`, `steps`, `holdout`, `every`, as in `GuardConfig`.

    Raises:
        ConfigError: for tables of several ranks, a part that cannot be copied back, limits that are none, or a policy
            that drops something while `total` is not known.
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
            raise ConfigError("guard: expected tables of one process, got those of several ranks, which it cannot copy")
        for number, part in enumerate(parts):
            if not all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict")):
                raise ConfigError(
                    "guard: expected modules, optimizers and other parts with state_dict() and load_state_dict(), as "
                    f"a check that fails gives them other values, got a {type(part).__name__} (part {number + 1})"
                )
        self._recorder: LoopRecorder = _StepCounter() if record is None else record.recorder
        self._embeddings, self._depth, self._heard = embeddings, depth, 0
        settings = checked(GuardConfig, limits, "guard")
        skip = None if embeddings.skip is None else SkipConfig(feedback_delay=embeddings.skip.feedback_delay)
        name = type(embeddings.policy).__name__.lower()
        config = TrainConfig(policy=name, batch_size=batch_size, depth=depth, skip=skip, guard=settings)
        self._guard = _Guard(settings, config, _CustomLoop(embeddings, parts, step, score), self._recorder, total)

    def look_ahead(self, batches: Iterable[Batch]) -> LookAhead:
        """The batches of the next pass over the data, planned ahead, in the place of `embeddings.look_ahead`.

        Raises:
            ConfigError: if `after` was not called for a batch.
            InputError: for a batch without labels 0 and 1.
        """
        return LookAhead(partial(self._look_ahead, batches), batches)

    def _look_ahead(self, batches: Iterable[Batch]) -> Generator[Planned, None, None]:
        order = self._embeddings.features
        guarded = self._guard.guarded(_labelled(as_batch(in_order(batch, order)).unshared() for batch in batches))
        with contextlib.closing(self._embeddings.look_ahead(guarded, depth=self._depth)) as coming:
            for planned in coming:
                before = self._heard
                yield planned
                if self._heard != before + 1:
                    raise ConfigError(
                        "guard: expected one call of after(planned, loss) for a batch, after its step, got "
                        f"{self._heard - before} (batch {planned.number})"
                    )

    def after(self, planned: Planned, loss: Tensor | float) -> None:
        """A batch is trained; `loss`: its mean, from before the update. With a recording: after `record.step`."""
        recorder = self._recorder
        if isinstance(recorder, _StepCounter):
            recorder.steps += 1
            recorder.samples += planned.num_samples
            recorder.loss = loss_value(loss)
        self._heard += 1
        if recorder.steps != self._heard:
            raise ConfigError(
                f"guard: expected record.step before after, got {recorder.steps} recorded, {self._heard} told"
            )
        self._guard.after_step()

    def summary(self) -> GuardSummary:
        """Decisions with their evidence, extra batches, and what was left out or undone, as in a run's summary."""
        return self._guard.summary()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo what an unfinished check has skipped; after an error nothing but memory is given back."""
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
                        f"guard: step(*parts, planned) failed on copies of the parts: {error}; {REACH}"
                    ) from error
                loss = loss_value(result[0] if isinstance(result, tuple) else result)
                if not math.isfinite(loss):
                    raise NonFiniteError(f"step {step + 1} of the guard's copy: the loss is {loss}")

    def logits(self, planned: Planned) -> Tensor:
        logits = self._score(*self.parts, planned)
        if not isinstance(logits, Tensor) or logits.shape != (planned.num_samples,):
            what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ConfigError(f"guard: expected logits ({planned.num_samples},) of score(...), got {what}")
        return logits


class _StepCounter:
    """A recorder of a loop without a recording."""

    def __init__(self) -> None:
        self.steps, self.samples, self.loss = 0, 0, math.nan

    def timed(self, stage: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def write(self, record: Record) -> None:
        """The summary has it."""


def _labelled(batches: Iterable[Batch]) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        other = np.flatnonzero((batch.labels != 0) & (batch.labels != 1))
        if len(other):
            raise InputError(f"guard: expected labels 0 and 1, got {batch.labels[other[0]]} (batch {number})")
        yield batch
