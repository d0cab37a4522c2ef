"""`FollowLoop`: train the files of a folder as they appear, each judged before any of its rows is trained.

A file is an epoch with its own look-ahead and its own last batch, which may be smaller. So batches, evaluations and
the places where planning ends follow from the files alone, never from the moment at which they appeared. Nothing of
the next file is read before this one is trained.

Checkpoints by time are written between two files, where planning ends anyway: when the clock says so changes nothing.
"""

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, Final

from adaptive.config import TrainConfig, idle_seconds, seconds_of
from adaptive.data.rows.followed_folder import FollowedFolder
from adaptive.distributed.peers import Peers
from adaptive.errors import ConfigError
from adaptive.plugins import load_policy_class
from adaptive.policy import InputPolicy
from adaptive.system import StopRequest
from adaptive.training.runs.loop import DataPosition, Loop
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.trainer import Trainer

POLL_S: Final = 0.2  # between two looks at the folder; a look takes 1 ms for 1,000 files
SAVE_S: Final = 600  # between checkpoints, unless `save_every` is set
MOST_JUDGED: Final = 100  # evaluations that a run remembers; metrics.jsonl has all


def refuse_following(config: TrainConfig, peers: Peers | None = None) -> None:
    """Raise ConfigError if a run shall follow a folder and cannot."""
    if not config.follow:
        return
    if peers is not None:
        raise ConfigError("run --follow expected a single process, got ranks: they do not see a new file at once")
    if issubclass(load_policy_class(config.policy), InputPolicy):
        raise ConfigError(
            f"run --follow expected a policy that keeps batches, got {config.policy}, which orders an epoch"
        )


class FollowLoop(Loop):
    """Trains files until none has come for `config.until`, `config.steps` are trained, or a signal stops it."""

    def __init__(self, config: TrainConfig, dataset: FollowedFolder, trainer: Trainer, place: DataPosition) -> None:
        super().__init__(config, dataset, trainer, place)
        self._folder = dataset
        self._idle_s = None if config.until is None else idle_seconds(config.until)
        every = config.save_every
        self._save_s = SAVE_S if every is None else seconds_of(every) if isinstance(every, str) else None
        if not config.save:
            self._save_s = None
        self._saved = monotonic(), place.total

    def run(self, stop: StopRequest, *, save: Callable[[], None], evaluate: Callable[[], bool | None]) -> None:
        """As `Loop.run`; `evaluate` is called before each file is trained.

        Raises:
            InputError: if a file changes while it is read or until the next one, or has changed since a checkpoint.
        """
        if self.place.file is not None:
            self._folder.return_to(self.place.file, is_needed=not self.place.over)
        super().run(stop, save=save, evaluate=evaluate)
        self._folder.finish()

    def _has_another_epoch(self) -> bool:
        return self._config.steps is None or self._trainer.recorder.steps < self._config.steps

    def _enter_epoch(self, stop: StopRequest) -> bool:
        """Wait for the next file if this one is trained, and judge it; return False if training ends here."""
        if self.is_done():
            return False
        place = self.place
        if place.file is None or place.over:
            if (name := self._next_file(stop)) is None:
                return False
            file = self._folder.turn_to(name)
            place.next_epoch(self._trainer.recorder.steps)
            place.file = file
        assert place.file is not None
        if not place.file.judged and self._evaluate() is not None:
            place.evaluated, place.file.judged = place.total, True
        return place.file.judged and not stop

    def _next_file(self, stop: StopRequest) -> str | None:
        """Return the next file once it is there; None if the run ends before."""
        began, after = monotonic(), self.place.file_name
        while not stop:
            if (name := self._folder.next_name(after)) is not None:
                return name
            if self._idle_s is not None and monotonic() - began >= self._idle_s:
                return None
            self._save_if_due()
            sleep(POLL_S)
        return None

    def _train_epoch(self, stop: StopRequest) -> None:
        super()._train_epoch(stop)
        self._folder.require_unchanged()
        if self.place.over:
            self._folder.finish()
            self._save_if_due()

    def _save_if_due(self) -> None:
        """Save between two files, if it is time and there is something new."""
        then, total = self._saved
        if self._save_s is not None and monotonic() - then >= self._save_s and self.place.total != total:
            self._save()
            self._saved = monotonic(), self.place.total


def quality_of_files(judged: Sequence[EvalRecord]) -> dict[str, Any]:
    """The mean quality of files, by their samples, as a part of the summary."""
    quality: dict[str, Any] = {"auc_of": "files", "eval_samples": sum(record.samples for record in judged)}
    for name in ("auc", "log_loss", "accuracy", "calibration"):
        known = [(value, record.samples) for record in judged if (value := getattr(record, name)) is not None]
        samples = sum(count for _, count in known)
        quality[name] = sum(value * count for value, count in known) / samples if known else None
    return quality
