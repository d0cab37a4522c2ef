"""`Loop`: the epochs of a run, in stretches. Between two stretches nothing is on its way, and the run can be saved and
evaluated.

The look-ahead is given the batches of one stretch only, so every batch that is planned is trained. A signal ends
planning, since the books are ahead of training: the batches that are planned, as many as are looked ahead, are still
trained. Others that were read are read again when the run is resumed; if the policy arranges batches, it has seen them
and may hold some back, so no more are handed out, and those that were are trained, too.
"""

from collections.abc import Callable, Iterator
from itertools import count, islice

import torch
from pydantic import BaseModel, ConfigDict, Field

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import CheckpointError, PolicyError
from adaptive.system import StopRequest
from adaptive.training.guard.guard import Guard
from adaptive.training.trainer import Trainer


class DataPosition(BaseModel):
    """Where a run is in its data, between two stretches. Numbers count batches of the data, which a policy may regroup
    or drop; checkpoints hold them."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=False)

    epoch: int = Field(default=0, ge=0)
    taken: int = Field(default=0, ge=0)  # batches of this epoch that are done
    total: int = Field(default=0, ge=0)  # batches of all epochs that are done
    before: int = Field(default=0, ge=0)  # steps trained in earlier epochs
    over: bool = False  # this epoch has no more
    evaluated: int = Field(default=0, ge=0)  # `total` at the latest evaluation that came to its end
    reached: bool = False  # that evaluation reached the run's target: nothing is left to train

    def left(self, steps: int | None) -> int | None:
        """Batches that this epoch may still take if the run is to train `steps`; None: as many as there are."""
        return None if steps is None else max(steps - self.before - self.taken, 0)

    def is_evaluated_next(self, steps: int | None) -> bool:
        """Whether an evaluation of the very step reached so far comes next, where the epoch or the run ends, and is not
        one in the middle of an epoch, which has been made."""
        return self.reached or self.over or self.left(steps) == 0

    def advance(self, number: int) -> None:
        self.taken += number
        self.total += number

    def next_epoch(self, steps: int) -> None:
        """The next epoch begins after so many steps."""
        self.epoch, self.taken, self.before, self.over = self.epoch + 1, 0, steps, False


class Source:
    """The batches of an epoch, handed out in stretches.

    Attributes:
        taken: handed out so far.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.taken = 0
        self._batches = batches
        self._coming: Batch | None = None
        self._ended = False

    def more(self) -> bool:
        """Whether there is another batch; reads it to find out. Call it while no stretch is being read."""
        if self._coming is None and not self._ended:
            self._coming = next(self._batches, None)
        return self._coming is not None

    def end(self) -> None:
        """Hand out no more, from now on."""
        self._ended = True

    def stretch(self, length: int | None) -> Iterator[Batch]:
        """The next `length` batches, or all there are."""
        for _ in count() if length is None else range(length):
            if self._ended or not self.more():
                return
            batch, self._coming = self._coming, None
            assert batch is not None
            self.taken += 1
            yield batch


class Loop:
    """Trains what is left of a run, stretch by stretch; calls for saves and evaluations in between.

    Attributes:
        place: the run's position in the data.
        file_bytes: bytes read from and written to the rows' files by training. Saving and evaluating read every row,
            whatever the policy, and are left out.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset,
        trainer: Trainer,
        place: DataPosition,
        *,
        guard: Guard | None,
    ) -> None:
        """`place`: the position in the data to go on from."""
        self.place = place
        self.file_bytes = dict.fromkeys(("bytes_read", "bytes_written"), 0)
        self._config, self._dataset, self._trainer, self._guard = config, dataset, trainer, guard
        self._seed = 0  # of torch's generator while the run trains

    def run(self, stop: StopRequest, *, save: Callable[[], None], evaluate: Callable[[], bool | None]) -> None:
        """Train to the end of the run, or until stopped.

        Args:
            save: called every `config.save_every` batches of the data, unless nothing follows.
            evaluate: called between two epochs, and every `config.eval_every` batches of the data within them; returns
                whether the run has reached its target, which ends it; None: a signal has cut it short.
        """
        self._save, self._evaluate = save, evaluate
        self._seed = torch.initial_seed()
        while not stop and self._enter_epoch(stop):
            self._train_epoch(stop)

    def is_done(self) -> bool:
        """Whether there is nothing left to train."""
        if self.place.reached:
            return True
        here = not self.place.over and self.place.left(self._config.steps) != 0
        return not (here or self._has_another_epoch())

    def _has_another_epoch(self) -> bool:
        steps = self._config.steps
        return self.place.epoch + 1 < self._config.epochs and (steps is None or self._trainer.recorder.steps < steps)

    def _enter_epoch(self, stop: StopRequest) -> bool:
        """Whether this epoch has more to train, or else the next one, which is then entered."""
        if self.is_done():
            return False
        if self.place.over or self.place.left(self._config.steps) == 0:
            self._evaluate_here()
            if not (stop or self.place.reached):
                self.place.next_epoch(self._trainer.recorder.steps)
        return not (stop or self.place.reached)

    def _evaluate_here(self) -> None:
        """One that a signal cuts short is made again when the run goes on; not one behind which it comes."""
        reached = self._evaluate()
        if reached is not None:
            self.place.evaluated, self.place.reached = self.place.total, reached

    def _evaluate_if_due(self, source: Source, stop: StopRequest) -> None:
        """Within an epoch. Behind its last batch the end of the epoch evaluates: a run that was stopped there does not
        know yet that it was the last."""
        is_due = self._until(self._config.eval_every) == 0 and self.place.evaluated != self.place.total
        if is_due and not stop and source.more():
            self._evaluate_here()

    def _train_epoch(self, stop: StopRequest) -> None:
        source, more = Source(self._batches()), True
        self._evaluate_if_due(source, stop)
        while more and not (stop or self.place.reached):
            self._train_stretch(source, stop)
            more = not stop and source.more()
            self.place.over = not (stop or more) and self.place.left(self._config.steps) != 0
            self._evaluate_if_due(source, stop)
            if self._until_save() == 0 and not stop and not self.is_done():
                self._save()

    def _batches(self) -> Iterator[Batch]:
        left = self.place.left(self._config.steps)
        epoch = self._dataset.train(self._config.batch_size, epoch=self.place.epoch)
        batches = islice(self._behind(epoch), left)
        return self._guard.guarded(batches) if self._guard else batches

    def _behind(self, epoch: Iterator[Batch]) -> Iterator[Batch]:
        """The batches behind those that are trained."""
        for passed in range(self.place.taken):
            if next(epoch, None) is None:
                raise CheckpointError(
                    f"the checkpoint says that {self.place.taken} batches of epoch {self.place.epoch} are trained, but "
                    f"the data have {passed}: it is damaged, or the data are others now"
                )
        yield from epoch

    def _until_save(self) -> int | None:
        return self._until(self._config.save_every)

    def _until(self, every: int | None) -> int | None:
        """Batches of the data to the next save or evaluation within an epoch, 0: it is due; None: there is none."""
        return None if every is None else -self.place.total % every

    def _train_stretch(self, source: Source, stop: StopRequest) -> None:
        embeddings, before = self._trainer.embeddings, source.taken
        to_save = self._until_save() or self._config.save_every
        to_evaluation = self._until(self._config.eval_every) or self._config.eval_every
        files = embeddings.statistics.host_io()
        steps = self._trainer.train(
            source.stretch(min((length for length in (to_save, to_evaluation) if length is not None), default=None)),
            depth=self._config.depth,
            stopped=lambda: self._is_over(source, stop),
        )
        # What ranks have asked each other for is trained; one may have read further than others.
        one_each = embeddings.runtime.may_end_early or not embeddings.ranks.is_local
        self.place.advance(steps if one_each else source.taken - before)
        crossed = embeddings.statistics.host_io()
        self.file_bytes = {name: so_far + crossed[name] - files[name] for name, so_far in self.file_bytes.items()}

    def _is_over(self, source: Source, stop: StopRequest) -> bool:
        """After a step: whether training is to stop at once."""
        if self._guard:
            self._guard.after_step()
        if torch.initial_seed() != self._seed:
            raise PolicyError(
                f"torch's random numbers were seeded anew before step {self._trainer.recorder.steps + 1} was over, by "
                f"policy {self._config.policy} or other code that runs beside training; nothing of this step is saved. "
                "Give it a generator of its own: torch.Generator().manual_seed(...)"
            )
        if not stop:
            return False
        source.end()
        if self._trainer.embeddings.runtime.may_end_early:
            self._trainer.embeddings.runtime.end_early()
        return self._guard is not None  # guarded runs cannot be resumed
