"""`Loop`: the epochs of a run in stretches, with saves and evaluations in between.

The look-ahead gets the batches of one stretch only, so every planned batch is trained. Planning is ahead of training:
after a signal no more batches are planned, and the planned ones are still trained. A resumed run reads batches again
that were read but not planned. A policy that arranges batches has already seen these and may hold some back, so then
all batches that it has received are trained.
"""

import threading
from collections.abc import Callable, Iterator
from itertools import count, islice

import torch
from pydantic import BaseModel, ConfigDict, Field

from adaptive.batch import Batch
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.data.rows.followed_folder import FollowedFile
from adaptive.distributed.sharded_embedding_bag import Embeddings, ShardedEmbeddingBag
from adaptive.errors import CheckpointError, PolicyError
from adaptive.policy import InputPolicy, InputRule
from adaptive.system import StopRequest
from adaptive.training.trainer import Trainer


class DataPosition(BaseModel):
    """Position of a run in its data between two stretches, as checkpoints hold it.

    Counts are batches of the data, before a policy regroups or drops them.
    """

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=False)

    epoch: int = Field(default=0, ge=0)
    taken: int = Field(default=0, ge=0)  # trained batches of this epoch
    total: int = Field(default=0, ge=0)  # trained batches of all epochs
    epoch_start: int = Field(default=0, ge=0)  # steps trained in earlier epochs
    over: bool = False  # this epoch has no more batches
    evaluated: int = Field(default=0, ge=0)  # `total` at the latest complete evaluation
    reached: bool = False  # that evaluation ended training: patience
    file: FollowedFile | None = None  # with `follow`; an epoch is a file

    @property
    def file_name(self) -> str | None:
        return None if self.file is None else self.file.name

    def left(self, steps: int | None) -> int | None:
        """Batches that this epoch may still train if the run has `steps`; None: all of them."""
        return None if steps is None else max(steps - self.epoch_start - self.taken, 0)

    def is_evaluated_next(self, steps: int | None) -> bool:
        """True if an evaluation after these batches is still to come, or would come: the epoch or the run ends here."""
        if self.file is not None:
            return self.over or self.taken > 0 or not self.file.judged
        return self.reached or self.over or self.left(steps) == 0

    def advance(self, number: int) -> None:
        self.taken += number
        self.total += number

    def next_epoch(self, steps: int) -> None:
        """Enter the next epoch, which starts after `steps`."""
        self.epoch, self.taken, self.epoch_start, self.over = self.epoch + 1, 0, steps, False


class Source:
    """The batches of an epoch in stretches, which the look-ahead thread iterates.

    Attributes:
        taken: batches taken so far.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.taken = 0
        self._batches = batches
        self._next: Batch | None = None
        self._ended = False
        self._limit: int | None = None  # of `taken`
        self._reading = threading.Lock()

    def more(self) -> bool:
        """Read the next batch, between two stretches; return True if there is one."""
        if self._next is None and not self._ended:
            self._next = next(self._batches, None)
        return self._next is not None

    def end(self) -> None:
        """Yield no more batches."""
        self._ended = True

    def end_together(self, largest: Callable[[int], int]) -> None:
        """End after as many batches as the rank that has taken most; `largest` asks all ranks, of which none reads on.

        For the training thread, after the same step on all ranks. The look-ahead thread reads.
        """
        if self._limit is None:
            with self._reading:
                self._limit = largest(self.taken)

    def stretch(self, length: int | None) -> Iterator[Batch]:
        """Yield the next `length` batches, or all of them."""
        for _ in count() if length is None else range(length):
            with self._reading:
                if self._ended or self.taken == self._limit or not self.more():
                    return
                batch, self._next = self._next, None
                assert batch is not None
                self.taken += 1
            yield batch


class Loop:
    """Trains the rest of a run in stretches, with saves and evaluations in between.

    Attributes:
        place: the run's position in the data.
        file_bytes: bytes that training has read from and written to the rows' files, without saves and evaluations,
            which read every row under every policy.
    """

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset,
        trainer: Trainer,
        place: DataPosition,
    ) -> None:
        """`place`: the position in the data to start from."""
        self.place = place
        self.file_bytes = dict.fromkeys(("bytes_read", "bytes_written"), 0)
        self._config, self._dataset, self._trainer = config, dataset, trainer
        self._save_every = config.save_every if isinstance(config.save_every, int) else None
        self._seed = 0  # of torch's generator; set by `run`

    def run(self, stop: StopRequest, *, save: Callable[[], None], evaluate: Callable[[], bool | None]) -> None:
        """Train to the end of the run, or until stopped.

        Args:
            save: called every `config.save_every` batches of the data, but not at the end.
            evaluate: called between two epochs, and every `config.eval_every` batches of the data within them. It
                returns True to end training, and None if a signal interrupted it.
        """
        self._save, self._evaluate = save, evaluate
        self._seed = torch.initial_seed()
        while not stop and self._enter_epoch(stop):
            self._train_epoch(stop)

    def is_done(self) -> bool:
        """Return True if nothing is left to train."""
        if self.place.reached:
            return True
        epoch_goes_on = not self.place.over and self.place.left(self._config.steps) != 0
        return not (epoch_goes_on or self._has_another_epoch())

    def _has_another_epoch(self) -> bool:
        steps = self._config.steps
        return self.place.epoch + 1 < self._config.epochs and (steps is None or self._trainer.recorder.steps < steps)

    def _enter_epoch(self, stop: StopRequest) -> bool:
        """Enter the next epoch if this one is trained; return False if training ends here."""
        if self.is_done():
            return False
        if self.place.over or self.place.left(self._config.steps) == 0:
            self._evaluate_here()
            if not (stop or self.place.reached):
                self.place.next_epoch(self._trainer.recorder.steps)
        return not (stop or self.place.reached)

    def _evaluate_here(self) -> None:
        """Evaluate. A resumed run repeats an evaluation that a signal interrupted."""
        reached = self._evaluate()
        if reached is not None:
            self.place.evaluated, self.place.reached = self.place.total, reached

    def _evaluate_if_due(self, source: Source, stop: StopRequest) -> None:
        """Evaluate within an epoch. At its last batch the end of the epoch evaluates instead.

        A run that was stopped at the last batch does not know that it was the last, so it reads on to see.
        """
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
        return islice(self._untrained(epoch), left)

    def _untrained(self, epoch: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches after the trained ones, which are read and dropped."""
        for number in range(self.place.taken):
            if next(epoch, None) is None:
                raise CheckpointError(
                    f"expected {self.place.taken} batches or more in epoch {self.place.epoch}, as the checkpoint says, "
                    f"got {number} from the data. The checkpoint is damaged, or the data have changed"
                )
        yield from epoch

    def _until_save(self) -> int | None:
        return self._until(self._save_every)

    def _until(self, every: int | None) -> int | None:
        """Batches to the next save or evaluation; 0: due now, None: none in this epoch."""
        return None if every is None else -self.place.total % every

    def _train_stretch(self, source: Source, stop: StopRequest) -> None:
        embeddings, first = self._trainer.embeddings, source.taken
        to_save = self._until_save() or self._save_every
        to_evaluation = self._until(self._config.eval_every) or self._config.eval_every
        files = embeddings.statistics.host_io()
        steps = self._trainer.train(
            source.stretch(min((length for length in (to_save, to_evaluation) if length is not None), default=None)),
            depth=self._config.depth,
            after_step=lambda: self._check(source, stop),
        )
        # Ranks train what they have requested from each other, but may have read different numbers of batches.
        self.place.advance(source.taken - first if _arranges(embeddings) else steps)
        crossed = embeddings.statistics.host_io()
        self.file_bytes = {name: so_far + crossed[name] - files[name] for name, so_far in self.file_bytes.items()}

    def _check(self, source: Source, stop: StopRequest) -> None:
        """Check torch's seed after each step; after a signal, end the batches."""
        if torch.initial_seed() != self._seed:
            raise PolicyError(
                f"expected no change of torch's seed during training, got a new seed before the end of step "
                f"{self._trainer.recorder.steps + 1}, set by policy {self._config.policy} or other code in this "
                "process. This step is not saved. Use a separate generator: torch.Generator().manual_seed(...)"
            )
        if not stop:
            return
        embeddings = self._trainer.embeddings
        if isinstance(embeddings, ShardedEmbeddingBag) and _arranges(embeddings):
            # What was arranged is trained, and the rule's state is that of all ranks.
            gather = embeddings.peers.rows.gather_facts
            source.end_together(lambda taken: max(gather(taken)))
            return
        source.end()
        if not isinstance(embeddings, ShardedEmbeddingBag) and embeddings.runtime.may_end_early:
            embeddings.runtime.end_early()


def _arranges(embeddings: Embeddings) -> bool:
    """True if training sees other batches than the reader yields."""
    return isinstance(embeddings.policy, InputPolicy) or isinstance(embeddings.rule, InputRule)
